"""Published releases, read and run: their structs, and their own publishers."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import socket
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from kvwire_conform.releases import (
    MODULES,
    Engine,
    ReleaseError,
    ReleaseSource,
    describe,
    fetch_module,
    list_versions,
    load_structs,
)
from tests.real.catalog import RELEASES, REQUIRE, Release, find_release, require_source
from tests.real.driver import PublisherError, RealPublisher

# Layouts, written down by hand: a field with "= None" is optional.
INT_STORED = (
    "block_hashes: list[int]",
    "parent_block_hash: int | None",
    "token_ids: list[int]",
    "block_size: int",
    "lora_id: int | None",
)
INT_REMOVED = ("block_hashes: list[int]",)
ANY_STORED = (
    "block_hashes: list[ExternalBlockHash]",
    "parent_block_hash: ExternalBlockHash | None",
    "token_ids: list[int]",
    "block_size: int",
    "lora_id: int | None",
    "medium: str | None",
)
ANY_REMOVED = ("block_hashes: list[ExternalBlockHash]", "medium: str | None")
MEDIUM = ("medium: str | None = None",)
LORA = ("lora_name: str | None",)
EXTRA = ("extra_keys: list[tuple[Any, ...] | None] | None = None",)
GROUP = ("group_idx: int | None = None",)
KIND = ("kv_cache_spec_kind: str | None = None", "kv_cache_spec_sliding_window: int | None = None")
LOCALITY = ("locality: str | None = None",)
OWNERSHIP = ("ownership: str | None = None",)
SALT_AND_SESSION = ("cache_salt: str | None = None", "session_id: str | None = None")
SESSION = ("session_id: str | None = None",)
LOOKAHEAD = ("lookahead_token_ids: list[list[int]] | None = None",)

SGLANG_MEDIA = ("CPU_PINNED", "DISK", "EXTERNAL", "GPU")
VLLM_MEDIA = ("CPU", "GPU", "STORAGE")
SGLANG_BATCH = ("ts", "events", "attn_dp_rank")
VLLM_BATCH = ("ts", "events", "data_parallel_rank")
OLD_REPLAY = ("seq", "payload")
NEW_REPLAY = ("topic", "seq", "payload")
VLLM_10 = (*ANY_STORED, *LORA, *EXTRA, *GROUP)
VLLM_12 = (*VLLM_10, *KIND)


@dataclass(frozen=True)
class Layout:
    """What one release's module must turn out to be; `header` is how the smallest BlockStored starts on the wire."""

    header: str
    batch: tuple[str, ...]
    stored: tuple[str, ...]
    removed: tuple[str, ...]
    media: tuple[str, ...] = ()
    replay: tuple[str, ...] = OLD_REPLAY
    omit_defaults: bool = True
    salted: tuple[tuple[str, str, str], ...] = ()


def _vllm_map(header: str, stored: tuple[str, ...], removed: tuple[str, ...]) -> Layout:
    return Layout(header, VLLM_BATCH, (*VLLM_12, *stored), (*ANY_REMOVED, *GROUP, *removed), VLLM_MEDIA, NEW_REPLAY)


