"""Writes ``golden/hashing/``: run ``python -m tests.hashing_golden``.

Every digest and hash comes from an engine's own code or from a capture of a running engine, never from kvwire. The bytes
that were hashed are kvwire's, and are written only if they give the engine's digest. Values of Dynamo come from its Python
package, which is not a dependency: name a Python that has ``ai-dynamo-runtime`` in KVWIRE_DYNAMO_PYTHON, else the file is
left as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cbor2
import xxhash

import kvwire
from kvwire.hashing import as_hex, as_int64, as_uint64
from kvwire.hashing.tokens import TokenView, pages
from tests import hashing_engines as engines
from tests.conftest import CAPTURES, ROOT

FOLDER = ROOT / "golden" / "hashing"
FORMAT = "kvwire-hashing/1"
SUITE = 1
SAFE = (1 << 53) - 1

Case = dict[str, Any]


def forms(block_hash: int) -> dict[str, str]:
    """One hash in its three 64-bit forms, as strings: JSON numbers lose precision above 2**53."""
    return {"hex": as_hex(block_hash), "int64": str(as_int64(block_hash)), "uint64": str(as_uint64(block_hash))}


def number(value: int) -> int | str:
    """A token id; one that JSON numbers cannot hold everywhere is a decimal string."""
    return value if value <= SAFE else str(value)


def case(name: str, description: str, given: dict[str, Any], expected: dict[str, Any], source: dict[str, Any]) -> Case:
    return {"id": name, "description": description, "input": given, "expected": expected, "source": source}


# SGLang


def sglang_cases() -> Iterator[Case]:
    files = engines.modules("sglang", "0.5.23")
    native, utils = engines.sglang_native(), engines.sglang_utils()
    source = files["binding"].source("hash_pages_to_hex_blob")

    def pages_case(
        name: str, text: str, tokens: Sequence[int], size: int, prior: str | None = None, pairs: bool = False
    ) -> Case:
        key = engines.Key(token_ids=array("q", tokens), is_bigram=pairs, extra_key=None, cache_salt=None)
        keys = native.get_native_hash(key, prior and bytes.fromhex(prior), size)
        given = {
            "tokens": [number(t) for t in tokens],
            "page_size": size,
            "bigram": pairs,
            "prior": prior,
            "cache_salt": None,
        }
        return case(name, text, given, chain(key.token_ids, size, pairs, prior, keys), source)

    first = [1, 2, 3, 4, 5, 6, 7, 8]
    yield pages_case("pages-of-4", "two whole pages from the root", first, 4)
    yield pages_case("pages-of-1", "a page size of 1", [7, 7, 7], 1)
    yield pages_case("four-pages", "four pages", [t for b in (11, 21, 31, 41) for t in range(b, b + 4)], 4)
    yield pages_case("partial-page", "the last page has fewer tokens than the page size", first[:6], 4)
    yield pages_case("u32-limits", "token 0 and the largest token that is hashed in four bytes", [0, (1 << 32) - 1], 2)
    yield pages_case(
        "wide-page", "a token above u32 widens its own page, not its neighbours", [1, 2, 1 << 32, 3, 4, 5], 2
    )
    yield pages_case("wide-largest", "the largest token, 2**63-1", [(1 << 63) - 1, 0], 2)
    yield pages_case("empty", "no tokens: no pages", [], 4)
    yield pages_case("bigram-of-2", "five tokens make four pairs", [1, 2, 3, 4, 5], 2, pairs=True)
    yield pages_case("bigram-of-1", "a page of one pair", [1, 2, 3], 1, pairs=True)
    yield pages_case("bigram-partial", "the last page has fewer pairs", [1, 2, 3, 4], 2, pairs=True)
    yield pages_case(
        "bigram-wide", "a token above u32 widens both pages whose pairs hold it", [1, 2, 1 << 40, 4, 5], 2, pairs=True
    )
    whole = pages_case("", "", first, 4)["expected"]["pages"]
    yield pages_case(
        "continued", "the second page of pages-of-4, from the digest of the first", first[4:], 4, whole[0]["digest"]
    )

    salted = files["utils"].source("compute_node_event_hash_values")
    for name, salt in (
        ("salt-tenant", "tenant"),
        ("salt-tenant-a", "tenant-a"),
        ("salt-not-ascii", "mandant-ä-租户-🔑"),
    ):
        node = engines.node(engines.node(None, [], None, salt), first, None, salt)
        keys = utils.compute_node_event_hash_values(node, 4)
        seed = hashlib.sha256(b"sglang-cache-salt-v1\0" + salt.encode()).hexdigest()
        given = {"tokens": first, "page_size": 4, "bigram": False, "prior": None, "cache_salt": salt}
        yield case(
            name, "a salted chain starts from the salt's seed", given, chain(first, 4, False, seed, keys), salted
        )

    older = engines.sglang_python("0.5.8")
    loose = [(1, 2), (9, 8), (0, 7)]
    got, prior = [], None
    for start in range(0, len(loose), 2):
        prior = older.get_hash_str(loose[start : start + 2], prior)
        got.append(prior)
    given = {"pairs": loose, "page_size": 2, "bigram": True, "prior": None, "cache_salt": None}
    text = "pairs as events carry them; they need not overlap to be hashed"
    source = engines.modules("sglang", "0.5.8")["storage"].source("get_hash_str")
    yield case("bigram-pairs", text, given, chain(loose, 2, True, None, got), source)


def chain(tokens: Any, size: int, pairs: bool, prior: str | None, keys: Sequence[str]) -> dict[str, Any]:
    """The expectation of a page chain; the bytes of each page are checked against the engine's digest."""
    view = TokenView(tokens, bigram=pairs)
    found, before = [], prior
    for (start, stop), key in zip(pages(view.length, size), keys, strict=True):
        packed = view.packed(start, stop)
        body = b"\xff" + view.wide(start, stop) if packed is None else bytes(packed)
        assert hashlib.sha256(bytes.fromhex(before or "") + body).hexdigest() == key
        found.append({"hashed_after_prior": body.hex(), "digest": key, "event_hash": forms(int(key[:16], 16))})
        before = key
    return {"prior": prior, "pages": found}


