"""The command `kvwire`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from kvwire import __version__
from kvwire.errors import KvwireError
from kvwire.hash_cli import add_parser as add_hash


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; gives the exit code: 0 done, 2 usage."""
    parser = argparse.ArgumentParser(prog="kvwire", description="The KV-cache event wire of LLM engines.")
    parser.add_argument("--version", action="version", version=f"kvwire {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_hash(commands)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except KvwireError as error:
        print(f"kvwire: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
