"""``python -m benchmarks``: measure everything and write docs/benchmarks.json and docs/benchmarks.md."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from benchmarks.items import ITEMS
from benchmarks.model import Run
from benchmarks.report import markdown, quote, summary
from benchmarks.run import ROOT, ItemError, run_all

DOCS = ROOT / "docs"


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 whatever the ratios are; 1 when something does not run."""
    options = _parse(arguments)
    if options.list:
        for item in ITEMS:
            print(f"{item.name:12} {item.title}")
        return 0
    if options.render:
        write_docs(msgspec.json.decode((DOCS / "benchmarks.json").read_bytes(), type=Run))
        return 0
    wanted = [item for item in ITEMS if not options.only or item.name in options.only]
    try:
        run = run_all(wanted, quick=options.quick, say=lambda text: print(text, file=sys.stderr, flush=True))
    except ItemError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(summary(run))
    if options.json is not None:
        options.json.write_bytes(_json(run))
    elif not options.quick and not options.only:
        DOCS.mkdir(exist_ok=True)
        (DOCS / "benchmarks.json").write_bytes(_json(run))
        write_docs(run)
    return 0


def write_docs(run: Run) -> None:
    """Write docs/benchmarks.md, and fill in the numbers that docs/performance.md and the README quote."""
    (DOCS / "benchmarks.md").write_text(markdown(run), encoding="utf-8")
    for page in (DOCS / "performance.md", ROOT / "README.md"):
        if page.exists():
            page.write_text(quote(page.read_text(encoding="utf-8"), run), encoding="utf-8")


def _json(run: Run) -> bytes:
    return msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n"


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure kvwire and its peers. A full run writes docs/benchmarks.json, docs/benchmarks.md and the "
        "quoted numbers of docs/performance.md and the README.",
    )
    parser.add_argument("--quick", action="store_true", help="everything, but so short that the numbers mean little")
    parser.add_argument(
        "--only", action="append", metavar="ITEM", choices=[item.name for item in ITEMS], help="one item; repeatable"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, and nothing under docs/")
    parser.add_argument("--render", action="store_true", help="only write the documents anew from docs/benchmarks.json")
    parser.add_argument("--list", action="store_true", help="list the items")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
