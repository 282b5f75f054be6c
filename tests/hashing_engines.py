"""The hash code of real engines, taken out of their published packages and run here.

Functions and classes are cut out of a module by name and executed as they are; what they use of the rest of the engine is
stood in for by plain objects. SGLang's native hash is C++: it is compiled, with the Python binding around it cut off.
"""

from __future__ import annotations

import ast
import ctypes
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from kvwire_conform.releases import Engine, ReleaseError, cache_dir
from kvwire_conform.releases_fetch import DOWNLOAD_TIMEOUT, _download, _members
from tests.real.catalog import REQUIRE

SGLANG = {
    "storage": "sglang/srt/mem_cache/hicache_storage.py",
    "utils": "sglang/srt/mem_cache/utils.py",
    "events": "sglang/srt/mem_cache/events.py",
    "wire": "sglang/srt/disaggregation/kv_events.py",
    "native": "sglang/srt/mem_cache/cpp_utils/native_hash.py",
    "binding": "sglang/srt/mem_cache/cpp_utils/hash_binding.cpp",
    "radix": "sglang/srt/mem_cache/radix_cache.py",
    "hints": "sglang/srt/managers/kv_hints.py",
}
VLLM = {
    "hashing": "vllm/utils/hashing.py",
    "cache": "vllm/v1/core/kv_cache_utils.py",
    "hints": "vllm/v1/kv_hints/protocol.py",
}


@dataclass(frozen=True)
class Module:
    """One source file of one release."""

    release: str
    member: str
    text: str
    package: str

    @property
    def sha256(self) -> str:
        """Of the file's bytes."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def source(self, *names: str) -> dict[str, Any]:
        """What a golden vector records as its source."""
        return {
            "kind": "engine",
            "release": self.release,
            "package": self.package,
            "member": self.member,
            "member_sha256": self.sha256,
            "functions": list(names),
        }


def modules(engine: Engine, version: str) -> Mapping[str, Module]:
    """The source files of a release that hash, by the names above; those that the release has not are missing.

    Skips the test if the package index cannot be reached, or fails it where KVWIRE_REQUIRE_RELEASES=1 asks for that.
    """
    try:
        return _modules(engine, version)
    except ReleaseError as error:
        if error.code not in ("release-unreachable", "no-pip") or os.environ.get(REQUIRE) == "1":
            raise
        pytest.skip(f"{engine} {version} is not in the cache and cannot be fetched: {error}")


@cache
def _modules(engine: Engine, version: str) -> Mapping[str, Module]:
    wanted = SGLANG if engine == "sglang" else VLLM
    kept = cache_dir() / "hashing" / engine / f"{version}.json"
    if kept.is_file():
        stored = json.loads(kept.read_text(encoding="utf-8"))
    else:
        with tempfile.TemporaryDirectory(prefix="kvwire-hashing-") as scratch:
            package = _download(engine, version, Path(scratch), DOWNLOAD_TIMEOUT)
            texts = {}
            for member, read in _members(package):
                for name, path in wanted.items():
                    if member == path or (package.suffix != ".whl" and member.partition("/")[2] == path):
                        texts[name] = read().decode()
            stored = {"package": package.name, "texts": texts}
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=kept.parent, delete=False, encoding="utf-8") as part:
            json.dump(stored, part)
        os.replace(part.name, kept)
    return {
        name: Module(f"{engine}=={version}", wanted[name], text, stored["package"])
        for name, text in stored["texts"].items()
    }


def run(module: Module, names: Sequence[str], *, lazy: bool = True, **stand_ins: Any) -> SimpleNamespace:
    """Execute the named top-level definitions of a module, in a namespace that holds the stand-ins.

    ``lazy`` leaves annotations unevaluated, since most name classes that are not here.
    """
    tree = ast.parse(module.text)
    chosen = [node for node in tree.body if names_of(node) & set(names)]
    missing = set(names) - set().union(*map(names_of, chosen))
    assert not missing, f"{module.release}: {module.member} has no {sorted(missing)}"
    future = ast.parse("from __future__ import annotations").body if lazy else []
    space: dict[str, Any] = {"__name__": f"{module.release} {module.member}", **stand_ins}
    exec(compile(ast.Module([*future, *chosen], []), module.member, "exec", dont_inherit=True), space)
    return SimpleNamespace(**space)


def names_of(node: ast.stmt) -> set[str]:
    """The names that a top-level statement binds."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return {node.target.id}
    return set()