def storage_cases() -> Iterator[Case]:
    utils = engines.sglang_utils()
    source = engines.modules("sglang", "0.5.23")["utils"].source("storage_namespace_seed", "get_storage_hash_str")
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    for name, extra_key, salt in NAMESPACES:
        key = engines.Key(token_ids=array("q", tokens), is_bigram=False, extra_key=extra_key, cache_salt=salt)
        seed = utils.storage_namespace_seed(extra_key, salt)
        given = {"tokens": tokens, "page_size": 4, "extra_key": extra_key, "cache_salt": salt}
        expected = chain(tokens, 4, False, seed, utils.get_storage_hash_str(key, None, page_size=4))
        for page in expected["pages"]:
            del page["event_hash"]
        yield case(f"storage-{name}", "storage keys are whole digests in hex", given, expected, source)


NAMESPACES: tuple[tuple[str, str | None, str | None], ...] = (
    ("none", None, None),
    ("extra-key", "ek", None),
    ("salt", None, "tenant-a"),
    ("both", "ek", "tenant-a"),
    ("a-bc", "a", "bc"),
    ("ab-c", "ab", "c"),
    ("empty-extra-key", "", "tenant-a"),
    ("not-ascii", "schlüssel", "租户"),
)


def namespace_cases() -> Iterator[Case]:
    wire = engines.sglang_wire()
    source = engines.modules("sglang", "0.5.23")["wire"].source("kv_event_namespace_seed", "namespaced_block_hash")
    hashes = [-3488128144981237669, 5674439469042975057, 0, -1, (1 << 63) - 1, -(1 << 63)]
    for name, extra_key, salt in NAMESPACES:
        seed = wire.kv_event_namespace_seed(extra_key=extra_key, cache_salt=salt)
        given: dict[str, Any] = {"extra_key": extra_key, "cache_salt": salt}
        given["event_hashes"] = [forms(value) for value in hashes]
        moved = [forms(wire.namespaced_block_hash(value, namespace_seed=seed)) for value in hashes]
        expected = {"seed": seed and seed.hex(), "namespaced": moved}
        yield case(f"namespace-{name}", "event hashes moved into a namespace", given, expected, source)

    code = engines.sglang_recorder()
    source = engines.modules("sglang", "0.5.23")["events"].source("KVCacheEventRecorder.record_store")
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    adapter = "ek" + "0123456789abcdef" * 2
    for name, text, dynamo, extra_key, salt, lora in (
        ("default-extra-key", "the default format leaves an extra_key out of the hash", False, "ek", None, None),
        (
            "default-salt",
            "the default format chains from the salt and does not namespace",
            False,
            None,
            "tenant-a",
            None,
        ),
        (
            "default-lora",
            "the default format namespaces a LoRA request by its extra_key",
            False,
            adapter,
            None,
            "adapter",
        ),
        ("default-lora-salt", "… and never by its salt, which its chain holds", False, adapter, "tenant-a", "adapter"),
        ("dynamo-plain", "the dynamo format leaves a request without a namespace alone", True, None, None, None),
        (
            "dynamo-salt",
            "the dynamo format namespaces by the salt on top of the salted chain",
            True,
            None,
            "tenant-a",
            None,
        ),
        ("dynamo-both", "the dynamo format namespaces by both", True, "ek", "tenant-a", None),
    ):
        names = code.KvEventLoraNames()
        if lora is not None:
            names._names[extra_key] = lora
        recorder = code.KVCacheEventRecorder(enabled=True, page_size=4, dynamo_format=dynamo, lora_names=names)
        parent = engines.node(engines.node(None, [], extra_key, salt), tokens[:4], extra_key, salt)
        child = engines.node(parent, tokens[4:], extra_key, salt)
        for node in (parent, child):
            recorder.record_store(node)
        (event,) = recorder.take()
        assert (event.lora_name, event.token_ids, event.block_size) == (lora, tokens, 4)
        given = {
            "tokens": tokens,
            "page_size": 4,
            "format": "dynamo" if dynamo else "default",
            "extra_key": extra_key,
            "cache_salt": salt,
            "lora_name": lora,
        }
        expected = {"parent": event.parent_block_hash, "event_hashes": [forms(value) for value in event.block_hashes]}
        yield case(f"event-{name}", text, given, expected, source)


