"""``kvwire hash``: print the hash chain of a token list under a recipe, to compare by hand.

::

    kvwire hash sglang -b 4 --tokens 1 2 3 4 5 6 7 8 --salt tenant-a
    kvwire hash vllm:sha256_cbor -b 16 --seed 0 --file tokens.json
    kvwire hash vllm==0.30.0 -b 16 --seed 0 --lora-name adapter --json < tokens.txt

Also ``python -m kvwire.hash_cli``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from kvwire.errors import UsageError
from kvwire.hashing import as_hex, as_int64, as_uint64, dynamo
from kvwire.hashing.catalog import RECIPE_NAMES, get_recipe, recipe_for_release
from kvwire.hashing.errors import HashInputError, RecipeError
from kvwire.hashing.forms import first_bytes, last_bytes
from kvwire.hashing.recipes import BlockHash, Recipe
from kvwire.hashing.sglang_recipe import SglangStorageRecipe
from kvwire.hashing.tokens import TokenView, pages
from kvwire.hashing.vllm import ExtraKeys

__all__ = ["add_parser", "configure", "main", "run"]

NAMES = (*RECIPE_NAMES, "sglang:storage", "dynamo")


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the sub-command ``hash`` to an argparse subparsers object; ``args.run(args)`` then runs it."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "hash", help="print the hash chain of a token list under a recipe", description=__doc__.split("\n\n")[0]
    )
    return configure(parser)


def configure(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Give a parser the options of ``kvwire hash``."""
    parser.add_argument("recipe", help=f"one of {', '.join(NAMES)}; or a release, e.g. sglang==0.5.19 or vllm==0.32.0")
    parser.add_argument(
        "-t",
        "--tokens",
        nargs="+",
        metavar="ID",
        help="token ids, between blanks or commas; else --file or standard input",
    )
    parser.add_argument(
        "-b", "--block-size", "--page-size", type=int, required=True, metavar="N", help="tokens per block"
    )
    parser.add_argument(
        "-f",
        "--file",
        metavar="PATH",
        help="read token ids from a file: JSON, or numbers between blanks and commas; - for "
        "standard input. A name ending in .u32 holds u32 little-endian",
    )
    parser.add_argument("--bigram", action="store_true", help="EAGLE: hash pairs of neighbouring tokens")
    parser.add_argument("--parent", metavar="HEX", help="whole digest of the block before the first one")
    parser.add_argument("--salt", metavar="TEXT", help="cache salt")
    parser.add_argument("--extra-key", metavar="TEXT", help="SGLang's extra_key")
    parser.add_argument("--lora-name", metavar="TEXT", help="name of the LoRA adapter")
    parser.add_argument("--lora-path", metavar="TEXT", help="path of the LoRA adapter, hashed by vLLM since 0.31.0")
    parser.add_argument("--cache-namespace", metavar="TEXT", help="Dynamo's tenant namespace")
    parser.add_argument("--seed", metavar="TEXT", help="PYTHONHASHSEED of the vLLM engine; left out where it was unset")
    parser.add_argument("--none-hash", metavar="HEX", help="NONE_HASH of the vLLM engine, instead of a seed")
    parser.add_argument(
        "--algorithm", metavar="NAME", help="with a release: vLLM's hash algorithm, or SGLang's event format"
    )
    parser.add_argument(
        "--extra-keys",
        choices=[form.value for form in ExtraKeys],
        default=ExtraKeys.TAGGED.value,
        help="how vLLM hashes extra keys: bare up to 0.30.0, tagged since 0.31.0 (default; a release decides by itself)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a block")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Print the chain. Returns 0, or 2 for a usage error, which is then on standard error."""
    try:
        tokens = read_tokens(args)
        rows = dynamo_rows(args, tokens) if args.recipe == "dynamo" else chain_rows(args, tokens)
        printed = write(rows, sys.stdout, as_json=args.json)
    except (UsageError, OSError, ValueError) as error:
        print(f"kvwire hash: {error}", file=sys.stderr)
        return 2
    if printed == 0:
        print(
            "kvwire hash: no block: fewer tokens than the block size, which this recipe does not hash", file=sys.stderr
        )
    return 0


def read_tokens(args: argparse.Namespace) -> Any:
    """The tokens of the command line, of the file, or of standard input."""
    if args.tokens is not None:
        if args.file is not None:
            raise RecipeError("give the tokens in --tokens or in --file, not both")
        return parse_tokens(" ".join(args.tokens))
    if args.file not in (None, "-") and args.file.endswith(".u32"):
        return Path(args.file).read_bytes()
    text = sys.stdin.read() if args.file in (None, "-") else Path(args.file).read_text(encoding="utf-8")
    return parse_tokens(text)


def parse_tokens(text: str) -> list[Any]:
    """Token ids of a JSON array (of numbers, or of pairs), or of numbers between blanks and commas."""
    if text.lstrip().startswith("["):
        try:
            found = json.loads(text)
        except ValueError as error:
            raise HashInputError(f"the tokens start like JSON and are not: {error}") from None
        if not isinstance(found, list):
            raise HashInputError("the tokens are a JSON array")
        return found
    words = text.replace(",", " ").split()
    try:
        return [int(word) for word in words]
    except ValueError:
        bad = next(word for word in words if not word.lstrip("-").isdigit())
        raise HashInputError(f"{bad!r} is no token id; expected numbers between blanks and commas, or JSON") from None


def recipe_of(args: argparse.Namespace) -> Recipe | SglangStorageRecipe:
    """The recipe that the arguments name."""
    none_hash = None if args.none_hash is None else unhex(args.none_hash, "--none-hash")
    if args.recipe == "sglang:storage":
        return SglangStorageRecipe()
    if "==" in args.recipe:
        return recipe_for_release(args.recipe, kind=args.algorithm, seed=args.seed, none_hash=none_hash)
    if args.algorithm is not None:
        raise RecipeError(f"--algorithm goes with a release; name the recipe itself: {', '.join(NAMES)}")
    return get_recipe(args.recipe, seed=args.seed, none_hash=none_hash, extra_keys=args.extra_keys)


def unhex(text: str, option: str) -> bytes:
    """The bytes of an option's hex digits."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise HashInputError(f"{option} is a digest in hex digits, not {text!r:.40}") from None