# SGLang


def sglang_python(version: str = "0.5.8") -> SimpleNamespace:
    """``get_hash_str(token_ids, prior_hash)`` and ``hash_str_to_int64`` of a release whose hash is Python."""
    return run(modules("sglang", version)["storage"], ["get_hash_str", "hash_str_to_int64"], hashlib=hashlib)


def sglang_wire(version: str = "0.5.23") -> SimpleNamespace:
    """``kv_event_namespace_seed`` and ``namespaced_block_hash``."""
    names = ["_NAMESPACE_SEED_TAG", "kv_event_namespace_seed", "namespaced_block_hash"]
    return run(modules("sglang", version)["wire"], names, hashlib=hashlib)


def sglang_native(version: str = "0.5.23") -> SimpleNamespace:
    """``get_native_hash(token_ids, prior_digest, page_size)``: the release's Python front and its compiled C++."""
    files = modules("sglang", version)
    names = ["_native_hash_input", "get_native_hash"]
    binding = compile_binding(files["binding"])
    return run(files["native"], names, array=array, _load_native_hash_module=lambda: binding)


def sglang_utils(version: str = "0.5.23") -> SimpleNamespace:
    """Storage keys and event hashes of radix nodes, over the compiled native hash."""
    names = [
        "get_hash_str",
        "storage_namespace_seed",
        "get_storage_hash_str",
        "hash_str_to_int64",
        "compute_node_hash_values",
        "compute_node_event_hash_values",
        "split_node_hash_value",
    ]
    native = sglang_native(version)
    return run(modules("sglang", version)["utils"], names, hashlib=hashlib, get_native_hash=native.get_native_hash)


def sglang_recorder(version: str = "0.5.23") -> SimpleNamespace:
    """``KVCacheEventRecorder`` over all of the above; its events are plain objects with the struct's fields."""
    utils, wire = sglang_utils(version), sglang_wire(version)

    class Stored(SimpleNamespace):
        tag = "BlockStored"

    class Removed(SimpleNamespace):
        tag = "BlockRemoved"

    return run(
        modules("sglang", version)["events"],
        ["_LORA_ID_LEN", "LoRANameTable", "KvEventLoraNames", "KVCacheEventRecorder"],
        BlockStored=Stored,
        BlockRemoved=Removed,
        AllBlocksCleared=SimpleNamespace,
        StorageMedium=SimpleNamespace(GPU="GPU"),
        kv_event_namespace_seed=wire.kv_event_namespace_seed,
        namespaced_block_hash=wire.namespaced_block_hash,
        compute_node_event_hash_values=utils.compute_node_event_hash_values,
        compute_node_hash_values=utils.compute_node_hash_values,
        hash_str_to_int64=utils.hash_str_to_int64,
    )


class Key(SimpleNamespace):
    """A radix key as the hash code reads it: raw tokens, of which a bigram key has one more than positions."""

    token_ids: Any
    is_bigram: bool
    extra_key: str | None
    cache_salt: str | None

    def __len__(self) -> int:
        return max(len(self.token_ids) - self.is_bigram, 0)


def node(parent: Any, tokens: Sequence[int], extra_key: str | None, salt: str | None, *, bigram: bool = False) -> Any:
    """A radix tree node; a root has no parent and no tokens."""
    key = Key(token_ids=array("q", tokens), is_bigram=bigram, extra_key=extra_key, cache_salt=salt)
    values: list[str] | None = [] if parent is None else None
    return SimpleNamespace(parent=parent, key=key, hash_value=values, event_hash_value=None)