def python_cases() -> Iterator[Case]:
    for name in ("sglang-0.4.10-prefix-ps2-radix", "sglang-0.4.10-partial-ps4-radix"):
        for seq, index, event in stored(name, limit=2):
            given = {"tokens": event.token_ids, "page_size": event.block_size}
            expected = {
                "parent_block_hash": published(event.parent_block_hash),
                "event_hashes": [published(value) for value in event.block_hashes],
            }
            source = {"kind": "capture", "file": f"{name}.jsonl", "seq": seq, "event": index}
            yield case(f"{name}-{seq}-{index}", "CPython's hash of a page's tuple", given, expected, source)


# vLLM

ENCODERS: dict[str, Callable[[Any], bytes]] = {
    "sha256": lambda value: pickle.dumps(value, protocol=5),
    "sha256_cbor": lambda value: cbor2.dumps(value, canonical=True),
}


def digest(algorithm: str, data: bytes) -> bytes:
    return xxhash.xxh3_128_digest(data) if algorithm.startswith("xxhash") else hashlib.sha256(data).digest()


def vllm_cases() -> Iterator[Case]:
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    for algorithm, seed in (
        ("sha256", None),
        ("sha256", "0"),
        ("sha256", "42"),
        ("sha256_cbor", None),
        ("sha256_cbor", "0"),
        ("sha256_cbor", "42"),
        ("xxhash", "0"),
        ("xxhash_cbor", "0"),
    ):
        name = f"{algorithm}-seed-{seed or 'default'}".replace("_", "-")
        text = "two blocks; " + ("PYTHONHASHSEED unset" if seed is None else f"PYTHONHASHSEED={seed}")
        yield vllm_case(name, text, "0.33.0", algorithm, seed, tokens, 4)
    yield vllm_case(
        "sha256-large-tokens",
        "tokens around the widths of pickle's integers",
        "0.33.0",
        "sha256",
        "0",
        [0, 255, 256, 65535, 65536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1],
        4,
    )
    yield vllm_case(
        "sha256-cbor-large-tokens",
        "tokens around the widths of CBOR's integers",
        "0.33.0",
        "sha256_cbor",
        "0",
        [0, 23, 24, 255, 256, 65535, 65536, (1 << 32) - 1],
        4,
    )
    for version, era in (("0.30.0", "bare"), ("0.33.0", "tagged")):
        for algorithm in ("sha256", "sha256_cbor"):
            for name, given in EXTRAS.items():
                yield vllm_case(
                    f"{era}-{algorithm}-{name}".replace("_", "-"),
                    f"extra keys, hashed {era}",
                    version,
                    algorithm,
                    "0",
                    tokens,
                    4,
                    **given,
                )
    for ahead in (1, 2):
        for name in ("none", "salt-lora"):
            yield vllm_case(
                f"lookahead-{ahead}-{name}",
                "tokens after the block are hashed with it",
                "0.33.0",
                "sha256_cbor",
                "0",
                [*tokens, 9, 10],
                4,
                lookahead=ahead,
                **EXTRAS[name],
            )
    for version in ("0.23.0", "0.33.0"):
        yield coarse_case(version)


