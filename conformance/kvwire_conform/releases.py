"""Read the event structs out of any published SGLang or vLLM release, and encode with them.

::

    source = fetch_module("sglang", "0.5.19")     # source text, out of the published package (releases_fetch)
    structs = load_structs(source)                # the real classes, run in this process (releases_exec)
    event = structs.event("BlockStored", block_hashes=[1], parent_block_hash=None, token_ids=[5, 6],
                          block_size=2, lora_id=None, medium="GPU", cache_salt="tenant")
    payload = structs.encode(structs.batch(1.5, [event], dp_rank=0))
    describe(structs)                             # the layout as JSON: fields, encoding, media, replay frames

`load_structs` executes downloaded code in this process, with nothing around it: there is no sandbox and no subprocess.
What runs is the one module's top level (class definitions and a logger in every release read so far), from the package
that pip downloaded and verified, or from the cache folder, whose content is checked against the hash kept beside it but
not against someone who can write there. To run a publisher of a release, start a process of its own.
"""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import msgspec

from kvwire_conform import releases_read
from kvwire_conform.releases_exec import StandIn, registered, run_module
from kvwire_conform.releases_fetch import cache_dir, fetch_module, list_versions
from kvwire_conform.releases_source import ENGINES, MODULES, Engine, ReleaseError, ReleaseSource

__all__ = [
    "ENGINES",
    "MODULES",
    "TAGS",
    "Engine",
    "ReleaseError",
    "ReleaseSource",
    "ReleaseStructs",
    "StructField",
    "cache_dir",
    "describe",
    "fetch_module",
    "list_versions",
    "load_structs",
]

TAGS = ("BlockStored", "BlockRemoved", "AllBlocksCleared")
_RANK_FIELDS = ("attn_dp_rank", "data_parallel_rank")


@dataclass(frozen=True)
class StructField:
    """One field of a release's struct.

    Attributes:
        name: as the struct spells it.
        annotation: as the source spells it, with ``Optional[int]`` as ``int | None``.
        required: it has no default, so it must be given, and a map always has its key.
        kind: the type that msgspec resolved the annotation to.
    """

    name: str
    annotation: str
    required: bool
    kind: Any


@dataclass(frozen=True)
class ReleaseStructs:
    """The real classes of one release.

    Attributes:
        source: what they were executed from.
        module: the whole executed module, its publisher included.
        stand_ins: dotted names that the module imported from its engine and that are not the real thing.
        events: per tag, the struct class.
        salted: the BlockStored class of salted events, in releases that have one (SGLang 0.5.18 and 0.5.19): a
            subclass with the same tag and a metadata map behind its last slot.
        batch_class: ``KVEventBatch``.
        fields: per tag, the fields in the order of the wire.
        salted_fields: the fields that `salted` appends, empty where there is none.
        batch_fields: the batch's fields in order: ``ts``, ``events``, then the rank under the engine's own name.
        encoding: ``array`` or ``map``: how one event is written.
        omit_defaults: the struct option of that name; without effect on arrays.
        media: values of the module's medium constants, sorted; the wire allows others.
        replay_frames: frames of one replay reply after the empty delimiter.
    """

    source: ReleaseSource
    module: types.ModuleType
    stand_ins: tuple[str, ...]
    events: Mapping[str, type[msgspec.Struct]]
    salted: type[msgspec.Struct] | None
    batch_class: type[msgspec.Struct]
    fields: Mapping[str, tuple[StructField, ...]]
    salted_fields: tuple[StructField, ...]
    batch_fields: tuple[StructField, ...]
    encoding: Literal["array", "map"]
    omit_defaults: bool
    media: tuple[str, ...]
    replay_frames: tuple[str, ...]

    @property
    def rank_field(self) -> str | None:
        """The batch field of the DP rank; None in releases whose batch has two elements."""
        return next((field.name for field in self.batch_fields if field.name in _RANK_FIELDS), None)

    def event(self, tag: str, /, **fields: Any) -> msgspec.Struct:
        """One event of the release's own class.

        `cache_salt` is put where the release carries it: in its field, or in the metadata of the salted class (SGLang
        0.5.18 and 0.5.19 take that class for any salt but None, the empty one included).

        Raises:
            ReleaseError: ``release-code``: no such tag, a field the release does not have, or a required one missing.
        """
        if tag not in self.events:
            self._refuse(f"no event {tag!r}; it has {', '.join(self.events)}")
        kind = self.events[tag]
        if tag == "BlockStored" and self.salted is not None:
            salt = fields.pop("cache_salt", None)
            if salt is not None:
                kind = self.salted
                name, metadata = self.salted_fields[0].name, self.salted_fields[0].kind
                fields[name] = metadata(cache_salt=salt)
        unknown = [name for name in fields if name not in kind.__struct_fields__]
        if unknown:
            self._refuse(f"{tag} has no {', '.join(unknown)}; its fields: {', '.join(kind.__struct_fields__)}")
        try:
            return kind(**fields)
        except TypeError as error:
            self._refuse(f"{tag}: {error}", error)

    def batch(self, ts: float, events: Sequence[msgspec.Struct], *, dp_rank: int | None = None) -> msgspec.Struct:
        """One batch of the release's own class; `ts` in seconds.

        A publisher fills in a rank that is None, and a batch that is encoded without one has nil there.

        Raises:
            ReleaseError: ``release-code``: a rank for a release whose batch has none.
        """
        rank = self.rank_field
        if rank is not None:
            return self.batch_class(ts, list(events), dp_rank)
        if dp_rank is not None:
            self._refuse("its batch has no DP rank: leave dp_rank at None")
        return self.batch_class(ts, list(events))

    def encode(self, batch: msgspec.Struct) -> bytes:
        """The payload that the release's publisher sends for a batch: msgspec's MessagePack, with no option set."""
        return msgspec.msgpack.Encoder().encode(batch)

    def _refuse(self, problem: str, cause: Exception | None = None) -> NoReturn:
        raise ReleaseError(f"{self.source.release}: {problem}", code="release-code") from cause


