"""The command `kvwire-conform`, also as ``python -m kvwire_conform``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command, or say in one line what has to be installed for it."""
    try:
        import jsonschema  # noqa: F401
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError as error:
        print(f"kvwire-conform needs {error.name}: pip install 'kvwire[conform]'", file=sys.stderr)
        raise SystemExit(2) from None
    from kvwire_conform.cli import run

    run()


if __name__ == "__main__":
    main()