EXTRAS: dict[str, dict[str, Any]] = {
    "none": {},
    "salt": {"salt": "tenant-a"},
    "lora": {"lora": ("adapter", "/adapters/a")},
    "salt-lora": {"salt": "mandant-ä", "lora": ("adapter", "/adapters/a")},
    "image": {"images": [("083cef0000000000", 2, 5)]},
    "two-images": {"images": [("083cef0000000000", 0, 2), ("7fe0aa0000000000", 3, 2)]},
    "embeddings": {"embeds": bytes(range(1, 9))},
    "all": {
        "salt": "tenant-a",
        "lora": ("adapter", "/adapters/a"),
        "images": [("083cef0000000000", 1, 4)],
        "embeds": bytes(range(1, 9)),
    },
}


def vllm_case(
    name: str,
    text: str,
    version: str,
    algorithm: str,
    seed: str | None,
    tokens: list[int],
    size: int,
    lookahead: int = 0,
    **given: Any,
) -> Case:
    engine = engines.Vllm(version, algorithm, seed)
    request = engines.request(tokens, **given)
    digests = engine.blocks(request, size, lookahead)
    keys = engine.extra_keys(request, size, lookahead)
    encode = ENCODERS["sha256_cbor" if algorithm.endswith("_cbor") else "sha256"]
    parent = engine.none_hash
    blocks = []
    for index, found in enumerate(digests):
        extra = keys[index]
        if lookahead:
            stop = (index + 1) * size
            extra = (extra, *tokens[stop : stop + lookahead])
        data = encode((parent, tuple(tokens[index * size : (index + 1) * size]), extra))
        assert digest(algorithm, data) == found, name
        blocks.append({"hashed": data.hex(), "digest": found.hex(), "event_hash": forms(engine.external(found))})
        parent = found
    published = engine.published(keys)
    inputs = {
        "algorithm": algorithm,
        "seed": seed,
        "tokens": tokens,
        "block_size": size,
        "extra_keys": None
        if published is None
        else [entry and [jsonable(key) for key in entry] for entry in published],
        "lora_name": request.lora_request and request.lora_request.lora_name,
        "lora_path": request.lora_request and request.lora_request.lora_path,
        "hashed_form": "bare" if version == "0.30.0" else "tagged",
        "lookahead_tokens": lookahead,
    }
    source = engine.cache_module.source("get_request_block_hasher", "init_none_hash", "maybe_convert_block_hash")
    return case(name, text, inputs, {"none_hash": engine.none_hash.hex(), "blocks": blocks}, source)


def coarse_case(version: str) -> Case:
    """A group whose blocks are two hashed blocks long."""
    engine, tokens = engines.Vllm(version, "sha256_cbor", "0"), list(range(1, 17))
    digests = engine.blocks(engines.request(tokens), 4)
    coarse = list(engine.code.BlockHashListWithBlockSize(digests, 4, 8))
    given = {"algorithm": "sha256_cbor", "seed": "0", "tokens": tokens, "hash_block_size": 4, "block_size": 8}
    expected = {
        "none_hash": engine.none_hash.hex(),
        "hashed_blocks": [found.hex() for found in digests],
        "blocks": [{"digest": found.hex(), "event_hash": forms(engine.external(found))} for found in coarse],
    }
    source = engine.cache_module.source("get_request_block_hasher", "BlockHashListWithBlockSize")
    return case(f"coarse-{version}", "blocks of 8 tokens, hashed by 4", given, expected, source)


