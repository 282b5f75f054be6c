"""The command `kvwire-conform`."""

from __future__ import annotations

import sys
import traceback

import typer

from kvwire import __version__
from kvwire.errors import UsageError
from kvwire_conform import consumer_cli, golden_cli, matrix_cli, producer_cli, router_cli
from kvwire_conform.outcome import Exit

app = typer.Typer(
    name="kvwire-conform",
    help="Judge what speaks the KV-cache event wire of LLM engines: publishers, and the consumers that read them.",
    epilog=(
        "Exit codes: 0 nothing unexpected, 1 a failure, 2 usage, 3 the subject could not be reached, 4 inconclusive, "
        "5 our own fault, 130 interrupted. The worst wins in the order 5, 3, 2, 1, 4."
    ),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
# Every command is registered here: a function by name, or a group of commands.
app.command("producer")(producer_cli.producer)
app.command("consumer", no_args_is_help=True)(consumer_cli.consumer)
app.command("demo")(producer_cli.demo)
app.add_typer(golden_cli.app, name="golden")
app.add_typer(router_cli.app, name="router")
app.command("matrix")(matrix_cli.matrix)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"kvwire-conform {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Judge what speaks the KV-cache event wire of LLM engines: publishers, and the consumers that read them."""


def run() -> None:
    """Run the command; a mistake of the user's is one line, a mistake of ours asks to be reported."""
    try:
        app()
    except UsageError as error:
        print(f"kvwire-conform: {error}", file=sys.stderr)
        raise SystemExit(Exit.USAGE) from None
    except BrokenPipeError:
        sys.stderr.close()
        raise SystemExit(Exit.OK) from None
    except Exception:
        traceback.print_exc()
        print("kvwire-conform: this is our own fault; please report the lines above", file=sys.stderr)
        raise SystemExit(Exit.HARNESS) from None
