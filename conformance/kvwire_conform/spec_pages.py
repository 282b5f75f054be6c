"""The pages of ``spec/dialects/``, written from the registry."""

from __future__ import annotations

from collections.abc import Mapping

from kvwire.codec import encode
from kvwire.dialects import DIALECTS, Dialect, Encoding, EventLayout, Framing
from kvwire.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from kvwire_conform.messages import explain

_NOTES: Mapping[str, str] = {
    "slot6": "vLLM up to 0.10.1 numbers LoRA adapters in `lora_id`, in the order in which they were loaded.",
    "slot7": "SGLang lets `medium` default to nil; vLLM always sets it.",
    "slot8": "An unsalted batch is a `slot7` batch, byte for byte. Only the salted stored event has an eighth slot, and no "
    "release's own typed decoder reads it. **Slot 7 is a map here and a string in `slot8-lora` and later: a router that "
    "expects a string there rejects the whole batch, siblings included.**",
    "slot9": "`extra_keys` is there also when there are none: an array of nil, one for each block.",
    "slot10": "A hybrid model publishes each KV cache group by itself; the groups share hashes. The kind of a group is not "
    "on the wire yet: fewer hashes than blocks are the only sign of a sliding window.",
    "dynamo": "No engine's release emits it: it is the positional layout that the Dynamo router reads, proposed for SGLang. A salted "
    "event carries the salt twice.",
    "sglang-map2": 'With `"format": "dynamo"` the same keys carry namespaced hashes; the layout does not change.',
    "vllm-map5": "A stored event has 16 possible keys, so msgspec writes a **map16** header (`de 00 08` for 8 keys) however "
    "many there are. A decoder that assumes a fixmap breaks.",
}

_FRAMING = {
    Framing.SEQ_PAYLOAD: '`""`, seq, payload',
    Framing.TOPIC_SEQ_PAYLOAD: '`""`, topic, seq, payload',
}


def pages() -> dict[str, str]:
    """Every page by its file name, the index included."""
    return {"README.md": _index(), **{f"{d.id}.md": _page(d) for d in DIALECTS.values()}}


def _index() -> str:
    rows = [
        "# Dialects",
        "",
        "Oldest first within each family. Written from the registry in `kvwire/dialects/`; a test holds the two together.",
        "",
        "| dialect | events | stored | emitted by |",
        "| --- | --- | --- | --- |",
    ]
    for d in DIALECTS.values():
        stored = d.events["BlockStored"]
        longest = len(stored.fields) + 1
        slots = f"{stored.slots}" if stored.slots == longest else f"{stored.slots}, salted {longest}"
        size = f"{slots} slots" if d.encoding is Encoding.ARRAY else f"{longest} keys at most"
        rows.append(f"| [`{d.id}`]({d.id}.md) | {d.encoding.value} | {size} | {_emitters(d)} |")
    return "\n".join([*rows, ""])


def _emitters(d: Dialect) -> str:
    return d.emitters or "no release: proposed"


def _page(d: Dialect) -> str:
    lines = [
        f"# `{d.id}`",
        "",
        f"{d.summary[0].upper()}{d.summary[1:]}.",
        "",
        f"- Emitted by: {_emitters(d)}",
        f"- Batch: `[{', '.join(d.batch_fields)}]`",
        f"- Events: {'arrays, slots by position' if d.encoding is Encoding.ARRAY else 'maps, keys by name'}",
        f"- Replay replies: {_FRAMING[d.framing]}",
        f"- Cache salt: {d.salt}",
        f"- LoRA name: {d.lora}",
        f"- Media: {', '.join(f'`{m}`' for m in d.media) or 'none'}",
    ]
    if d.aliases:
        lines.append(f"- Also called: {', '.join(f'`{a}`' for a in d.aliases)}")
    if d.id in _NOTES:
        lines += ["", _NOTES[d.id]]
    for layout in d.events.values():
        lines += ["", f"## {layout.tag}", "", *_table(d, layout)]
    lines += ["", "## Example", "", *_example(d), ""]
    return "\n".join(lines)


def _table(d: Dialect, layout: EventLayout) -> list[str]:
    if d.encoding is Encoding.ARRAY:
        rows = [
            "| slot | name | type | nil | written |",
            "| --- | --- | --- | --- | --- |",
            f'| 0 | tag | `"{layout.tag}"` | no | always |',
        ]
        for f in layout.fields:
            written = "always" if f.always else "on salted events only"
            rows.append(f"| {f.slot} | `{f.name}` | {f.meaning} | {_nil(f.nullable)} | {written} |")
        return rows
    rows = [
        "| key | type | nil | written |",
        "| --- | --- | --- | --- |",
        f'| `type` | `"{layout.tag}"` | no | always |',
    ]
    for f in layout.fields:
        written = "always" if f.always else "unless nil"
        rows.append(f"| `{f.name}` | {f.meaning} | {_nil(f.nullable)} | {written} |")
    return rows


def _nil(nullable: bool) -> str:
    return "may be" if nullable else "no"


def example(d: Dialect) -> EventBatch:
    """A small batch of one stored, one removed and one cleared event, salted where the dialect has a place for it."""
    stored = BlockStored(
        block_hashes=[-2996176139226498207, 7],
        parent_block_hash=None,
        token_ids=[11, 12, 13, 14],
        block_size=2,
        medium="GPU" if d.carries("BlockStored", "medium") else None,
        lora_name="adapter-a" if d.carries("BlockStored", "lora_name") else None,
        cache_salt="tenant-a" if d.salted_fields else None,
    )
    rank = 0 if "dp_rank" in d.batch_fields else None
    return EventBatch(1700000000.5, [stored, BlockRemoved([7], stored.medium), AllBlocksCleared()], rank)


def _example(d: Dialect) -> list[str]:
    payload = encode(example(d), d)
    lines = ["One batch, whole:", "", "```", *_wrapped(payload.hex(" ")), "```", "", "Its events:", "", "```"]
    for index in range(3):
        lines += [f"events[{index}]", *(line.rstrip() for line in explain(payload, index))]
    return [*lines, "```"]


def _wrapped(text: str, width: int = 96) -> list[str]:
    return [text[at : at + width].rstrip() for at in range(0, len(text), width)]


def main() -> None:
    """Write the pages into ``spec/dialects/`` of the working directory."""
    from pathlib import Path

    for name, text in pages().items():
        (Path("spec/dialects") / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