def jsonable(key: Any) -> Any:
    return {"bytes": key.hex()} if isinstance(key, bytes) else list(key) if isinstance(key, tuple) else key


# Captures

PICKED = (
    ("sglang-0.5.16-eagle-ps2-radix", 2),
    ("sglang-0.5.19-salt-ps2-unified", 3),
    ("sglang-0.5.8-partial-ps4-radix", 4),
    ("sglang-0.5.23-prefix-ps16-rust", 2),
    ("vllm-cpu-0.23.0-mm", 4),
    ("vllm-cpu-0.32.0-salt", 4),
    ("vllm-cpu-0.32.0-shared-prefix-noseed", 2),
    ("vllm-cpu-0.32.0-shared-prefix-sha256-byteshash", 2),
    ("vllm-mixed-0.33.0-eagle", 2),
    ("vllm-mixed-0.33.0-embeds", 3),
    ("vllm-mixed-0.33.0-hybrid", 4),
)


def capture_cases() -> Iterator[Case]:
    for name, limit in PICKED:
        truth = json.loads((CAPTURES / "truth" / f"{name}.json").read_text(encoding="utf-8"))
        settings = {"release": f"{name.split('-')[0]}=={truth['version']}"}
        if name.startswith("vllm"):
            settings |= {"algorithm": truth["hash_algo"], "seed": truth["PYTHONHASHSEED"]}
        for seq, index, event in stored(name, limit):
            given = {
                **settings,
                "parent_block_hash": published(event.parent_block_hash),
                "token_ids": event.token_ids,
                "block_size": event.block_size,
                "cache_salt": event.cache_salt,
                "extra_keys": event.extra_keys
                and [entry and [jsonable(k) for k in entry] for entry in event.extra_keys],
                "lookahead_token_ids": event.lookahead_token_ids,
            }
            expected = {"block_hashes": [published(value) for value in event.block_hashes]}
            source = {"kind": "capture", "file": f"{name}.jsonl", "seq": seq, "event": index}
            yield case(f"{name}-{seq}-{index}", "a BlockStored as a running engine sent it", given, expected, source)


def published(value: int | bytes | None) -> Any:
    if value is None:
        return None
    return {"bytes": value.hex()} if isinstance(value, bytes) else forms(value)


def stored(name: str, limit: int) -> Iterator[tuple[int, int, kvwire.BlockStored]]:
    """The first BlockStored events of a capture, with the seq of their message and their place in its batch."""
    with (CAPTURES / f"{name}.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            if record["channel"] != "live":
                continue
            frames = [bytes.fromhex(frame) for frame in record["frames"]]
            for index, event in enumerate(kvwire.decode(frames[2]).events):
                if isinstance(event, kvwire.BlockStored):
                    yield int.from_bytes(frames[1], "big"), index, event
                    limit -= 1
                    if limit == 0:
                        return


# Dynamo

DYNAMO: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("two-blocks", "two blocks", {"tokens": [1, 2, 3, 4, 5, 6, 7, 8]}),
    ("lora-name", "the adapter's name is in the seed", {"tokens": [1, 2, 3, 4], "lora_name": "adapter-a"}),
    (
        "cache-namespace",
        "the tenant's namespace is in the seed",
        {"tokens": [1, 2, 3, 4], "cache_namespace": "tenant-a"},
    ),
    (
        "lora-and-namespace",
        "both are in the seed, which wraps at 2**64",
        {"tokens": [1, 2, 3, 4], "lora_name": "adapter-a", "cache_namespace": "tenant-a"},
    ),
    ("empty-parts", "empty parts are absent", {"tokens": [1, 2, 3, 4], "lora_name": "", "cache_namespace": ""}),
    ("not-ascii", "parts are UTF-8", {"tokens": [1, 2, 3, 4], "lora_name": "adapter", "cache_namespace": "租户"}),
    ("bigram", "a window of block_size + 1 tokens", {"tokens": [1, 2, 3, 4, 5], "bigram": True}),
    ("bigram-overlap", "windows share a token", {"tokens": [1, 2, 3, 4, 5, 6, 7, 8, 9], "bigram": True}),
    (
        "bigram-short",
        "no hash for a window that lacks its last token",
        {"tokens": [1, 2, 3, 4, 5, 6, 7, 8], "bigram": True},
    ),
    ("short-tail", "no hash for a tail shorter than a block", {"tokens": [1, 2, 3, 4, 5, 6]}),
    ("u32-limits", "the smallest and the largest token", {"tokens": [0, (1 << 32) - 1, 0, (1 << 32) - 1]}),
    ("image", "an image's hash follows the tokens", {"tokens": [1, 2, 3, 4], "mm_hashes": [["1234605616436508552"]]}),
    (
        "images-sorted",
        "hashes of images are sorted",
        {"tokens": [1, 2, 3, 4, 5, 6, 7, 8], "mm_hashes": [["9", "3"], []]},
    ),
)