def chain_rows(args: argparse.Namespace, tokens: Any) -> Iterator[dict[str, Any]]:
    """One row a block of a chained recipe."""
    recipe = recipe_of(args)
    if args.cache_namespace is not None:
        raise RecipeError("--cache-namespace is Dynamo's; the engines have --salt and --extra-key")
    blocks = recipe.hash_blocks(
        tokens,
        args.block_size,
        parent=None if args.parent is None else unhex(args.parent, "--parent"),
        cache_salt=args.salt,
        extra_key=args.extra_key,
        lora_name=args.lora_name,
        lora_path=args.lora_path,
        bigram=args.bigram,
    )
    length = TokenView(tokens, bigram=args.bigram).length
    for index, ((start, stop), block) in enumerate(zip(pages(length, args.block_size), blocks, strict=False)):
        yield {"block": index, "start": start, "stop": stop, "digest": block.digest.hex(), **event_forms(recipe, block)}


def event_forms(recipe: Recipe | SglangStorageRecipe, block: BlockHash) -> dict[str, str]:
    """The event hash in all forms, and the other 8 bytes of the digest, which another engine would publish."""
    if isinstance(recipe, SglangStorageRecipe):
        return {}
    value = block.event_hash if isinstance(block.event_hash, int) else last_bytes(block.digest)
    other = first_bytes(block.digest) if recipe.name.startswith("vllm") else last_bytes(block.digest)
    forms = {"int64": str(as_int64(value)), "uint64": str(as_uint64(value)), "hex": as_hex(value)}
    return forms if recipe.name == "sglang:python" else {**forms, "other_8_bytes": as_hex(other)}


def dynamo_rows(args: argparse.Namespace, tokens: Any) -> Iterator[dict[str, Any]]:
    """One row a block: its tokens hash, and the sequence hash that chains it."""
    for option in ("parent", "extra_key", "lora_path", "seed", "none_hash", "algorithm"):
        if getattr(args, option) is not None:
            raise RecipeError(f"--{option.replace('_', '-')} has no part in Dynamo's tokens hash")
    if args.salt is not None and args.cache_namespace is not None:
        raise RecipeError("the router takes the salt as its cache namespace: give one of --salt and --cache-namespace")
    hashes = list(
        dynamo.tokens_hashes(
            tokens,
            args.block_size,
            lora_name=args.lora_name,
            cache_namespace=args.cache_namespace or args.salt,
            bigram=args.bigram,
        )
    )
    for index, (block, chained) in enumerate(zip(hashes, dynamo.sequence_hashes(hashes), strict=True)):
        yield {
            "block": index,
            "start": index * args.block_size,
            "stop": (index + 1) * args.block_size,
            "int64": str(as_int64(block)),
            "uint64": str(as_uint64(block)),
            "hex": as_hex(block),
            "sequence_hash": str(chained),
        }


def write(rows: Iterator[dict[str, Any]], out: TextIO, *, as_json: bool) -> int:
    """Print the rows as they come; returns how many there were."""
    count = 0
    for row in rows:
        count += 1
        if as_json:
            print(json.dumps(row), file=out)
            continue
        print(f"block {row['block']}  positions {row['start']}-{row['stop'] - 1}", file=out)
        for name, value in row.items():
            if name not in ("block", "start", "stop"):
                print(f"  {name:<14}{value}", file=out)
    return count


def main(argv: list[str] | None = None) -> int:
    """Run the command by itself."""
    parser = configure(argparse.ArgumentParser(prog="kvwire hash", description=__doc__.split("\n\n")[0]))
    args = parser.parse_args(argv)
    code: int = args.run(args)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
