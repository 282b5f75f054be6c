"""Recipes by name, and which release uses which (spec/hashing.md, "Releases")."""

from __future__ import annotations

import re

from kvwire.hashing import vllm
from kvwire.hashing.errors import RecipeError
from kvwire.hashing.recipes import Recipe
from kvwire.hashing.sglang_recipe import SglangPythonRecipe, SglangRecipe
from kvwire.hashing.vllm import ExtraKeys
from kvwire.hashing.vllm_recipe import VllmRecipe

__all__ = ["RECIPE_NAMES", "get_recipe", "recipe_for_release"]

RECIPE_NAMES = ("sglang", "sglang:dynamo", "sglang:python", *(f"vllm:{name}" for name in vllm.ALGORITHMS))
"""The recipes of event hashes, as `get_recipe` takes them."""

_FIRST_CHAINED = (0, 5, 6)
_FIRST_BYTES = (0, 10, 2)
_FIRST_FIXED_SEED = (0, 29, 0)
_FIRST_TAGGED = (0, 31, 0)
_RELEASE = re.compile(r"(sglang|vllm)(?:==|-|:)v?(\d+)\.(\d+)(?:\.(\d+))?(?:[.+]?(?:post|rc|dev|a|b)\S*)?")


def get_recipe(
    name: str,
    *,
    seed: str | None = None,
    none_hash: bytes | None = None,
    extra_keys: ExtraKeys | str = ExtraKeys.TAGGED,
    hash_block_size: int | None = None,
) -> Recipe:
    """A recipe by its name, one of `RECIPE_NAMES`.

    Args:
        name: ``sglang`` and ``vllm`` alone stand for ``sglang`` in its default format and ``vllm:sha256``.
        seed: PYTHONHASHSEED of a vLLM engine; None where it was unset (see `kvwire.hashing.vllm.none_hash`).
        none_hash: NONE_HASH itself, instead of a seed.
        extra_keys: ``bare`` for vLLM up to 0.30.0, ``tagged`` since 0.31.0.
        hash_block_size: see `VllmRecipe`.

    Raises:
        RecipeError: no such recipe, or a setting it does not have.
    """
    engine, _, kind = name.partition(":")
    if engine == "sglang":
        if seed is not None or none_hash is not None or hash_block_size is not None:
            raise RecipeError("an SGLang recipe has no seed, NONE_HASH or hash block size; those are vLLM's")
        if kind == "python":
            return SglangPythonRecipe()
        if kind in ("", "default", "dynamo"):
            return SglangRecipe("dynamo" if kind == "dynamo" else "default")
    elif engine == "vllm":
        algorithm = kind or "sha256"
        try:
            form = ExtraKeys(extra_keys)
        except ValueError:
            raise RecipeError(f"extra keys are hashed bare or tagged, not {extra_keys!r}") from None
        if none_hash is not None and seed is not None:
            raise RecipeError("give the seed or NONE_HASH, not both")
        root = vllm.none_hash(algorithm, seed) if none_hash is None else none_hash
        if len(root) != vllm.digest_size(algorithm) and not (none_hash is not None and len(root) == 32):
            raise RecipeError(f"NONE_HASH of {algorithm} has {vllm.digest_size(algorithm)} bytes, not {len(root)}")
        return VllmRecipe(algorithm, root, form, hash_block_size)
    raise RecipeError(f"no recipe {name!r}; there are {', '.join(RECIPE_NAMES)}")


def recipe_for_release(
    release: str,
    *,
    kind: str | None = None,
    seed: str | None = None,
    none_hash: bytes | None = None,
    hash_block_size: int | None = None,
) -> Recipe:
    """The recipe of a release, e.g. ``sglang==0.5.19`` or ``vllm==0.32.0``.

    Args:
        release: engine and version.
        kind: vLLM's ``--prefix-caching-hash-algo`` (None: sha256, its default); SGLang's event format (None: default).
        seed, none_hash, hash_block_size: see `get_recipe`.

    Raises:
        RecipeError: no such engine, a release whose hashes cannot be recomputed, or a setting it does not have.
    """
    found = _RELEASE.fullmatch(release)
    if found is None:
        raise RecipeError(f"{release!r} is no release; write it as sglang==0.5.19 or vllm==0.32.0")
    engine, version = found[1], (int(found[2]), int(found[3]), int(found[4] or 0))
    if engine == "sglang":
        if version < _FIRST_CHAINED:
            if kind == "dynamo":
                raise RecipeError("SGLang has the dynamo format since 0.5.22")
            return SglangPythonRecipe()
        return get_recipe(
            f"sglang:{kind or 'default'}", seed=seed, none_hash=none_hash, hash_block_size=hash_block_size
        )
    if version < _FIRST_BYTES:
        raise RecipeError(
            "vLLM before 0.10.2 hashes with Python's hash by default, which is seeded per process (and before Python 3.12 "
            "hashes None by its address): such hashes cannot be recomputed outside that process"
        )
    if seed is None and none_hash is None and version < _FIRST_FIXED_SEED:
        raise RecipeError(
            f"vLLM before 0.29.0 draws NONE_HASH at random when PYTHONHASHSEED is unset, so {release} needs the seed it "
            "was started with"
        )
    form = ExtraKeys.TAGGED if version >= _FIRST_TAGGED else ExtraKeys.BARE
    return get_recipe(
        f"vllm:{kind or 'sha256'}", seed=seed, none_hash=none_hash, extra_keys=form, hash_block_size=hash_block_size
    )
