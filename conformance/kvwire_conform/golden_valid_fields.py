"""The valid vectors of single fields: media, LoRA, salts, sessions, extra keys, groups, tiers, lookahead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvwire_conform.golden_case import PARENT, A, B, C, removed, stored
from kvwire_conform.golden_layout import REMOVED, SALT_PREFIX

if TYPE_CHECKING:
    from kvwire_conform.golden_valid import Valid

UNICODE = "ключ-日本-🔑"
_KINDS = {
    "full_attention": None,
    "mla_attention": None,
    "sliding_window": 1024,
    "mamba": None,
}


def add_all(valid: Valid) -> None:
    """Add the vectors of every field that the dialect has."""
    _media(valid)
    _lora(valid)
    if valid.layout.salted:
        _salts(valid)
    if valid.layout.has("extra_keys"):
        _extra_keys(valid)
        if not valid.layout.metadata:
            _prefixed_salts(valid)
    _groups(valid)
    _tiers(valid)
    _sessions(valid)
    _lookahead(valid)


def _media(valid: Valid) -> None:
    for medium in valid.layout.media:
        slug = medium.lower().replace("_", "-")
        valid.add(
            f"medium-{slug}",
            f"A block stored in and removed from {medium}.",
            stored(medium=medium),
            removed(medium=medium),
        )
    if len(valid.layout.media) > 1:
        valid.add(
            "medium-each",
            "The same block stored in every medium of the dialect, then removed from the first.",
            *(stored(medium=medium) for medium in valid.layout.media),
            removed(block_hashes=[A], medium=valid.layout.media[0]),
        )


def _lora(valid: Valid) -> None:
    layout = valid.layout
    valid.add("lora-id-0", "LoRA adapter number 0, which is not nil.", stored(layout, lora_id=0))
    valid.add("lora-id-7", "LoRA adapter number 7.", stored(layout, lora_id=7))
    if not layout.has("lora_name"):
        return
    valid.add("lora-name", "A block computed under a LoRA adapter.", stored(layout, lora_name="adapter-116"))
    valid.add(
        "lora-name-and-id",
        "A LoRA name beside the old adapter number.",
        stored(layout, lora_name="adapter-116", lora_id=1),
    )
    valid.add("lora-name-unicode", "A LoRA name in three scripts.", stored(layout, lora_name=UNICODE))
    valid.add("lora-name-empty", "A LoRA name that is empty, which is not nil.", stored(layout, lora_name=""))
    words = "A LoRA name of 300 bytes, which takes a two-byte length."
    valid.add("lora-name-300-bytes", words, stored(layout, lora_name="y" * 300))
    valid.add(
        "lora-name-beside-base",
        "The same tokens for the base model and for an adapter, under different hashes.",
        stored(layout),
        stored(layout, block_hashes=[C], lora_name="adapter-116"),
    )


def _salts(valid: Valid) -> None:
    layout = valid.layout

    def salted(salt: str, **fields: Any) -> dict[str, Any]:
        if layout.has("extra_keys") and salt:
            fields["extra_keys"] = [[SALT_PREFIX + salt]]
        return stored(layout, cache_salt=salt, **fields)

    valid.add("salt", "A block of one tenant.", salted("tenant-a"))
    valid.add("salt-unicode", "A salt in three scripts.", salted(UNICODE))
    valid.add("salt-empty", "An empty salt, which separates nobody.", salted(""))
    valid.add("salt-300-bytes", "A salt of 300 bytes, which takes a two-byte length.", salted("y" * 300))
    valid.add("salt-with-parent", "A salted block below another one.", salted("tenant-a", parent_block_hash=PARENT))
    valid.add(
        "salt-three-hashes",
        "Three salted blocks in one event.",
        salted("tenant-a", block_hashes=[A, B, C], token_ids=list(range(12))),
    )
    valid.add(
        "salt-beside-unsalted",
        "A salted block between unsalted ones; a reader that fails on it loses all three.",
        stored(layout),
        salted("tenant-a", block_hashes=[B]),
        stored(layout, block_hashes=[C]),
    )
    valid.add(
        "salt-two-tenants",
        "The same tokens for two tenants, under different hashes.",
        salted("tenant-a"),
        salted("tenant-b", block_hashes=[B]),
    )
    if layout.has("lora_name"):
        valid.add(
            "salt-and-lora-name", "A salted block of a LoRA adapter.", salted("tenant-a", lora_name="adapter-116")
        )
    if layout.has("session_id"):
        valid.add("salt-and-session", "A salted block of a session.", salted("tenant-a", session_id="session-1"))
    if layout.has("extra_keys"):
        valid.add(
            "salt-and-images",
            "A salted block with an image, whose identifier stands before the salt.",
            stored(layout, cache_salt="tenant-a", extra_keys=[[["mm-7f", -3], SALT_PREFIX + "tenant-a"]]),
        )


def _prefixed_salts(valid: Valid) -> None:
    layout = valid.layout

    def salted(salt: str, *before: Any, **fields: Any) -> dict[str, Any]:
        return stored(layout, cache_salt=salt, extra_keys=[[*before, SALT_PREFIX + salt]], **fields)

    valid.add(
        "salt-prefixed",
        "A salt among the extra keys, with the prefix that tells it from other keys.",
        salted("tenant-a"),
    )
    valid.add("salt-prefixed-unicode", "A prefixed salt in three scripts.", salted(UNICODE))
    valid.add(
        "salt-prefixed-and-keys",
        "A prefixed salt behind other extra keys.",
        salted("tenant-a", "adapter-a", ["mm-7f", -3]),
    )
    valid.add(
        "salt-prefixed-first-block",
        "Two blocks of one tenant, the salt on the first alone.",
        stored(
            layout,
            block_hashes=[A, B],
            token_ids=list(range(8)),
            extra_keys=[[SALT_PREFIX + "tenant-a"], None],
            cache_salt="tenant-a",
        ),
    )
    valid.add(
        "salt-prefixed-beside-unsalted",
        "A block with a prefixed salt between unsalted ones.",
        stored(layout),
        salted("tenant-a", block_hashes=[B]),
        stored(layout, block_hashes=[C]),
    )
    valid.add(
        "salt-bare",
        "A salt among the extra keys as vLLM writes it, where nothing tells it from another key.",
        stored(layout, block_hashes=[A, B], token_ids=list(range(8)), extra_keys=[["tenant-a"], None]),
    )


def _extra_keys(valid: Valid) -> None:
    layout = valid.layout
    one_block = {
        "nil-entry": ("An entry of extra keys that is nil.", None),
        "empty-entry": ("An entry of extra keys that is empty.", []),
        "str": ("One string as extra key.", ["adapter-a"]),
        "unicode": ("An extra key in three scripts.", [UNICODE]),
        "mm": ("An image that starts inside the block.", [["mm-7f", 2]]),
        "mm-negative": ("An image that starts before the block.", [["mm-7f", -3]]),
        "mm-two": ("Two images in one block.", [["mm-7f", -3], ["mm-80", 2]]),
        "mm-bare": (
            "An image identifier without an offset, as older releases send it.",
            ["8f14e45f-ceea-467f-9575-06d3a1c0b2de"],
        ),
        "bytes": ("The digest of a prompt embedding.", [{"bytes": bytes(range(32)).hex()}]),
        "mixed": (
            "A LoRA name, an image, a salt and a digest in one entry, without anything that tells them apart.",
            ["adapter-a", ["mm-7f", -3], "tenant-a", {"bytes": "00ff10"}],
        ),
    }
    for slug, (description, entry) in one_block.items():
        valid.add(f"stored-extra-keys-{slug}", description, stored(layout, extra_keys=[entry]))
    valid.add("stored-extra-keys-empty", "Extra keys that are an empty array.", stored(layout, extra_keys=[]))
    valid.add(
        "stored-extra-keys-nil-and-set",
        "Extra keys of three blocks, the middle one without any.",
        stored(
            layout, block_hashes=[A, B, C], token_ids=list(range(12)), extra_keys=[["adapter-a"], None, [["mm-7f", -8]]]
        ),
    )
    valid.add(
        "stored-extra-keys-and-lora-name",
        "The LoRA name in its own field and again among the extra keys.",
        stored(layout, lora_name="adapter-116", extra_keys=[["adapter-116"]]),
    )
    valid.add(
        "stored-extra-keys-two-images",
        "The same placeholder tokens for two images, told apart by the extra keys alone.",
        stored(layout, token_ids=[151655] * 4, extra_keys=[[["image-a", 0]]]),
        stored(layout, block_hashes=[B], token_ids=[151655] * 4, extra_keys=[[["image-b", 0]]]),
    )


def _groups(valid: Valid) -> None:
    layout = valid.layout
    if not layout.has("group_idx"):
        return
    for group in (0, 3):
        valid.add(
            f"group-{group}",
            f"A block stored in and removed from group {group}.",
            stored(layout, group_idx=group),
            removed(layout, group_idx=group),
        )
    valid.add(
        "group-same-hash",
        "The same hash stored in two groups and removed from one of them.",
        stored(layout, group_idx=0),
        stored(layout, group_idx=1),
        removed(layout, block_hashes=[A], group_idx=1),
    )
    if not layout.has("kv_cache_spec_kind"):
        return
    for kind, window in _KINDS.items():
        valid.add(
            f"kind-{kind.replace('_', '-')}",
            f"A block of a {kind} group.",
            stored(layout, group_idx=0, kv_cache_spec_kind=kind, kv_cache_spec_sliding_window=window),
        )
    valid.add(
        "kind-mamba-one-hash",
        "A mamba group that publishes one hash for five blocks, beside attention with one hash each.",
        stored(layout, token_ids=list(range(20)), group_idx=0, kv_cache_spec_kind="mamba"),
        stored(
            layout,
            block_hashes=[f"{n:016x}" for n in range(1 << 40, (1 << 40) + 5)],
            token_ids=list(range(20)),
            group_idx=1,
            kv_cache_spec_kind="full_attention",
        ),
    )
    if layout.has("kv_cache_spec_kind", REMOVED):
        valid.add(
            "kind-removed",
            "A block removed from a sliding-window group.",
            removed(layout, group_idx=1, kv_cache_spec_kind="sliding_window", kv_cache_spec_sliding_window=128),
        )


def _tiers(valid: Valid) -> None:
    layout = valid.layout
    if layout.has("locality"):
        for locality in ("LOCAL", "REMOTE"):
            valid.add(
                f"locality-{locality.lower()}",
                f"A block stored and removed with locality {locality}.",
                stored(layout, locality=locality),
                removed(layout, locality=locality),
            )
        tier = layout.media[-1] if layout.id == "dynamo" else "STORAGE"
        valid.add(
            "locality-remote-placeholder",
            "A block in remote storage whose tokens are left out.",
            stored(medium=tier, locality="REMOTE", token_ids=[], block_size=16),
        )
    if layout.has("ownership"):
        valid.add(
            "ownership",
            "A block stored and removed by one owner.",
            stored(layout, ownership="tier-1"),
            removed(layout, ownership="tier-1"),
        )
        valid.add("ownership-unicode", "An owner in three scripts.", stored(layout, ownership=UNICODE))


def _sessions(valid: Valid) -> None:
    if valid.layout.has("session_id"):
        valid.add("session", "A block stored for a session.", stored(valid.layout, session_id="session-1"))
        valid.add(
            "session-with-parent",
            "A session's block below another one.",
            stored(valid.layout, session_id="session-1", parent_block_hash=PARENT),
        )
        valid.add("session-unicode", "A session id in three scripts.", stored(valid.layout, session_id=UNICODE))


def _lookahead(valid: Valid) -> None:
    layout = valid.layout
    if not layout.has("lookahead_token_ids"):
        return
    valid.add(
        "lookahead-one", "One token after the block went into its hash.", stored(layout, lookahead_token_ids=[[15]])
    )
    valid.add(
        "lookahead-two-blocks",
        "Lookahead tokens of two blocks.",
        stored(layout, block_hashes=[A, B], token_ids=list(range(8)), lookahead_token_ids=[[4], [8]]),
    )
    valid.add(
        "lookahead-three-tokens", "Three lookahead tokens.", stored(layout, lookahead_token_ids=[[15, 300, 70000]])
    )
    valid.add("lookahead-empty-entry", "A block whose lookahead is empty.", stored(layout, lookahead_token_ids=[[]]))
    valid.add("lookahead-empty", "A lookahead that is an empty array.", stored(layout, lookahead_token_ids=[]))