def load_structs(source: ReleaseSource) -> ReleaseStructs:
    """Execute a release's KV-events module in this process and take its classes out.

    See the module's docstring for what that means. Nothing stays in ``sys.modules``.

    Raises:
        ReleaseError: ``release-code``: the module does not run here, lacks a class that every known release has, or
            one of its fields has a type that only a stand-in is there for.
    """
    module, stand_ins = run_module(source)
    spelt = releases_read.field_annotations(source)
    events = {tag: _struct(source, module, tag) for tag in TAGS}
    batch_class = _struct(source, module, "KVEventBatch")
    stored = events["BlockStored"]
    salted = next(
        (
            kind
            for kind in vars(module).values()
            if kind is not stored and _is_struct(kind) and issubclass(kind, stored)
        ),
        None,
    )
    with registered(module):
        fields = {tag: _fields(source, kind, spelt) for tag, kind in events.items()}
        batch_fields = _fields(source, batch_class, spelt)
        appended = () if salted is None else _fields(source, salted, spelt)[len(stored.__struct_fields__) :]
    config = stored.__struct_config__
    return ReleaseStructs(
        source=source,
        module=module,
        stand_ins=stand_ins,
        events=events,
        salted=salted,
        batch_class=batch_class,
        fields=fields,
        salted_fields=appended,
        batch_fields=batch_fields,
        encoding="array" if config.array_like else "map",
        omit_defaults=config.omit_defaults,
        media=_media(module),
        replay_frames=releases_read.replay_frames(source),
    )


def describe(structs: ReleaseStructs) -> dict[str, Any]:
    """The layout of a release as JSON: ``releases`` (first and last of the range, here one), ``event_encoding``,
    ``omit_defaults``, ``batch_fields``, ``events`` (per tag rows of name, annotation, required or optional),
    ``medium_constants``, ``replay_reply_frames``, and ``salted_BlockStored_appends`` where a salted class exists."""
    row: dict[str, Any] = {
        "releases": [structs.source.version, structs.source.version],
        "event_encoding": structs.encoding,
        "omit_defaults": structs.omit_defaults,
        "batch_fields": [field.name for field in structs.batch_fields],
        "events": {tag: [_row(field) for field in fields] for tag, fields in structs.fields.items()},
        "medium_constants": list(structs.media),
        "replay_reply_frames": list(structs.replay_frames),
    }
    if structs.salted_fields:
        row["salted_BlockStored_appends"] = [_row(field) for field in structs.salted_fields]
    return row


def _row(field: StructField) -> list[str]:
    annotation = field.annotation
    if _is_struct(field.kind):
        keys = (f'"{item.encode_name}": {item.type.__name__}' for item in msgspec.structs.fields(field.kind))
        annotation = f"map {{{', '.join(keys)}}}"
    return [field.name, annotation, "required" if field.required else "optional"]


def _is_struct(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _struct(source: ReleaseSource, module: types.ModuleType, name: str) -> type[msgspec.Struct]:
    kind = getattr(module, name, None)
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        raise ReleaseError(
            f"{source.release}: {source.member} defines no msgspec struct {name}; the wire has changed beyond what "
            f"this reader knows",
            code="release-code",
        )
    return kind


def _fields(
    source: ReleaseSource, kind: type[msgspec.Struct], spelt: Mapping[str, Mapping[str, str]]
) -> tuple[StructField, ...]:
    found = []
    for item in msgspec.structs.fields(kind):
        owner = next(base.__name__ for base in kind.__mro__ if item.name in spelt.get(base.__name__, {}))
        stood_in = [part.__name__ for part in _parts(item.type) if isinstance(part, StandIn)]
        if stood_in:
            raise ReleaseError(
                f"{source.release}: the type of {kind.__name__}.{item.name} is {stood_in[0]}, which is not in this "
                f"module; teach it to this package's stand-ins",
                code="release-code",
            )
        found.append(
            StructField(
                name=item.encode_name,
                annotation=spelt[owner][item.name],
                required=item.required,
                kind=item.type,
            )
        )
    return tuple(found)


def _parts(kind: Any) -> list[Any]:
    return [kind, *(part for inner in typing.get_args(kind) for part in _parts(inner))]


def _media(module: types.ModuleType) -> tuple[str, ...]:
    named = [value for name, value in vars(module).items() if name.startswith("MEDIUM_") and isinstance(value, str)]
    listed = getattr(module, "StorageMedium", None)
    if isinstance(listed, type) and issubclass(listed, enum.Enum):
        named += [str(member.value) for member in listed]
    return tuple(sorted(set(named)))
