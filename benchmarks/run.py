"""Runs the items, each in processes of its own, and puts their rows together."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from benchmarks.items import Item
from benchmarks.machine import machine, versions
from benchmarks.model import Row, Run
from benchmarks.worker import Done

ROOT = Path(__file__).resolve().parent.parent
PURE = "KVWIRE_PURE"
"""Set to 1, kvwire leaves its compiled extension alone."""

ITEM_SECONDS = 300.0


class ItemError(RuntimeError):
    """An item did not run to its end."""


def run_all(items: Iterable[Item], *, quick: bool, say: Callable[[str], None]) -> Run:
    """Run these items one after the other.

    Raises:
        ItemError: one of them failed; the message has what it wrote to stderr.
    """
    began, started = time.monotonic(), time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    load = os.getloadavg()[0]
    rows: list[Row] = []
    skipped: dict[str, str] = {}
    compiled: list[str] = []
    for item in items:
        since = time.monotonic()
        found, modules = _run_item(item, quick)
        compiled += [name for name in modules if name not in compiled]
        if not found:
            skipped[item.name] = "kvwire does not have it here"
        rows += found
        say(f"{item.name}: {len(found)} rows, {time.monotonic() - since:.1f} s")
    return Run(
        machine=machine(),
        versions=versions(),
        compiled=sorted(compiled),
        quick=quick,
        started=started,
        seconds=round(time.monotonic() - began, 1),
        load=round(load, 2),
        rows=rows,
        skipped=skipped,
    )


def _run_item(item: Item, quick: bool) -> tuple[list[Row], list[str]]:
    """The rows of an item; of both variants where the extension is there and plays a part."""
    usual = _work(item, quick, pure=False)
    if not item.variants:
        return usual.rows, usual.compiled
    if not usual.compiled:
        return _labelled(usual.rows, "pure"), []
    return _labelled(usual.rows, "compiled") + _labelled(_work(item, quick, pure=True).rows, "pure"), usual.compiled


def _labelled(rows: list[Row], variant: str) -> list[Row]:
    return [msgspec.structs.replace(row, variant=variant) for row in rows]


def _work(item: Item, quick: bool, *, pure: bool) -> Done:
    environment = {key: value for key, value in os.environ.items() if key != PURE}
    if pure or (os.environ.get(PURE) == "1"):
        environment[PURE] = "1"
    command = [sys.executable, "-m", "benchmarks.worker", item.name, *(["--quick"] if quick else [])]
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=ITEM_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise ItemError(f"{item.name}: not done after {ITEM_SECONDS:g} s") from error
    if done.returncode:
        raise ItemError(f"{item.name}: exit {done.returncode}\n{done.stderr.decode(errors='replace')[-4000:]}")
    return msgspec.json.decode(done.stdout, type=Done)
