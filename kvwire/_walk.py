"""The authoritative reader: one event, one slot or key at a time, naming whatever is wrong.

The fast path in `kvwire.codec` reads what real engines send; this reads everything else, decides what a deviation
means, and is the only place where that is decided. What the fast path accepts, this accepts with the same result.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kvwire import _hints as hints
from kvwire import _msgpack as mp
from kvwire._fields import (
    CLASSES,
    DECODERS,
    KEYS,
    POSITIONAL,
    REQUIRED,
    TYPES,
    extra_keys_problem,
    fitting,
    prefixed_salts,
    salt_of,
)
from kvwire.dialects import Dialect
from kvwire.dialects.base import METADATA
from kvwire.errors import (
    LimitError,
    MalformedError,
    ShapeError,
    UnknownEventError,
    UnknownFieldError,
    WireError,
)
from kvwire.events import (
    Event,
    Skipped,
)

MAX_FAULTS = 1000
_MIN_EVENT_BYTES = 8
_FREE_EVENTS = 4096
_raws = msgspec.msgpack.Decoder(list[msgspec.Raw])
_AT = re.compile(r" - at `\$((?:\[\d+\]|\[\.\.\.\])+)`$")


@dataclass
class Reading:
    """What a walk found.

    Attributes:
        ts, dp_rank: of the batch; ``ts`` is NaN when it could not be read.
        events: the events that could be read, in order.
        positions: for each of them its index in the batch.
        faults: what was wrong, in order.
        skipped: events with an unknown tag.
        extras: slots and keys that no dialect (or not the dialect told) has, as errors that strict reading raises.
    """

    ts: float = math.nan
    dp_rank: int | None = None
    events: list[Event] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    faults: list[WireError] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    extras: list[WireError] = field(default_factory=list)


def walk(payload: bytes, dialect: Dialect | None = None, *, strict: bool = False, keep_going: bool = False) -> Reading:
    """Read a whole payload.

    Args:
        payload: one msgpack batch.
        dialect: what its slots and keys mean; None reads them as whatever dialect they fit.
        strict: exactly that dialect, nothing missing and nothing extra.
        keep_going: gather the faults instead of raising the first.

    Raises:
        WireError: the first fault; with ``keep_going`` only when not even the list of events can be reached.
    """
    return _Walk(payload, dialect, strict, keep_going).run()


class _Walk:
    def __init__(self, payload: bytes, dialect: Dialect | None, strict: bool, keep_going: bool) -> None:
        self.payload = payload
        self.dialect = dialect
        self.strict = strict
        self.keep_going = keep_going
        self.found = Reading()
        self.fault_count = 0
        self.index: int | None = None
        self.tag: str | None = None

    def run(self) -> Reading:
        try:
            self._batch()
            self._summarise()
        except RecursionError:
            raise LimitError("values are nested too deep", code="too-deep") from None
        except MemoryError as error:
            raise LimitError("the payload needs more memory than there is", code="too-long") from error
        return self.found

    def _error(self, kind: type[WireError], problem: str, **where: Any) -> WireError:
        where.setdefault("event_index", self.index)
        where.setdefault("tag", self.tag)
        where.setdefault("dialect", self.dialect.id if self.dialect else None)
        return kind(problem, **where)

    def _fault(self, error: WireError) -> None:
        if not self.keep_going:
            raise error
        self.fault_count += 1
        if self.fault_count <= MAX_FAULTS:
            self.found.faults.append(error)

    def _summarise(self) -> None:
        """Say how many faults were left out; the events that could be read are all there."""
        if self.fault_count > MAX_FAULTS:
            self.index, self.tag = None, None
            self.found.faults.append(
                self._error(
                    LimitError,
                    f"{self.fault_count - MAX_FAULTS} more faults are left out",
                    code="too-many-faults",
                    expected=f"at most {MAX_FAULTS} in one batch",
                    got=str(self.fault_count),
                )
            )

    def _extra(self, error: WireError) -> None:
        if self.strict:
            self._fault(error)
        elif len(self.found.extras) < MAX_FAULTS:
            self.found.extras.append(error)

    def _batch(self) -> None:
        mp.check_whole(self.payload)
        if mp.kind_of(self.payload[0]) != "array":
            raise self._error(
                ShapeError,
                "the batch is not an array",
                code="batch-not-array",
                expected="an array [ts, events, dp_rank]",
                got=mp.describe(self.payload),
                hint=hints.batch(self.payload),
            )
        parts = mp.elements(self.payload)
        self._arity(len(parts))
        self._timestamp(parts[0])
        self._rank(parts[2] if len(parts) > 2 else None)
        self._events(parts[1])

    def _arity(self, count: int) -> None:
        wanted = len(self.dialect.batch_fields) if self.dialect else None
        exact = self.strict and wanted is not None and count != wanted
        if count < 2 or exact:
            raise self._error(
                ShapeError,
                "the batch has the wrong number of elements",
                code="batch-arity",
                expected=f"{wanted} elements" if exact else "ts and events",
                got=str(count),
                hint=hints.arity(count, wanted),
            )
        if count > 3:
            self._extra(
                self._error(
                    UnknownFieldError,
                    "the batch has more elements than the wire knows",
                    code="extra-slot",
                    slot=3,
                    expected="at most 3 elements",
                    got=str(count),
                )
            )

    def _timestamp(self, value: bytes) -> None:
        ts = mp.scalar(value)
        number = isinstance(ts, float) or (isinstance(ts, int) and not isinstance(ts, bool) and not self.strict)
        if not number or not math.isfinite(ts):
            self._fault(
                self._error(
                    ShapeError,
                    "the timestamp is not a finite number",
                    code="not-finite" if number else "wrong-type",
                    slot=0,
                    key="ts",
                    expected="float seconds since the epoch",
                    got=mp.describe(value),
                )
            )
            return
        self.found.ts = float(ts)

    def _rank(self, value: bytes | None) -> None:
        if value is None:
            return
        rank = mp.scalar(value)
        if rank is not None and (not isinstance(rank, int) or isinstance(rank, bool)):
            self._fault(
                self._error(
                    ShapeError,
                    "the DP rank is not an int",
                    slot=2,
                    key="dp_rank",
                    expected="an int or nil",
                    got=mp.describe(value),
                )
            )
            return
        self.found.dp_rank = rank

    def _events(self, value: bytes) -> None:
        if mp.kind_of(value[0]) != "array":
            raise self._error(
                ShapeError,
                "the events are not an array",
                slot=1,
                key="events",
                expected="an array of events",
                got=mp.describe(value),
            )
        count, _ = mp.header(value)
        if count > _FREE_EVENTS and count * _MIN_EVENT_BYTES > len(value):
            raise self._error(
                LimitError,
                "far more events than bytes to hold them",
                code="too-many",
                slot=1,
                key="events",
                expected=f"at least {_MIN_EVENT_BYTES} bytes an event",
                got=f"{count} events in {len(value)} bytes",
            )
        for index, raw in enumerate(_raws.decode(value)):
            self.index, self.tag = index, None
            before = self.fault_count
            try:
                event = self._event(bytes(raw))
            except WireError as error:
                self._fault(error)
            else:
                if event is not None and self.fault_count == before:
                    self.found.events.append(event)
                    self.found.positions.append(index)
        self.index, self.tag = None, None

    def _event(self, value: bytes) -> Event | None:
        kind = mp.kind_of(value[0])
        if kind == "bin" and not self.strict:
            value = self._unwrapped(value)
            kind = mp.kind_of(value[0])
        if kind not in ("array", "map"):
            raise self._error(
                ShapeError,
                "the event is neither an array nor a map",
                code="event-not-array-or-map",
                expected="an array [tag, …] or a map {type: tag, …}",
                got=mp.describe(value),
                hint=hints.event(kind),
            )
        if self.dialect is not None and self.dialect.encoding.value != kind:
            raise self._error(
                ShapeError,
                f"the event is {_a(kind)}",
                code="wrong-encoding",
                expected=f"{_a(self.dialect.encoding.value)}, as {self.dialect.id} writes events",
                got=mp.describe(value),
                hint=hints.encoding(self.dialect.encoding.value),
            )
        return self._array_event(value) if kind == "array" else self._map_event(value)

    def _unwrapped(self, value: bytes) -> bytes:
        inner = mp.unwrap_bin(value)
        try:
            mp.check_whole(inner)
        except WireError as error:
            raise self._error(
                ShapeError,
                "the event is a bin that holds no msgpack value",
                code="event-not-array-or-map",
                expected="an array [tag, …] or a map {type: tag, …}",
                got=mp.describe(value),
                hint=str(error),
            ) from error
        return inner

    def _known_tag(self, value: bytes, **where: Any) -> str | None:
        tag = mp.scalar(value)
        if not isinstance(tag, str):
            raise self._error(
                ShapeError,
                "the tag is not a str",
                code="bad-tag",
                expected="BlockStored, BlockRemoved or AllBlocksCleared",
                got=mp.describe(value),
                **where,
            )
        self.tag = tag
        if tag in CLASSES:
            return tag
        if self.strict:
            raise self._error(
                UnknownEventError,
                "no dialect knows this tag",
                expected=", ".join(CLASSES),
                got=mp.describe(value),
                hint="a newer or a foreign producer; tolerant decoding skips the event and keeps its neighbours",
                **where,
            )
        assert self.index is not None
        self.found.skipped.append(Skipped(self.index, tag[:80]))
        return None

    def _array_event(self, value: bytes) -> Event | None:
        slots = mp.elements(value)
        if not slots:
            raise self._error(
                ShapeError, "the event has no tag", code="bad-tag", slot=0, expected="a tag", got="an empty array"
            )
        tag = self._known_tag(slots[0], slot=0)
        if tag is None:
            return None
        names = self._slot_names(tag, slots)
        values: dict[str, Any] = {}
        for slot, name in enumerate(names, start=1):
            if slot >= len(slots):
                break
            read = self._metadata if name == METADATA or self._is_metadata(tag, slot, slots[slot]) else self._value
            key, found = read(slots[slot], name, slot=slot)
            if key == "cache_salt" and values.get(key) not in (None, found) and found is not None:
                raise self._conflict(slot)
            values[key] = found if key not in values or found is not None else values[key]
        for slot in range(len(names) + 1, len(slots)):
            self._refuse_salt(slots[slot], slot, len(names))
            self._extra(
                self._error(
                    UnknownFieldError,
                    f"the event has {len(slots)} slots",
                    code="extra-slot",
                    slot=slot,
                    expected=f"at most {len(names) + 1} slots",
                    got=mp.describe(slots[slot]),
                    hint=hints.extra_slot(slot, mp.kind_of(slots[slot][0])),
                )
            )
        return self._build(tag, values, len(slots))

    def _slot_names(self, tag: str, slots: list[bytes]) -> tuple[str, ...]:
        if self.dialect is None:
            return fitting(tag, slots)
        fields = self.dialect.events[tag].fields
        for slot in range(len(fields) + 1, len(slots)):
            self._refuse_salt(slots[slot], slot, len(fields))
        if self.strict:
            self._all_slots(tag, len(slots))
        return tuple(f.name for f in fields)

    def _refuse_salt(self, value: bytes, slot: int, known: int) -> None:
        """Passing over a salt would make a tenant's own blocks anybody's."""
        if mp.kind_of(value[0]) == "map" and salt_of(value) is not None:
            raise self._error(
                ShapeError,
                "a salt in a slot that the dialect does not have",
                code="foreign-salt",
                slot=slot,
                expected=f"at most {known + 1} slots",
                got=mp.describe(value),
                hint=hints.extra_slot(slot, "map"),
            )

    def _all_slots(self, tag: str, count: int) -> None:
        assert self.dialect is not None
        for f in self.dialect.events[tag].fields:
            if f.always and f.slot is not None and f.slot >= count:
                raise self._error(
                    ShapeError,
                    f"the event ends after {count} slots",
                    code="missing-slot",
                    slot=f.slot,
                    key=f.name,
                    expected=f"{self.dialect.events[tag].slots} slots",
                    got=str(count),
                    hint=hints.short(count),
                )

    def _is_metadata(self, tag: str, slot: int, value: bytes) -> bool:
        return self.dialect is None and tag == "BlockStored" and slot == 7 and mp.kind_of(value[0]) == "map"

    def _metadata(self, value: bytes, name: str, *, slot: int) -> tuple[str, str | None]:
        kind = mp.kind_of(value[0])
        if kind == "nil" and not self.strict:
            return "cache_salt", None
        if kind != "map":
            raise self._error(
                ShapeError,
                "the metadata is not a map",
                slot=slot,
                key=METADATA,
                expected='a map {"cache_salt": str}',
                got=mp.describe(value),
                hint=hints.metadata(slot, kind),
            )
        salt = None
        seen: set[Any] = set()
        for raw_key, raw in mp.pairs(value):
            key = self._key(raw_key, slot=slot)
            if key in seen:
                raise self._duplicate(key, slot=slot)
            seen.add(key)
            if key == "cache_salt":
                salt = self._typed(raw, "cache_salt", slot=slot)
            else:
                self._extra(
                    self._error(
                        UnknownFieldError,
                        "an unknown metadata key",
                        code="extra-key",
                        slot=slot,
                        key=str(key)[:80],
                        expected="cache_salt",
                        got=mp.describe(raw),
                    )
                )
        if self.strict and salt is None:
            raise self._error(
                ShapeError,
                "the metadata has no cache_salt",
                code="missing-key",
                slot=slot,
                key=METADATA,
                expected='a map {"cache_salt": str}',
                got=mp.describe(value),
            )
        return "cache_salt", salt

    def _key(self, raw_key: bytes, slot: int | None = None) -> Any:
        """A key of a map. One that is garbled may have been any, a salt's among them, so it is not passed over."""
        key = mp.scalar(raw_key)
        if isinstance(key, bytes) and mp.kind_of(raw_key[0]) == "str":
            raise self._error(
                MalformedError,
                "a key is text that is not UTF-8",
                code="bad-utf8",
                slot=slot,
                key=raw_key.hex()[:40],
                expected="UTF-8",
                got="other bytes",
            )
        return key

    def _map_event(self, value: bytes) -> Event | None:
        keyed: dict[Any, bytes] = {}
        for raw_key, raw in mp.pairs(value):
            key = self._key(raw_key)
            if key in keyed:
                raise self._duplicate(key)
            keyed[key] = raw
        raw_tag = keyed.pop("type", None)
        if raw_tag is None:
            raise self._error(
                ShapeError,
                "the event has no key type",
                code="missing-key",
                key="type",
                expected="a tag",
                got="keys " + ", ".join(str(key)[:40] for key in list(keyed)[:8]),
                hint=hints.no_type(keyed),
            )
        tag = self._known_tag(raw_tag, key="type")
        if tag is None:
            return None
        known = KEYS[tag]
        if self.dialect is not None and self.strict:
            known = frozenset(f.name for f in self.dialect.events[tag].fields)
        values: dict[str, Any] = {}
        for key, raw in keyed.items():
            if key in known:
                values[key] = self._value(raw, key)[1]
            else:
                self._extra(
                    self._error(
                        UnknownFieldError,
                        "the event has a key that the dialect does not have",
                        code="extra-key",
                        key=str(key)[:80],
                        expected="one of " + ", ".join(sorted(known)),
                        got=mp.describe(raw),
                        hint=hints.extra_key(key),
                    )
                )
        if self.dialect is not None and self.strict:
            for f in self.dialect.events[tag].fields:
                if f.always and f.name not in values:
                    raise self._missing_key(f.name)
        return self._build(tag, values, None)

    def _missing_key(self, name: str) -> WireError:
        return self._error(
            ShapeError,
            f"the event has no key {name}",
            code="missing-key",
            key=name,
            expected=TYPES[name][1],
            got="no such key",
            hint=hints.missing_key(name),
        )

    def _duplicate(self, key: Any, **where: Any) -> WireError:
        return self._error(
            ShapeError,
            "a key stands twice",
            code="duplicate-key",
            key=str(key)[:80],
            expected="each key once",
            got="it again",
            hint="decoders disagree on which one counts, so neither can be trusted",
            **where,
        )

    def _conflict(self, slot: int | None) -> WireError:
        return self._error(
            ShapeError,
            "two salts in one event",
            code="conflicting-salt",
            slot=slot,
            key="cache_salt",
            expected="one salt",
            got="two different ones",
            hint="tenants would share cache whichever is taken",
        )

    def _value(self, value: bytes, name: str, *, slot: int | None = None) -> tuple[str, Any]:
        if value == b"\xc0" and not self.strict:
            if name == "token_ids":
                return name, []
            if name == "block_size":
                return name, 0
        return name, self._typed(value, name, slot=slot)

    def _typed(self, value: bytes, name: str, *, slot: int | None = None) -> Any:
        expected = TYPES[name][1]
        try:
            found = DECODERS[name].decode(value)
        except UnicodeDecodeError:
            raise self._bad_text(name, slot) from None
        except msgspec.ValidationError as error:
            raise self._error(
                ShapeError,
                f"{name} has the wrong type{_inside(error)}",
                slot=slot,
                key=name,
                expected=expected,
                got=_got(value, error),
                hint=hints.wrong_type(name, slot, mp.kind_of(value[0]), str(error)),
            ) from None
        except msgspec.DecodeError as error:
            if "utf-8" in str(error).lower():
                raise self._bad_text(name, slot) from None
            raise self._error(
                ShapeError,
                f"{name} has a value that this wire does not have",
                slot=slot,
                key=name,
                expected=expected,
                got=str(error),
            ) from None
        except RecursionError:
            raise self._deep(name, slot, expected) from None
        problem = extra_keys_problem(found) if name == "extra_keys" else None
        if problem is not None:
            raise self._error(
                ShapeError, f"extra_keys holds {problem}", slot=slot, key=name, expected=expected, got=problem
            )
        return found

    def _deep(self, name: str, slot: int | None, expected: str) -> WireError:
        return self._error(
            LimitError,
            f"{name} is nested too deep",
            code="too-deep",
            slot=slot,
            key=name,
            expected=expected,
            got="hundreds of levels",
        )

    def _bad_text(self, name: str, slot: int | None) -> WireError:
        return self._error(
            MalformedError,
            f"{name} has text that is not UTF-8",
            code="bad-utf8",
            slot=slot,
            key=name,
            expected="UTF-8",
            got="other bytes",
            hint="a digest belongs in a bin, not in a str",
        )

    def _build(self, tag: str, values: dict[str, Any], slots: int | None) -> Event:
        for name in REQUIRED[tag]:
            if name not in values:
                if slots is None:
                    raise self._missing_key(name)
                slot = POSITIONAL[tag].index(name) + 1
                raise self._error(
                    ShapeError,
                    f"the event ends after {slots} slots",
                    code="missing-slot",
                    slot=slot,
                    key=name,
                    expected=TYPES[name][1],
                    got="the end of the event",
                    hint=hints.short(slots),
                )
        if tag == "BlockStored":
            values.setdefault("parent_block_hash", None)
            told = values.get("cache_salt")
            salts = prefixed_salts(values.get("extra_keys")) | ({told} if told is not None else set())
            if len(salts) > 1:
                raise self._conflict(None)
            if salts:
                values["cache_salt"] = salts.pop()
        event: Event = CLASSES[tag](**values)
        return event


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def _inside(error: msgspec.ValidationError) -> str:
    found = _AT.search(str(error))
    return f" at {found[1]}" if found else ""


def _got(value: bytes, error: msgspec.ValidationError) -> str:
    words = mp.describe(value)
    if _AT.search(str(error)):
        reason = _AT.sub("", str(error)).replace("`", "")
        return f"{words}: {reason[0].lower()}{reason[1:]}"
    return words