LAYOUTS: Mapping[tuple[str, str], Layout] = {
    ("slot6-b2", "sglang"): Layout("96", ("ts", "events"), INT_STORED, INT_REMOVED),
    ("slot6-b2", "vllm"): Layout("96", ("ts", "events"), INT_STORED, INT_REMOVED),
    ("slot6", "sglang"): Layout("96", SGLANG_BATCH, INT_STORED, INT_REMOVED),
    ("slot6", "vllm"): Layout("96", VLLM_BATCH, INT_STORED, INT_REMOVED),
    ("slot7", "sglang"): Layout(
        "97", SGLANG_BATCH, (*INT_STORED, *MEDIUM), (*INT_REMOVED, *MEDIUM), SGLANG_MEDIA, omit_defaults=False
    ),
    ("slot7", "vllm"): Layout("97", VLLM_BATCH, ANY_STORED, ANY_REMOVED, ("GPU",)),
    ("slot8", "sglang"): Layout(
        "97",
        SGLANG_BATCH,
        (*INT_STORED, *MEDIUM),
        (*INT_REMOVED, *MEDIUM),
        SGLANG_MEDIA,
        omit_defaults=False,
        salted=(("metadata", 'map {"cache_salt": str}', "required"),),
    ),
    ("slot8-lora", "vllm"): Layout("98", VLLM_BATCH, (*ANY_STORED, *LORA), ANY_REMOVED, ("GPU",)),
    ("slot9", "vllm"): Layout("99", VLLM_BATCH, (*ANY_STORED, *LORA, *EXTRA), ANY_REMOVED, ("GPU",)),
    ("slot10", "vllm"): Layout("9a", VLLM_BATCH, VLLM_10, (*ANY_REMOVED, *GROUP), ("GPU",)),
    ("slot12", "vllm"): Layout("9c", VLLM_BATCH, VLLM_12, (*ANY_REMOVED, *GROUP), ("GPU",)),
    ("sglang-map1", "sglang"): Layout(
        "86", SGLANG_BATCH, (*INT_STORED, *MEDIUM, *SALT_AND_SESSION), (*INT_REMOVED, *MEDIUM), SGLANG_MEDIA
    ),
    ("sglang-map2", "sglang"): Layout(
        "86",
        SGLANG_BATCH,
        (*INT_STORED, *MEDIUM, *SALT_AND_SESSION, "lora_name: str | None = None"),
        (*INT_REMOVED, *MEDIUM),
        SGLANG_MEDIA,
        NEW_REPLAY,
    ),
    ("vllm-map1", "vllm"): Layout("88", VLLM_BATCH, VLLM_12, (*ANY_REMOVED, *GROUP), ("GPU",)),
    ("vllm-map2", "vllm"): _vllm_map("88", LOCALITY, LOCALITY),
    ("vllm-map3", "vllm"): _vllm_map("88", (*LOCALITY, *OWNERSHIP), (*LOCALITY, *OWNERSHIP)),
    ("vllm-map4", "vllm"): _vllm_map("88", (*LOCALITY, *OWNERSHIP, *SESSION), (*LOCALITY, *OWNERSHIP)),
    ("vllm-map5", "vllm"): _vllm_map("de0008", (*LOCALITY, *OWNERSHIP, *SESSION, *LOOKAHEAD), (*LOCALITY, *OWNERSHIP)),
}

each_release = pytest.mark.parametrize("release", RELEASES, ids=str)


def _rows(fields: tuple[str, ...]) -> list[list[str]]:
    rows = []
    for field in fields:
        declared, _, default = field.partition(" = ")
        name, _, annotation = declared.partition(": ")
        rows.append([name, annotation, "optional" if default else "required"])
    return rows


def _smallest(fields: tuple[str, ...]) -> dict[str, Any]:
    values: dict[str, Any] = {"block_hashes": [7], "token_ids": [1, 2], "block_size": 2}
    return {name: values.get(name) for name, _, needed in _rows(fields) if needed == "required"}


@each_release
def test_structs_of_a_release_have_the_layout_of_its_dialect(release: Release) -> None:
    layout = LAYOUTS[release.dialect, release.engine]
    modules_before = set(sys.modules)
    structs = load_structs(require_source(release.engine, release.version))

    expected: dict[str, Any] = {
        "releases": [release.version, release.version],
        "event_encoding": "array" if layout.header.startswith("9") else "map",
        "omit_defaults": layout.omit_defaults,
        "batch_fields": list(layout.batch),
        "events": {"BlockStored": _rows(layout.stored), "BlockRemoved": _rows(layout.removed), "AllBlocksCleared": []},
        "medium_constants": list(layout.media),
        "replay_reply_frames": list(layout.replay),
    }
    if layout.salted:
        expected["salted_BlockStored_appends"] = [list(row) for row in layout.salted]
    assert describe(structs) == expected

    event = structs.event("BlockStored", **_smallest(layout.stored))
    assert msgspec.msgpack.encode(event).hex().startswith(layout.header)
    batch = msgspec.msgpack.decode(structs.encode(structs.batch(1.5, [event])))
    assert [batch[0], len(batch)] == [1.5, len(layout.batch)]

    roots = {name.partition(".")[0] for name in set(sys.modules) - modules_before}
    assert roots.isdisjoint({"sglang", "vllm", "kvwire_release"}), "stand-ins were left behind"


def test_catalog_covers_every_layout_once_written_down() -> None:
    assert {(release.dialect, release.engine) for release in RELEASES} == set(LAYOUTS)