_WRAPPER = """
extern "C" void kvwire_pages(const void *raw, size_t itemsize, size_t length, size_t page_size, size_t unit_width,
                             int bigram, const unsigned char *prior, char *hex) {
  std::array<unsigned char, kDigestLen> digest{};
  if (prior) std::copy(prior, prior + kDigestLen, digest.begin());
  size_t pages = (length + page_size - 1) / page_size;
  std::string blob(pages * kHexLen, '\\0');
  if (itemsize == 4)
    hash_pages_to_hex_blob(static_cast<const std::uint32_t *>(raw), length, page_size, unit_width, bigram != 0,
                           prior != nullptr, digest, blob);
  else
    hash_pages_to_hex_blob(static_cast<const std::uint64_t *>(raw), length, page_size, unit_width, bigram != 0,
                           prior != nullptr, digest, blob);
  std::copy(blob.begin(), blob.end(), hex);
}
"""


@cache
def compile_binding(module: Module) -> Any:
    """SGLang's C++ hash with the interface of its extension module. Skips without a C++ compiler and OpenSSL's headers."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        _absent("no C++ compiler to build SGLang's native hash with")
    text = module.text
    text = re.sub(r"#include <(Python|pybind11/pybind11)\.h>\n|namespace py = pybind11;\n", "", text)
    text = _cut(text, "std::array<unsigned char, kDigestLen>\nparse_prior_digest(", "inline void hash_page(")
    text = _cut(text, "struct RawTokenBuffer {", "template <typename RawToken>\nvoid hash_pages_to_hex_blob(")
    text = text[: text.index("py::object hex_blob_to_pylist(")] + "} // namespace\n" + _WRAPPER
    with tempfile.TemporaryDirectory(prefix="kvwire-native-") as folder:
        source, library = Path(folder, "hash.cpp"), Path(folder, "hash.so")
        source.write_text(text, encoding="utf-8")
        options = ["-O2", "-std=c++17", "-shared", "-fPIC", "-Wno-deprecated-declarations"]
        built = subprocess.run(
            [compiler, *options, "-o", str(library), str(source), "-lcrypto"], capture_output=True, text=True
        )
        if "openssl/sha.h" in built.stderr:
            _absent("no OpenSSL headers to build SGLang's native hash with")
        assert built.returncode == 0, built.stderr[-2000:]
        native = ctypes.CDLL(str(library))

    def get_hash(raw: array[int], length: int, width: int, bigram: bool, prior: bytes | None, page: int) -> list[str]:
        pages = -(-length // page)
        blob = ctypes.create_string_buffer(pages * 64 or 1)
        address, _ = raw.buffer_info()
        native.kvwire_pages(
            ctypes.c_void_p(address),
            ctypes.c_size_t(raw.itemsize),
            ctypes.c_size_t(length),
            ctypes.c_size_t(page),
            ctypes.c_size_t(width),
            ctypes.c_int(bigram),
            prior,
            blob,
        )
        text = blob.raw[: pages * 64].decode()
        return [text[at : at + 64] for at in range(0, len(text), 64)]

    return SimpleNamespace(get_hash=get_hash)


def _absent(reason: str) -> NoReturn:
    if os.environ.get(REQUIRE) == "1":
        raise AssertionError(reason)
    pytest.skip(reason)


def _cut(text: str, start: str, stop: str) -> str:
    at = text.index(start)
    return text[:at] + text[text.index(stop, at) :]


# vLLM


class Vllm:
    """vLLM's block hashing of one release, under one algorithm and PYTHONHASHSEED."""

    def __init__(self, version: str, algorithm: str, seed: str | None) -> None:
        files = modules("vllm", version)
        self.version = version
        self.cache_module, self.hashing_module = files["cache"], files["hashing"]
        space: dict[str, Any] = {}
        exec(compile(files["hashing"].text, files["hashing"].member, "exec"), space)
        self.hash_function: Callable[[object], bytes] = space["get_hash_fn_by_name"](algorithm)
        environ = {} if seed is None else {"PYTHONHASHSEED": seed}
        present = set().union(*map(names_of, ast.parse(files["cache"].text).body))
        names = [name for name in self.NAMES if name in present]
        self.code = run(
            files["cache"],
            names,
            os=SimpleNamespace(getenv=environ.get, urandom=os.urandom),
            logger=SimpleNamespace(warning=lambda *args: None, debug=lambda *args: None),
            hashlib=hashlib,
            NewType=lambda name, kind: kind,
            tensor_data=memoryview,
            envs=SimpleNamespace(VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=True),
            overload=lambda function: function,
            lru_cache=lru_cache,
            **{name: space[name] for name in ("sha256", "sha256_cbor", "xxhash", "xxhash_cbor") if name in space},
        )
        # run() copies the namespace; the functions read and write their own.
        self.globals = self.code.hash_block_tokens.__globals__
        self.code.init_none_hash(self.hash_function)

    NAMES = (
        "BlockHash",
        "maybe_convert_block_hash",
        "DEFAULT_NONE_HASH_SEED",
        "_NON_CRYPTO_HASH_FUNCTIONS",
        "_CBOR_HASH_FUNCTIONS",
        "resolve_none_hash_seed",
        "init_none_hash",
        "_gen_mm_extra_hash_keys",
        "_gen_lora_extra_hash_keys",
        "_gen_prompt_embeds_extra_hash_keys",
        "generate_block_hash_extra_keys",
        "generate_lookahead_block_hash_extra_keys",
        "to_event_extra_keys",
        "hash_block_tokens",
        "get_request_block_hasher",
        "BlockHashListWithBlockSize",
    )

    @property
    def none_hash(self) -> bytes:
        """NONE_HASH as the release initialised it."""
        value: bytes = self.globals["NONE_HASH"]
        return value

    def blocks(self, request: Any, block_size: int, lookahead: int = 0) -> list[bytes]:
        """The digests of a request's blocks."""
        options = {"num_hash_lookahead_tokens": lookahead} if lookahead else {}
        hasher = self.code.get_request_block_hasher(block_size, self.hash_function, **options)
        found: list[bytes] = hasher(request)
        return found

    def extra_keys(self, request: Any, block_size: int, lookahead: int = 0) -> list[Any]:
        """Per block the extra keys that are hashed (without the lookahead tokens)."""
        found, at = [], 0
        for start in range(0, len(request.all_token_ids) - lookahead - block_size + 1, block_size):
            stop = start + block_size
            if lookahead:
                keys, at = self.code.generate_lookahead_block_hash_extra_keys(
                    request, start, stop, stop + lookahead, at
                )
            else:
                keys, at = self.code.generate_block_hash_extra_keys(request, start, stop, at)
            found.append(keys)
        return found

    def published(self, extra_keys: list[Any]) -> list[Any] | None:
        """The same as the release's events carry them."""
        if hasattr(self.code, "to_event_extra_keys"):
            found: list[Any] | None = self.code.to_event_extra_keys(extra_keys)
            return found
        return extra_keys or None

    def external(self, digest: bytes) -> int:
        """The digest as events carry it by default."""
        value: int = self.code.maybe_convert_block_hash(digest)
        return value


def request(
    tokens: Sequence[int],
    *,
    salt: str | None = None,
    lora: tuple[str, str] | None = None,
    images: Sequence[tuple[str, int, int]] = (),
    embeds: bytes | None = None,
) -> Any:
    """A vLLM request as the hash code reads it. ``images`` are (identifier, offset, length); ``embeds`` one byte a token."""
    return SimpleNamespace(
        block_hashes=[],
        num_tokens=len(tokens),
        all_token_ids=list(tokens),
        cache_salt=salt,
        lora_request=lora and SimpleNamespace(lora_name=lora[0], lora_path=lora[1], lora_int_id=1),
        mm_features=[
            SimpleNamespace(identifier=name, mm_position=SimpleNamespace(offset=offset, length=length))
            for name, offset, length in images
        ],
        prompt_embeds=embeds,
        _prompt_embeds_per_block_hashes={},
    )