_DYNAMO_SCRIPT = """
import importlib.metadata, json, sys
from dynamo._core import compute_block_hash_for_seq as run
out = []
for c in json.load(sys.stdin):
    infos = None
    if "mm_hashes" in c:
        infos = [{"mm_objects": [{"mm_hash": int(h), "offsets": []} for h in b]} if b else None for b in c["mm_hashes"]]
    out.append([str(v) for v in run(c["tokens"], 4, infos, c.get("lora_name"), c.get("bigram", False), c.get("cache_namespace"))])
json.dump({"version": importlib.metadata.version("ai-dynamo-runtime"), "values": out}, sys.stdout)
"""


def dynamo_cases(python: str) -> Iterator[Case]:
    done = subprocess.run(
        [python, "-c", _DYNAMO_SCRIPT],
        input=json.dumps([given for _, _, given in DYNAMO]),
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(done.stdout)
    source = {
        "kind": "engine",
        "release": f"ai-dynamo-runtime=={answer['version']}",
        "functions": ["dynamo._core.compute_block_hash_for_seq"],
    }
    for (name, text, given), values in zip(DYNAMO, answer["values"], strict=True):
        inputs = {
            "tokens": given["tokens"],
            "block_size": 4,
            "bigram": given.get("bigram", False),
            "lora_name": given.get("lora_name"),
            "cache_namespace": given.get("cache_namespace"),
            "mm_hashes": given.get("mm_hashes"),
        }
        expected = {"tokens_hashes": [forms(int(value)) for value in values]}
        yield case(name, text, inputs, expected, source)


# Files

FILES: dict[str, tuple[str, Callable[[], Iterator[Case]]]] = {
    "sglang.json": ("sglang", sglang_cases),
    "sglang-storage.json": ("sglang:storage", storage_cases),
    "sglang-namespace.json": ("sglang:dynamo", namespace_cases),
    "sglang-python.json": ("sglang:python", python_cases),
    "vllm.json": ("vllm", vllm_cases),
    "captures.json": ("any", capture_cases),
}


def document(recipe: str, cases: Iterator[Case]) -> str:
    found = list(cases)
    ids = [found_case["id"] for found_case in found]
    assert len(set(ids)) == len(ids), sorted(ids)
    return json.dumps({"format": FORMAT, "recipe": recipe, "cases": found}, indent=1, ensure_ascii=False) + "\n"


def manifest(folder: Path = FOLDER) -> str:
    """The manifest of the files as they are."""
    files = {}
    for path in sorted(folder.glob("*.json")):
        if path.name != "manifest.json":
            data = path.read_bytes()
            content = json.loads(data)
            files[path.name] = {
                "sha256": hashlib.sha256(data).hexdigest(),
                "recipe": content["recipe"],
                "cases": len(content["cases"]),
            }
    return json.dumps({"format": FORMAT, "suite": SUITE, "files": files}, indent=1) + "\n"


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, (recipe, cases) in FILES.items():
        (FOLDER / name).write_text(document(recipe, cases()), encoding="utf-8")
    python = os.environ.get("KVWIRE_DYNAMO_PYTHON")
    if python is not None:
        (FOLDER / "dynamo.json").write_text(document("dynamo", dynamo_cases(python)), encoding="utf-8")
    (FOLDER / "manifest.json").write_text(manifest(), encoding="utf-8")


if __name__ == "__main__":
    main()