def test_source_tells_where_it_came_from() -> None:
    source = require_source("sglang", "0.4.6.post5")
    assert source.package_file.startswith("sglang-0.4.6.post5")
    assert source.member == MODULES["sglang"]
    assert source.sha256 == hashlib.sha256(source.text.encode()).hexdigest()
    assert len(source.package_sha256) == 64
    assert "text" not in source.provenance()


def test_index_lists_the_versions_of_an_engine() -> None:
    require_source("sglang", "0.4.6.post5")
    versions = list_versions("sglang")
    assert {"0.4.6.post5", "0.5.19", "0.5.23"} <= set(versions)
    assert versions.index("0.5.23") < versions.index("0.5.19")


@pytest.mark.parametrize("salt", ["tenant", ""])
def test_salt_rides_in_a_metadata_map_of_the_salted_class(salt: str) -> None:
    structs = load_structs(require_source("sglang", "0.5.19"))
    event = structs.event("BlockStored", **_smallest(INT_STORED), cache_salt=salt)
    assert type(event) is structs.salted
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(event)) == [
        "BlockStored", [7], None, [1, 2], 2, None, None, {"cache_salt": salt},
    ]  # fmt: skip
    assert type(structs.event("BlockStored", **_smallest(INT_STORED), cache_salt=None)) is structs.events["BlockStored"]


def test_structs_are_read_without_pydantic_too(monkeypatch: pytest.MonkeyPatch) -> None:
    source = require_source("sglang", "0.5.19")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pydantic" else find_spec(name))
    structs = load_structs(source)
    assert "pydantic.BaseModel" in structs.stand_ins
    assert structs.encode(structs.batch(1.5, [structs.event("AllBlocksCleared")])).hex().endswith("c0")


def test_events_that_a_release_cannot_have_are_refused() -> None:
    structs = load_structs(require_source("sglang", "0.4.6.post5"))
    with pytest.raises(ReleaseError, match="BlockRemoved has no medium; its fields: block_hashes"):
        structs.event("BlockRemoved", block_hashes=[1], medium="GPU")
    with pytest.raises(ReleaseError, match="Missing required argument 'block_hashes'"):
        structs.event("BlockRemoved")
    with pytest.raises(ReleaseError, match="no event 'BlockMoved'"):
        structs.event("BlockMoved")
    with pytest.raises(ReleaseError, match="its batch has no DP rank"):
        structs.batch(1.5, [], dp_rank=0)


# Fetching, with small distributions in a folder in place of the index; pip itself is real.

TOY_MODULE = "import msgspec\n"
ENGINE_THAT_MUST_NOT_RUN = "raise SystemExit('the code of a package was run to read it')\n"


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for all there is, and an empty cache."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("KVWIRE_CACHE", str(tmp_path / "cache"))
    return folder


def _metadata(name: str, version: str) -> str:
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"


def _put_wheel(folder: Path, name: str, version: str, files: Mapping[str, str], tag: str = "py3-none-any") -> Path:
    info = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for member, text in files.items():
            wheel.writestr(member, text)
        wheel.writestr(f"{info}/METADATA", _metadata(name, version))
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def _put_sdist(folder: Path, name: str, version: str, files: Mapping[str, str]) -> Path:
    path = folder / f"{name}-{version}.tar.gz"
    build = '[build-system]\nrequires = ["a-package-that-does-not-exist"]\nbuild-backend = "setuptools.build_meta"\n'
    with tarfile.open(path, "w:gz") as sdist:
        for member, text in {
            **files,
            "PKG-INFO": _metadata(name, version),
            "pyproject.toml": build,
            "setup.py": ENGINE_THAT_MUST_NOT_RUN,
        }.items():
            entry = tarfile.TarInfo(f"{name}-{version}/{member}")
            entry.size = len(text.encode())
            sdist.addfile(entry, io.BytesIO(text.encode()))
    return path


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("kind", ["wheel", "sdist", "foreign wheel"])
def test_module_is_read_out_of_whatever_was_published(shelf: Path, engine: Engine, kind: str) -> None:
    files = {MODULES[engine]: TOY_MODULE, f"{engine}/__init__.py": ENGINE_THAT_MUST_NOT_RUN}
    if kind == "sdist":
        package = _put_sdist(shelf, engine, "9.8.7", files)
    else:
        tag = "py3-none-any" if kind == "wheel" else "cp312-cp312-manylinux_2_39_x86_64"
        package = _put_wheel(shelf, engine, "9.8.7", files, tag)

    source = fetch_module(engine, "9.8.7")

    assert source.text == TOY_MODULE
    assert source.package_file == package.name
    assert source.package_sha256 == hashlib.sha256(package.read_bytes()).hexdigest()
    assert source.package_size == package.stat().st_size
    assert source.member.endswith(MODULES[engine])


