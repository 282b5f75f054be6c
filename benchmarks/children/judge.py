"""``kvwire-conform producer --recording`` in a process of its own: how long, and how much memory at most."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec

from benchmarks.children.line import serve
from kvwire_conform.producer import Options, judge_recordings


def main() -> None:
    commands, answer = serve()
    path = Path(msgspec.json.decode(sys.argv[1])["path"])
    before = peak()
    answer()
    for _ in commands:
        began = time.perf_counter()
        report = judge_recordings([path], Options(subject=[path.name]))
        seconds = time.perf_counter() - began
        answer(
            seconds=seconds,
            kilobytes=peak() - before,
            events=sum(sum(source.events.values()) for source in report.sources),
            exit_code=report.exit_code,
        )


def peak() -> int:
    """The most memory that this process has had, in kB; 0 where the system does not tell. (``ru_maxrss`` would begin
    with what the parent had when it started this process.)"""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    except OSError:
        return 0


if __name__ == "__main__":
    main()
