"""What the hash functions raise. All are the caller's fault, so all are `kvwire.UsageError`."""

from __future__ import annotations

from kvwire.errors import UsageError

__all__ = ["HashInputError", "MissingLibraryError", "NotRecomputableError", "RecipeError"]


class HashInputError(UsageError, ValueError):
    """Tokens, sizes or digests that no recipe can hash; the message names the position and what was expected."""

    code = "hash-input"


class RecipeError(UsageError, LookupError):
    """No recipe, algorithm or release of that name, or a setting the recipe needs and did not get."""

    code = "hash-recipe"


class MissingLibraryError(UsageError, ImportError):
    """A recipe needs a library of the extra ``hash`` that is not installed."""

    code = "missing-library"

    def __init__(self, recipe: str, library: str) -> None:
        self.library = library
        super().__init__(f"{recipe} needs {library}: pip install 'kvwire[hash]'")


class NotRecomputableError(UsageError, ValueError):
    """An event does not carry all that went into its hashes.

    Attributes:
        reason: stable slug of what is missing; the slugs are those of `kvwire.hashing.recipes.Reason`.
    """

    code = "not-recomputable"

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)