def test_what_was_read_is_kept_and_checked(shelf: Path, tmp_path: Path) -> None:
    package = _put_wheel(shelf, "sglang", "9.8.7", {MODULES["sglang"]: TOY_MODULE})
    first = fetch_module("sglang", "9.8.7")
    kept = tmp_path / "cache" / "releases" / "sglang" / "9.8.7" / "kv_events.py"
    kept.write_text("import os  # not what was published\n", encoding="utf-8")
    assert fetch_module("sglang", "9.8.7") == first, "a changed copy must be fetched anew"

    package.unlink()
    assert fetch_module("sglang", "9.8.7") == first, "a good copy needs no index"


def test_release_without_kv_events_is_named(shelf: Path) -> None:
    _put_wheel(shelf, "vllm", "0.8.0", {"vllm/__init__.py": ""})
    with pytest.raises(ReleaseError, match=r"vllm 0\.8\.0 .* has no vllm/distributed/kv_events\.py") as caught:
        fetch_module("vllm", "0.8.0")
    assert caught.value.code == "no-such-module"


def test_version_that_does_not_exist_names_near_ones(shelf: Path) -> None:
    _put_wheel(shelf, "sglang", "9.8.7.post1", {MODULES["sglang"]: TOY_MODULE})
    with pytest.raises(ReleaseError, match=r"no sglang 9\.8\.7; .*9\.8\.7\.post1") as caught:
        fetch_module("sglang", "9.8.7")
    assert caught.value.code == "no-such-release"


@pytest.mark.parametrize("version", ["v1.2", "../../etc", "1.0; rm", ""])
def test_version_that_is_none_is_refused(shelf: Path, version: str) -> None:
    with pytest.raises(ReleaseError, match="is not a version") as caught:
        fetch_module("sglang", version)
    assert caught.value.code == "no-such-release"


def test_unknown_engine_is_refused() -> None:
    with pytest.raises(ReleaseError, match="no engine 'tgi'"):
        fetch_module("tgi", "1.0")  # type: ignore[arg-type]


