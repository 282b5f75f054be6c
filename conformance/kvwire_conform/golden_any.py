"""The vectors that belong to no dialect: other producers of this wire, and faults that people reported, as small inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvwire_conform import golden_msgpack as mp
from kvwire_conform.golden_any_invalid import add_invalid
from kvwire_conform.golden_case import (
    ANY,
    DIGEST,
    PARENT,
    UNSIGNED,
    A,
    B,
    C,
    Case,
    Kind,
    batch,
    cleared,
    raw,
    removed,
    stored,
)
from kvwire_conform.golden_foreign import key_map, mooncake
from kvwire_conform.golden_layout import LAYOUTS, Form, Json, frame, write_batch, write_event

_SLOT6 = LAYOUTS["slot6"]
_SLOT7 = LAYOUTS["slot7"]
_SLOT9 = LAYOUTS["slot9"]
_SGLANG = LAYOUTS["sglang-map2"]
_VLLM = LAYOUTS["vllm-map5"]


class AnyCases:
    """Collects the vectors of no dialect."""

    def __init__(self) -> None:
        self.cases: list[Case] = []

    def add(
        self,
        slug: str,
        description: str,
        payload: bytes,
        meaning: Json,
        *,
        kind: Kind = "tolerated",
        strict: bool = False,
        form: Form = "unsigned",
        skipped: tuple[Json, ...] = (),
        extras: tuple[Json, ...] = (),
    ) -> None:
        """One vector that can be read; ``strict`` says whether it is exactly of some dialect."""
        self.cases.append(
            Case(
                id=f"{ANY}/{slug}",
                dialect=None,
                kind=kind,
                description=description,
                payload=payload,
                strict=strict,
                meaning=meaning,
                hash_form=form,
                skipped=skipped,
                extras=extras,
            )
        )

    def spoken(self, dialect: str, slug: str, description: str, *events: Json, sound: bool = True, **more: Any) -> None:
        """One vector that is exactly of a dialect, and valid unless it is not ``sound``."""
        rank = more.pop("rank", 0)
        meaning = batch(*events, rank=rank)
        form = more.get("form", "unsigned")
        payload = write_batch(LAYOUTS[dialect], meaning, form)
        self.add(slug, description, payload, meaning, kind="valid" if sound else "tolerated", strict=True, **more)


def any_cases() -> list[Case]:
    """Every vector of no dialect."""
    found = AnyCases()
    _encodings(found)
    _hashes(found)
    _groups_and_tokens(found)
    _sequences(found)
    _media(found)
    _isolation(found)
    _llm_d(found)
    _atom_and_tokenspeed(found)
    _tensorrt_llm(found)
    _mooncake(found)
    _others(found)
    add_invalid(found.cases)
    return found.cases


def _encodings(found: AnyCases) -> None:
    found.spoken(
        "vllm-map5", "map-clear", "A clear as a map, which readers of arrays alone lose (vllm #42892).", cleared()
    )
    found.spoken(
        "sglang-map2",
        "map-removed",
        "A removal as a map, which readers of arrays alone lose (sglang #37482).",
        removed(_SGLANG, block_hashes=[A]),
    )
    found.spoken("slot7", "array-clear", "A clear as an array of its tag alone (llm-d-kv-cache #593).", cleared())
    found.spoken("slot7", "batch-is-an-array", "An empty batch, which is an array and no map (aibrix #1720).")
    found.spoken(
        "slot7", "rank-3", "A batch of DP rank 3, which some readers drop (llm-d-router #2379).", stored(_SLOT7), rank=3
    )
    found.spoken(
        "slot6-b2",
        "batch-of-two",
        "A batch of two elements, from before the DP rank (vllm #18924).",
        stored(),
        rank=None,
    )
    array, other = stored(_SLOT7), removed(_SGLANG)
    found.add(
        "mixed-arrays-and-maps",
        "An array event and a map event in one batch (llm-d-kv-cache #661).",
        frame(None, [raw(_SLOT7, array), raw(_SGLANG, other)]),
        batch(array, other),
    )
    found.add(
        "mixed-maps-and-arrays",
        "A map event and an array event in one batch.",
        frame(None, [raw(_SGLANG, other), raw(_SLOT7, array)]),
        batch(other, array),
    )
    short, whole = stored(), stored(_SLOT7, block_hashes=[B], parent_block_hash=A)
    found.add(
        "short-beside-whole",
        "A stored event of 6 slots beside one of 7 (llm-d-kv-cache #132).",
        frame(None, [raw(_SLOT6, short), raw(_SLOT7, whole)]),
        batch(short, whole),
    )
    event = stored(_SGLANG, session_id="session-1")
    written = write_event(_SGLANG, event, "unsigned").ordered(lambda names: [*names[1:], names[0]])
    words = "The tag as the last key of a map (dynamo #10660)."
    found.add("shuffled-keys-type-last", words, frame(None, [written.raw]), batch(event), strict=True)


def _hashes(found: AnyCases) -> None:
    words = "A hash of 2^63 or more in a stored event of 7 slots (dynamo #3180)."
    found.spoken("slot7", "hash-unsigned-with-medium", words, stored(_SLOT7, block_hashes=[UNSIGNED]))
    ints, digests = stored(_SLOT7), stored(_SLOT7, block_hashes=[DIGEST])
    found.add(
        "hash-ints-and-bytes",
        "Integers and digests as hashes in one batch (vllm #27803).",
        frame(None, [raw(_SLOT7, ints), raw(_SLOT7, digests)]),
        batch(ints, digests),
        strict=True,
    )
    one, other = stored(_SLOT7, block_hashes=[UNSIGNED]), removed(_SLOT7, block_hashes=[UNSIGNED])
    found.add(
        "hash-signed-and-unsigned",
        "One hash stored in signed form and removed in unsigned form.",
        frame(None, [write_event(_SLOT7, one, "signed").raw, raw(_SLOT7, other)]),
        batch(one, other),
        strict=True,
    )
    words = "A block that names itself as its parent (sglang #13488, dynamo #6569)."
    found.spoken("slot7", "self-parent", words, stored(_SLOT7, parent_block_hash=A), sound=False)
    words = "A parent that was never stored (vllm-ascend #12002, llm-d-kv-cache #372)."
    found.spoken("slot7", "parent-never-stored", words, stored(_SLOT7, parent_block_hash=PARENT))
    words = "Two hashes of one event that are the same."
    found.spoken("slot7", "hash-repeated", words, stored(_SLOT7, block_hashes=[A, A], token_ids=[1] * 8), sound=False)


def _groups_and_tokens(found: AnyCases) -> None:
    found.spoken(
        "vllm-map5",
        "group-mamba",
        "A mamba group that is not group 0 (dynamo #8669).",
        stored(_VLLM, group_idx=1, kv_cache_spec_kind="mamba"),
    )
    tokens = list(range(20))
    groups = [stored(_VLLM, token_ids=tokens, group_idx=n, kv_cache_spec_kind="mamba") for n in range(3)]
    hashes = [A, B, C, PARENT, "0a0b0c0d0e0f1011"]
    attention = stored(_VLLM, block_hashes=hashes, token_ids=tokens, group_idx=3, kv_cache_spec_kind="mla_attention")
    found.spoken(
        "vllm-map5",
        "groups-mamba-and-attention",
        "Three mamba groups of one hash for five blocks, before attention of one hash each (Infera #98, vllm #44451).",
        *groups,
        attention,
    )
    found.spoken(
        "vllm-map5",
        "group-sparse-window",
        "A sliding window that publishes two hashes for sixteen blocks (llm-d-router #2362).",
        stored(
            _VLLM,
            block_hashes=[A, B],
            token_ids=list(range(64)),
            group_idx=2,
            kv_cache_spec_kind="sliding_window_mla",
            kv_cache_spec_sliding_window=128,
        ),
    )
    words = "A block of three tokens whose size is four (dynamo #866)."
    found.spoken("slot7", "partial-block", words, stored(_SLOT7, token_ids=[1, 2, 3]), sound=False)
    words = "One hash for the two pages of a radix node (sglang #6824)."
    found.spoken("slot7", "hash-per-node", words, stored(_SLOT7, token_ids=list(range(8))), sound=False)
    words = "A block size that was never set (dynamo #5015)."
    found.spoken("slot7", "block-size-corrupt", words, stored(_SLOT7, block_size=2662439576), sound=False)
    words = "Blocks of one repeated token at each depth (dynamo #4394)."
    found.spoken("slot7", "tokens-alike", words, stored(_SLOT7, block_hashes=[A, B], token_ids=[1] * 8))
    found.spoken(
        "slot7", "tokens-negative", "A negative token id.", stored(_SLOT7, token_ids=[1, 2, 3, -1]), sound=False
    )
    huge: list[Any] = [1 << 32, (1 << 53) - 1, {"int": str(1 << 53)}, {"int": str((1 << 64) - 1)}]
    found.spoken(
        "slot7", "tokens-past-32-bits", "Token ids of more than 32 bits.", stored(_SLOT7, token_ids=huge), sound=False
    )
    mixed = [1, [2, 3], 4, [5, 6]]
    words = "Single tokens and bigram pairs in one event."
    found.spoken("slot7", "tokens-singles-and-pairs", words, stored(_SLOT7, token_ids=mixed), sound=False)
    many = [7] * 65536
    words = "65536 tokens, for which the array header grows to five bytes."
    found.spoken("slot7", "tokens-65536", words, stored(_SLOT7, token_ids=many, block_size=65536))


def _sequences(found: AnyCases) -> None:
    one, gone = stored(_SLOT7), removed(_SLOT7, block_hashes=[A])
    found.spoken(
        "slot7",
        "stored-twice-removed-twice",
        "A block stored twice and removed twice (dynamo #8012).",
        one,
        one,
        gone,
        gone,
    )
    found.spoken(
        "slot7", "stored-twice-removed-once", "A block stored twice and removed once (vllm #45261).", one, one, gone
    )
    found.spoken(
        "vllm-map5",
        "chunks-overlap",
        "Two offloaded chunks that share a block, and the removal of the first (llm-d-kv-cache #680).",
        stored(medium="CPU", block_hashes=[A, B], token_ids=list(range(8))),
        stored(medium="CPU", block_hashes=[B, C], token_ids=list(range(4, 12)), parent_block_hash=A),
        removed(medium="CPU", block_hashes=[A, B]),
    )
    found.spoken(
        "vllm-map5",
        "chunk-removed-in-part",
        "A chunk of four blocks of which one is removed (vllm #57159).",
        stored(medium="CPU", block_hashes=[A, B, C, PARENT], token_ids=list(range(16))),
        removed(medium="CPU", block_hashes=[B]),
    )
    found.spoken(
        "slot7",
        "removed-before-child",
        "A page removed while its child stays (sglang #14934).",
        stored(_SLOT7, block_hashes=[A, B], token_ids=list(range(8))),
        gone,
    )
    found.spoken(
        "slot6",
        "clear-after-each-store",
        "A clear after each store (tokenspeed #166).",
        stored(),
        cleared(),
        stored(),
        cleared(),
    )
    found.spoken("slot7", "clear-of-one-rank", "A clear of DP rank 1 (dynamo #1279).", cleared(), rank=1)
    found.spoken(
        "vllm-map5",
        "clear-with-tiers",
        "A clear after stores in two tiers, one of which stays resident (vllm #57296).",
        stored(_VLLM),
        stored(medium="CPU"),
        cleared(),
    )


def _media(found: AnyCases) -> None:
    for slug, medium, report in (
        ("lower-case-cpu", "cpu", "dynamo #12456"),
        ("lower-case-gpu", "gpu", "tair-kvcache #256"),
        ("unknown", "HBM", "dynamo #12456"),
    ):
        words = f"The medium {medium}, which is no engine's constant ({report})."
        found.spoken("slot7", f"medium-{slug}", words, stored(medium=medium), removed(medium=medium), sound=False)
    found.spoken(
        "vllm-map5",
        "storage-remote-hash-only",
        "A block in remote storage, its hash alone (dynamo #11571).",
        stored(medium="STORAGE", locality="REMOTE", token_ids=[], block_size=16),
    )
    found.spoken(
        "vllm-map5",
        "offload-placeholder",
        "An offloaded block without tokens and of size 0 (vllm #43468).",
        stored(medium="CPU", token_ids=[], block_size=0),
    )


def _isolation(found: AnyCases) -> None:
    salted = stored(_SLOT7, block_hashes=[B], cache_salt="t")
    words = "A salted event of 8 slots beside an unsalted one of 7 (sglang #30827, dynamo #14530)."
    found.spoken("slot8", "salt-in-slot-7", words, stored(_SLOT7), salted)
    found.spoken(
        "sglang-map2",
        "salts-share-a-hash",
        "The same hash under two salts, which then separate nobody (sglang #24568).",
        stored(_SGLANG, cache_salt="a"),
        stored(_SGLANG, cache_salt="b"),
        sound=False,
    )
    words = "A LoRA name, a salt and an image in one entry, without anything that tells them apart (vllm #55487)."
    found.spoken("slot9", "keys-untyped", words, stored(_SLOT9, extra_keys=[["adapter", "salt", ["mm", -3]]]))
    words = "The LoRA name in its own field and among the extra keys (llm-d-router #2927)."
    event = stored(_SLOT9, lora_name="adapter-116", extra_keys=[["adapter-116"]])
    found.spoken("slot9", "keys-lora-name", words, event)
    found.spoken(
        "slot9",
        "lora-id-by-load-order",
        "One LoRA adapter under two numbers (vllm #27211).",
        stored(_SLOT9, lora_name="adapter-116", lora_id=1),
        stored(_SLOT9, block_hashes=[B], lora_name="adapter-116", lora_id=2),
    )
    image = [151655] * 4
    found.spoken(
        "slot9",
        "images-by-key",
        "The same placeholder tokens for two images, told apart by their keys (llm-d-kv-cache #411).",
        stored(_SLOT9, token_ids=image, extra_keys=[["uuid-A"]]),
        stored(_SLOT9, block_hashes=[B], token_ids=image, extra_keys=[["uuid-B"]]),
    )
    found.spoken(
        "vllm-map5",
        "images-alike",
        "The same placeholder tokens for two images, and nothing to tell them apart (TensorRT-LLM #18810).",
        stored(_VLLM, token_ids=image),
        stored(_VLLM, block_hashes=[B], token_ids=image),
    )


def _llm_d(found: AnyCases) -> None:
    zero = "0" * 16
    event = stored(parent_block_hash=zero, medium="GPU")
    slots = [
        mp.text("BlockStored"),
        mp.array([mp.integer(int(A, 16), "u64")]),
        mp.integer(0, "u64"),
        mp.array([mp.integer(token, "u32") for token in event["token_ids"]]),
        mp.integer(4, "i64"),
        mp.NIL,
        mp.text("GPU"),
        mp.NIL,
        mp.NIL,
    ]
    words = "llm-d's simulator: integers in full width, and parent 0 at the root."
    found.add("llm-d-simulator-array", words, frame(None, [mp.array(slots)]), batch(event), strict=True)
    event = stored(medium="GPU")
    fields = {
        "type": slots[0],
        "block_hashes": slots[1],
        "parent_block_hash": mp.NIL,
        "token_ids": slots[3],
        "block_size": slots[4],
        "medium": mp.text("GPU"),
        "lora_name": mp.NIL,
        "extra_keys": mp.NIL,
    }
    words = "llm-d's simulator with map events: integers in full width, and no lora_id."
    found.add("llm-d-simulator-map", words, frame(None, [key_map(fields)]), batch(event))
    store = {"type": "BlockStored", "block_hashes": [A], "parent_block_hash": zero, "token_ids": [], "block_size": 0}
    store["medium"] = "SHARED_STORAGE"
    gone = removed(medium="SHARED_STORAGE")
    events = [mp.binary(raw(_SLOT7, event)) for event in (store, gone)]
    words = "llm-d's file-system backend: a batch of two elements, each event wrapped in a bin, parent 0."
    meaning = batch(store, gone, rank=None)
    found.add("llm-d-file-system", words, mp.array([mp.float64(1.5), mp.array(events)]), meaning)


def _atom_and_tokenspeed(found: AnyCases) -> None:
    event = stored()
    short = write_event(_SLOT6, event, "unsigned").cut(5).raw
    words = "ROCm ATOM: a stored event that ends after the block size, since the medium is its default."
    found.add("short-atom-stored", words, frame(None, [short]), batch(event))
    words = "TokenSpeed: a stored event of 5 slots, without lora_id, beside a removal of 2."
    gone = removed(block_hashes=[UNSIGNED])
    store = stored(block_hashes=[UNSIGNED])
    payload = frame(None, [write_event(_SLOT6, store, "unsigned").cut(5).raw, raw(_SLOT6, gone)])
    found.add("short-tokenspeed-stored", words, payload, batch(store, gone))
    moved = mp.array([mp.text("BlockTransferred"), mp.array([mp.integer(5)]), mp.text("GPU"), mp.text("CPU"), mp.NIL])
    found.add(
        "unknown-tag-atom-transferred",
        "ROCm ATOM: BlockTransferred, a tag of its own, between a store and a removal.",
        frame(None, [raw(_SLOT7, stored(_SLOT7)), moved, raw(_SLOT7, removed(_SLOT7))]),
        batch(stored(_SLOT7), removed(_SLOT7)),
        skipped=({"event_index": 1, "tag": "BlockTransferred"},),
    )
    twelve = LAYOUTS["slot12"]
    event = stored(twelve, group_idx=0)
    words = "ROCm ATOM: a token offset behind the twelfth slot (ATOM #1316)."
    payload = frame(None, [write_event(twelve, event, "unsigned").plus(mp.integer(4096)).raw])
    extras = ({"code": "extra-slot", "event_index": 0, "slot": 12},)
    found.add("extra-slot-atom-token-offset", words, payload, batch(event), extras=extras)
    clear = mp.array([mp.text("AllBlocksCleared"), mp.text("GPU")])
    words = "ROCm ATOM: a clear with a medium where dynamo has the owner."
    extras = ({"code": "extra-slot", "event_index": 0, "slot": 1},)
    payload = frame(None, [clear])
    found.add(
        "extra-slot-atom-cleared", words, payload, batch({"type": "AllBlocksCleared"}), extras=extras, strict=True
    )
    fields = {
        "type": mp.text("BlockStored"),
        "block_hashes": mp.array([mp.integer(int(A, 16))]),
        "parent_block_hash": mp.NIL,
        "token_ids": mp.array([mp.integer(token) for token in (11, 12, 13, 14)]),
        "block_size": mp.integer(4),
        "lora_id": mp.NIL,
        "medium": mp.text("GPU"),
    }
    words = "Infera's hook for ATOM: map events in a batch of two elements."
    payload = mp.array([mp.float64(1.5), mp.array([key_map(fields)])])
    found.add("infera-atom-map", words, payload, batch(stored(medium="GPU"), rank=None))


def _tensorrt_llm(found: AnyCases) -> None:
    layout = LAYOUTS["vllm-map1"]
    key = mp.mapping(
        [
            (mp.text("type"), mp.text("mm_key")),
            (mp.text("hash"), mp.text("ab" * 32)),
            (mp.text("start_offset"), mp.integer(0)),
        ]
    )
    one = stored(layout, token_ids=[151655] * 4)
    two = stored(layout, block_hashes=[A, B], token_ids=[151655] * 8)
    extras = ({"code": "extra-key", "event_index": 0, "key": "mm_keys"},)
    for slug, words, event in (
        ("", "TensorRT-LLM: images under the key mm_keys, which no dialect has.", one),
        ("-mismatched", "TensorRT-LLM: mm_keys of one block in an event of two (TensorRT-LLM #13815).", two),
    ):
        written = write_event(layout, event, "unsigned").plus(mp.array([mp.array([key])]), "mm_keys")
        found.add(f"extra-key-trtllm-mm-keys{slug}", words, frame(None, [written.raw]), batch(event), extras=extras)
    event = stored(layout, token_ids=["<image>", 12, "<image>", 14])
    words = "TensorRT-LLM: token ids that are strings."
    found.add("trtllm-string-tokens", words, frame(None, [raw(layout, event)]), batch(event), strict=True)


def _mooncake(found: AnyCases) -> None:
    words = (
        "Mooncake's master with its legacy keys: nil block size and tokens, lower-case medium, integer milliseconds."
    )
    store = {"type": "BlockStored", "block_hashes": [UNSIGNED], "token_ids": [], "block_size": 0, "medium": "cpu"}
    payload, names = mooncake("stored", legacy=True)
    known = ("type", "block_size", "lora_name", "medium", "block_hashes", "token_ids", "parent_block_hash")
    extras = _unknown(names, known)
    found.add("mooncake-master-stored", words, payload, batch(store, ts=1700000000123.0), extras=extras, form="signed")
    words = "Mooncake's master with its legacy keys: a removal, with a nil block size that a removal does not have."
    gone = removed(block_hashes=[UNSIGNED], medium="cpu")
    payload, names = mooncake("removed", legacy=True)
    extras = _unknown(names, ("type", "medium", "block_hashes"))
    found.add("mooncake-master-removed", words, payload, batch(gone, ts=1700000000123.0), extras=extras, form="signed")
    slots = [
        mp.text("BlockStoreEvent"),
        mp.text("key-1"),
        mp.array([mp.array([mp.text("replica-1")])]),
        mp.NIL,
        mp.integer(4),
        mp.array([mp.text("9000000000000000001")]),
        mp.NIL,
        mp.array([mp.integer(11)]),
    ]
    found.add(
        "unknown-tag-mooncake-conductor",
        "Mooncake's earlier layout: a tag of its own in a batch of two elements (Mooncake #1251).",
        mp.array([mp.float64(1.5), mp.array([mp.array(slots)])]),
        batch(rank=None),
        skipped=({"event_index": 0, "tag": "BlockStoreEvent"},),
    )


def _others(found: AnyCases) -> None:
    layout = LAYOUTS["vllm-map1"]
    event = stored(medium="cpu", token_ids=[])
    written = write_event(layout, event, "unsigned").having("token_ids", mp.NIL)
    words = "The Ascend plugin: token ids that are nil, and a lower-case medium."
    found.add("vllm-ascend-nil-tokens", words, frame(None, [written.raw]), batch(event))
    found.spoken(
        "vllm-map1",
        "flexkv-stored",
        "FlexKV: the whole prefix in each store, without tokens, on a medium of its own.",
        stored(medium="SSD", token_ids=[], block_size=16),
        stored(medium="SSD", block_hashes=[A, B], token_ids=[], block_size=16),
        sound=False,
    )
    event = stored(layout, group_idx=0)
    written = write_event(layout, event, "unsigned")
    for name, value in (("block_mm_infos", mp.NIL), ("is_eagle", mp.FALSE), ("source_kind", mp.text("mocker"))):
        written = written.plus(value, name)
    extras = _unknown(("block_mm_infos", "is_eagle", "source_kind"), ())
    words = "Dynamo's mocker: keys of its own behind those of vLLM."
    found.add("extra-key-dynamo-mocker", words, frame(None, [written.raw]), batch(event), extras=extras)


def _unknown(names: Sequence[str], known: Sequence[str]) -> tuple[Json, ...]:
    return tuple({"code": "extra-key", "event_index": 0, "key": name} for name in names if name not in known)