def test_cache_that_cannot_be_written_says_so(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("KVWIRE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ReleaseError, match="set KVWIRE_CACHE") as caught:
        fetch_module("sglang", "9.8.7")
    assert caught.value.code == "cache"


def test_without_an_index_the_error_says_what_to_do(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple")
    with pytest.raises(ReleaseError, match=r"pip config list.*KVWIRE_CACHE") as caught:
        fetch_module("vllm", "0.33.0")
    assert caught.value.code == "release-unreachable"

    monkeypatch.delenv(REQUIRE, raising=False)
    with pytest.raises(pytest.skip.Exception):
        require_source("vllm", "0.33.0")
    monkeypatch.setenv(REQUIRE, "1")
    with pytest.raises(ReleaseError):
        require_source("vllm", "0.33.0")


# Modules that are not what they should be.

KNOWN_SHAPE = """
import msgspec
from {hash_from} import BlockHash

class Event(msgspec.Struct, tag=True): pass
class BlockStored(Event):
    block_hashes: list[BlockHash]
class BlockRemoved(Event): pass
class AllBlocksCleared(Event): pass
class KVEventBatch(msgspec.Struct, array_like=True):
    ts: "float"
    events: list[Event]
class ZmqEventPublisher:
    def _service_replay(self):
        self._replay.send_multipart((client_id, b"", seq, {payload}))
"""


def _source(text: str) -> ReleaseSource:
    return ReleaseSource(
        engine="vllm",
        version="99.0",
        text=text,
        package_file="",
        package_size=0,
        package_sha256="",
        member=MODULES["vllm"],
        sha256="",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import no_such_library\n", "does not run here .*No module named 'no_such_library'"),
        ("from vllm.utils import helper\nhelper()\n", r"vllm\.utils\.helper is a stand-in"),
        ("from vllm.utils import helper\nhelper.port\n", r"vllm\.utils\.helper is a stand-in and has no port"),
        ("import msgspec\n", "defines no msgspec struct BlockStored"),
        (
            KNOWN_SHAPE.format(hash_from="vllm.new.place", payload="buf"),
            r"type of BlockStored\.block_hashes is vllm\.new\.place\.BlockHash",
        ),
        (KNOWN_SHAPE.format(hash_from="builtins", payload="buf").replace("BlockHash", "int"), ""),
        (
            KNOWN_SHAPE.format(hash_from="builtins", payload="other").replace("BlockHash", "int"),
            "found no replay reply",
        ),
    ],
)
def test_module_that_is_not_understood_says_why(text: str, message: str) -> None:
    if not message:
        assert load_structs(_source(text)).fields["BlockStored"][0].annotation == "list[int]"
        return
    with pytest.raises(ReleaseError, match=message) as caught:
        load_structs(_source(text))
    assert caught.value.code == "release-code"
    assert "vllm==99.0" in str(caught.value)


# The real publishers. One array-era and one map-era release of each engine, both replay framings among them.

PUBLISHERS = [
    find_release("sglang", "0.5.19"),
    find_release("sglang", "0.5.23"),
    find_release("vllm", "0.23.0"),
    find_release("vllm", "0.33.0"),
]
each_publisher = pytest.mark.parametrize("release", PUBLISHERS, ids=str)
TOPIC = "kv@pod@model"
END = b"\xff" * 8
WAIT = 10_000


@contextmanager
def _socket(kind: int, endpoint: str | None, *, bind: bool = False) -> Iterator[zmq.Socket[bytes]]:
    assert endpoint is not None
    with zmq.Context() as context, context.socket(kind) as peer:
        peer.linger = 0
        peer.rcvtimeo = WAIT
        if kind == zmq.SUB:
            peer.subscribe(b"")
        if bind:
            peer.bind(endpoint)
        else:
            peer.connect(endpoint)
        yield peer


def _replay(dealer: zmq.Socket[bytes], start: int) -> list[list[bytes]]:
    """The replies to one request, end marker included."""
    dealer.send_multipart([b"", start.to_bytes(8, "big")])
    return _until_end(dealer)


def _until_end(dealer: zmq.Socket[bytes]) -> list[list[bytes]]:
    replies = [dealer.recv_multipart()]
    while replies[-1][-2] != END:
        replies.append(dealer.recv_multipart())
    return replies


def _events(release: Release) -> list[tuple[str, dict[str, Any]]]:
    layout = LAYOUTS[release.dialect, release.engine]
    return [("BlockStored", _smallest(layout.stored)), ("BlockRemoved", _smallest(layout.removed))]


@each_publisher
def test_real_publisher_sends_three_frames_and_replays_them(release: Release) -> None:
    require_source(release.engine, release.version)
    topics = [TOPIC.encode()] if "topic" in LAYOUTS[release.dialect, release.engine].replay else []
    with (
        RealPublisher(release.engine, release.version, topic=TOPIC) as publisher,
        _socket(zmq.SUB, publisher.endpoint) as subscriber,
        _socket(zmq.DEALER, publisher.replay_endpoint) as dealer,
    ):
        first, frames = publisher.publish_until_received(subscriber)
        assert frames == [TOPIC.encode(), first.seq.to_bytes(8, "big"), first.payload]

        sent = [publisher.publish([event], ts=float(number)) for number, event in enumerate(_events(release))]
        live = [subscriber.recv_multipart() for _ in sent]
        assert live == [[TOPIC.encode(), batch.seq.to_bytes(8, "big"), batch.payload] for batch in sent]
        assert [msgspec.msgpack.decode(frames[2])[0] for frames in live] == [0.0, 1.0]
        assert [msgspec.msgpack.decode(frames[2])[2] for frames in live] == [0, 0], "the rank, 0 without DP"

        end = [b"", *(b"" for _ in topics), END, b""]
        replies = _replay(dealer, 0)
        seqs = [int.from_bytes(reply[-2], "big") for reply in replies[:-1]]
        assert seqs == list(range(sent[-1].seq + 1)), "a sequence starts at 0 and counts each batch"
        assert replies[-3:-1] == [[b"", *topics, *frames[1:]] for frames in live]
        assert replies[-1] == end
        assert _replay(dealer, sent[-1].seq) == [replies[-2], end]
        assert _replay(dealer, sent[-1].seq + 1) == [end], "past the end there is only the marker"
        assert publisher.quit() == 0


@each_publisher
def test_real_publisher_outlives_malformed_replay_requests(release: Release) -> None:
    require_source(release.engine, release.version)
    with (
        RealPublisher(release.engine, release.version, buffer_steps=2) as publisher,
        _socket(zmq.DEALER, publisher.replay_endpoint) as dealer,
    ):
        sent = [publisher.publish([("AllBlocksCleared", {})]) for _ in range(4)]
        # Frames beyond or short of [delimiter, seq] get no answer at all; the next request is served.
        for ignored in ([(0).to_bytes(8, "big")], [b"", (0).to_bytes(8, "big"), b"extra"], [b"", b"", b"", b""]):
            dealer.send_multipart(ignored)
        kept = _replay(dealer, 0)
        assert [reply[-2:] for reply in kept[:-1]] == [[b.seq.to_bytes(8, "big"), b.payload] for b in sent[2:]]

        # The seq is read as a big-endian integer of any width, and the delimiter is not looked at.
        for request, expected in (
            ([b"", b""], kept),
            ([b"", b"\x03"], kept[1:]),
            ([b"", bytes(15) + b"\x03"], kept[1:]),
            ([b"not empty", b"\x03"], kept[1:]),
            ([b"", END], kept[-1:]),
            ([b"", b"start at three, please"], kept[-1:]),
        ):
            dealer.send_multipart(request)
            assert _until_end(dealer) == expected, request
        assert publisher.publish([("AllBlocksCleared", {})]).seq == 4, "it is still publishing"


def test_real_publisher_offsets_its_port_by_the_dp_rank() -> None:
    require_source("vllm", "0.23.0")
    with (
        RealPublisher("vllm", "0.23.0", dp_rank=3) as publisher,
        _socket(zmq.SUB, publisher.endpoint) as subscriber,
    ):
        _, frames = publisher.publish_until_received(subscriber)
        assert msgspec.msgpack.decode(frames[2])[2] == 3
        assert msgspec.msgpack.decode(publisher.publish([], dp_rank=1).payload)[2] == 1, "a rank that is set stays"


def test_real_publisher_connects_to_a_concrete_host() -> None:
    require_source("sglang", "0.5.19")
    with _socket(zmq.SUB, "tcp://127.0.0.1:*", bind=True) as subscriber:
        endpoint = subscriber.getsockopt_string(zmq.LAST_ENDPOINT)
        with RealPublisher("sglang", "0.5.19", endpoint=endpoint) as publisher:
            assert publisher.endpoint is None
            first, frames = publisher.publish_until_received(subscriber)
            assert frames[2] == first.payload


def test_real_publisher_starts_again_at_zero_after_a_crash() -> None:
    require_source("sglang", "0.5.23")
    with RealPublisher("sglang", "0.5.23", dp_rank=1) as publisher, _socket(zmq.SUB, publisher.endpoint) as subscriber:
        before, _ = publisher.publish_until_received(subscriber)
        publisher.kill()
        with pytest.raises(PublisherError, match="ended"):
            publisher.publish([])
        endpoint = f"tcp://*:{str(publisher.endpoint).rpartition(':')[2]}"
        with RealPublisher("sglang", "0.5.23", endpoint=endpoint, replay=False) as again:
            assert again.replay_endpoint is None
            assert again.publish([("AllBlocksCleared", {})]).seq == 0
            after, frames = again.publish_until_received(subscriber)
            assert frames[1] == after.seq.to_bytes(8, "big")
            assert before.payload != after.payload, "the rank differs, so this came from the second publisher"


def test_publisher_that_cannot_start_tells_why() -> None:
    require_source("sglang", "0.4.6.post5")
    with pytest.raises(PublisherError, match=r"sglang==0\.4\.6\.post5: its publisher has no DP rank"):
        RealPublisher("sglang", "0.4.6.post5", dp_rank=2).__enter__()
    with pytest.raises(PublisherError, match="its publisher takes no bind"):
        RealPublisher("sglang", "0.4.6.post5", bind=True).__enter__()
    with (
        RealPublisher("sglang", "0.4.6.post5") as publisher,
        pytest.raises(PublisherError, match="BlockRemoved has no medium"),
    ):
        publisher.publish([("BlockRemoved", {"block_hashes": [1], "medium": "GPU"})])
