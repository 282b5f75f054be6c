"""The KV-hint envelope: golden cases, batches, what encoding gives, and no other exception for any value."""

from __future__ import annotations

import json
import pickle
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwire import UsageError
from kvwire.hashing import as_hex, as_int64
from kvwire.hints import (
    FetchAction,
    HintError,
    HintsEnvelope,
    OtherAction,
    block_hash_of,
    check_endpoint,
    decode_batch_hints,
    decode_hints,
    encode_hints,
)
from tests import hints_golden
from tests.conftest import ROOT

FOLDER = ROOT / "golden" / "hints"
SCHEMA = json.loads((ROOT / "spec" / "schema" / "hint.schema.json").read_text(encoding="utf-8"))
CASES = [
    (path.stem, case)
    for path in sorted(FOLDER.glob("*.json"))
    if path.name != "manifest.json"
    for case in json.loads(path.read_text(encoding="utf-8"))["cases"]
]
by_id = pytest.mark.parametrize(("kind", "case"), CASES, ids=[f"{kind}-{case['id']}" for kind, case in CASES])


def told(problem: HintError) -> dict[str, Any]:
    return {key: value for key, value in problem.as_dict().items() if key in ("code", "action", "action_id", "field")}


@by_id
def test_golden(kind: str, case: dict[str, Any]) -> None:
    expected = case["expected"]
    if "error" in expected:
        with pytest.raises(HintError) as raised:
            decode_hints(case["json"])
        assert told(raised.value) == expected["error"]
        return
    envelope = decode_hints(case["json"])
    fetches = [
        {
            "action_id": fetch.action_id,
            "endpoint": fetch.source_control_endpoint,
            "block_hashes": list(fetch.page_keys),
            "announced": fetch.announced,
            "mode": fetch.mode,
        }
        for fetch in envelope.fetches
    ]
    others = [action.action_type for action in envelope.actions if isinstance(action, OtherAction)]
    assert (envelope.form, fetches, others) == (expected["form"], expected["fetches"], expected["other_actions"])
    assert list(map(told, envelope.problems)) == expected["problems"]


@by_id
def test_strict_reading_raises_the_first_problem(kind: str, case: dict[str, Any]) -> None:
    problems = case["expected"].get("problems") or ([case["expected"]["error"]] if "error" in case["expected"] else [])
    if problems:
        with pytest.raises(HintError) as raised:
            decode_hints(case["json"], strict=True)
        assert told(raised.value) == problems[0]
    else:
        assert decode_hints(case["json"], strict=True) == decode_hints(case["json"])


@by_id
def test_the_schema_says_the_same(kind: str, case: dict[str, Any]) -> None:
    if case["id"] == "not-json":
        return
    schema = {**SCHEMA, "$ref": "#/$defs/fetch"} if case["expected"].get("form") == "bare-payload" else SCHEMA
    fits = jsonschema.Draft202012Validator(schema).is_valid(json.loads(case["json"]))
    # What a regular expression cannot say of an endpoint, the schema says in words.
    beyond = {"endpoint-wildcard-mapped", "endpoint-wildcard-as-number", "endpoint-port-65536"}
    clean = kind == "valid" or (
        kind == "tolerated" and not case["expected"]["problems"] and case["id"] != "other-protocol"
    )
    assert fits == (clean or case["id"] in beyond)


def test_the_golden_files_are_those_of_the_manifest() -> None:
    assert (FOLDER / "manifest.json").read_text(encoding="utf-8") == hints_golden.manifest()


@pytest.mark.network
@pytest.mark.parametrize("name", sorted(hints_golden.FILES))
def test_the_engines_own_code_says_what_the_golden_files_say(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == hints_golden.document(hints_golden.FILES[name]())


def envelope_of(*actions: Any) -> dict[str, Any]:
    return {"protocol_version": "0.1", "message_id": "m", "actions": list(actions)}


def fetch_of(*hashes: Any, endpoint: str = "tcp://peer:25000", name: str = "a") -> dict[str, Any]:
    payload = {"source_control_endpoint": endpoint, "block_hashes": list(hashes)}
    return {"action_id": name, "action_type": "kv.fetch", "action_version": "1.0", "payload": payload}


def test_an_error_names_the_item_the_action_and_the_field() -> None:
    with pytest.raises(HintError) as raised:
        decode_batch_hints(
            [None, envelope_of(fetch_of(1), fetch_of(1, endpoint="tcp://0.0.0.0:1", name="b"))], 2, strict=True
        )
    assert str(raised.value) == (
        "kv_hints[1].actions[1] (b).payload.source_control_endpoint: a listener's wildcard; "
        "expected the peer's own host, got '0.0.0.0'"
    )
    again = pickle.loads(pickle.dumps(raised.value))
    assert str(again) == str(raised.value)
    assert again.as_dict() == raised.value.as_dict()


def test_a_cut_list_says_how_many_hashes_are_lost() -> None:
    envelope = decode_hints(envelope_of(fetch_of(1, 2, [], 4, 5)))
    assert envelope.fetches[0].block_hashes == (1, 2)
    (problem,) = envelope.problems
    assert "the 3 entries from here on are not used" in str(problem)


def test_a_batch_has_one_hint_a_request() -> None:
    one = envelope_of(fetch_of(7))
    found = decode_batch_hints([one, None, {}], 3)
    assert [envelope and envelope.fetches[0].block_hashes for envelope in found] == [(7,), None, None]
    assert decode_batch_hints(None, 2) == [None, None]
    assert decode_batch_hints(one, 1) == [decode_hints(one)]


@pytest.mark.parametrize(
    ("value", "size", "expected"),
    [
        (envelope_of(), 2, "an array of 2"),
        ([None], 2, "2 entries"),
        ([envelope_of(), 0], 2, "an object"),
        ("text", 1, "a JSON object"),
    ],
)
def test_a_batch_that_is_none_is_refused(value: Any, size: int, expected: str) -> None:
    with pytest.raises(HintError) as raised:
        decode_batch_hints(value, size)
    assert raised.value.expected == expected


def test_the_size_of_a_hint_is_bounded() -> None:
    with pytest.raises(HintError, match="too many actions"):
        decode_hints(envelope_of(*[fetch_of(1)] * 1025))
    envelope = decode_hints(envelope_of(fetch_of(*[1] * 1_048_577)))
    assert [problem.code for problem in envelope.problems] == ["limit"]


def test_encoding_writes_what_a_sender_should() -> None:
    older = {"source_control_endpoint": "tcp://peer:25000", "block_hashes": [-1, "00000000000000ff"]}
    written = encode_hints(decode_hints(older))
    jsonschema.Draft202012Validator(SCHEMA).validate(written)
    (action,) = written["actions"]
    assert action["action_type"] == "kv.fetch"
    assert action["payload"]["block_hashes"] == [(1 << 64) - 1, 255]
    assert action["payload"]["mode"] == "copy"


@pytest.mark.parametrize(
    "action",
    [
        FetchAction(source_control_endpoint="tcp://peer:1", block_hashes=()),
        FetchAction(source_control_endpoint="tcp://peer:1", block_hashes=(1 << 64,)),
        FetchAction(source_control_endpoint="tcp://*:1", block_hashes=(1,)),
    ],
)
def test_encoding_refuses_what_no_reader_can_use(action: FetchAction) -> None:
    with pytest.raises(UsageError):
        encode_hints(HintsEnvelope(protocol_version="0.1", message_id="m", actions=(action,)))


@given(st.integers(0, (1 << 64) - 1))
def test_all_forms_of_a_hash_are_one(value: int) -> None:
    key = as_hex(value) + "0" * 48
    for form in (value, as_int64(value), as_hex(value), as_hex(value).upper(), f"0x{as_hex(value)}", key):
        assert block_hash_of(form) == value


@pytest.mark.parametrize(
    "value", [None, True, 1.0, 1 << 64, -(1 << 63) - 1, "", "abc", "f" * 15, "f" * 17, "g" * 16, b"f" * 16]
)
def test_what_is_no_hash(value: Any) -> None:
    with pytest.raises(ValueError):
        block_hash_of(value)


@pytest.mark.parametrize(
    ("endpoint", "host", "port"),
    [
        ("tcp://peer-a.ns.svc.cluster.local:25000", "peer-a.ns.svc.cluster.local", 25000),
        ("tcp://10.0.0.7:1", "10.0.0.7", 1),
        ("tcp://[fe80::1%eth0]:65535", "fe80::1%eth0", 65535),
        ("tcp://worker_3:5557", "worker_3", 5557),
    ],
)
def test_endpoints_that_can_be_dialled(endpoint: str, host: str, port: int) -> None:
    assert check_endpoint(endpoint) == (host, port)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
names = st.sampled_from(
    ["kv.fetch", "kv.source_locations", "kv.demote", "1.0", "0.1", "copy", "tcp://peer:1", "tcp://*:1"]
)
mixed = json_values | names
payloads = st.fixed_dictionaries({}, optional=dict.fromkeys(("source_control_endpoint", "block_hashes", "mode"), mixed))
actions = st.fixed_dictionaries(
    {}, optional={"action_id": mixed, "action_type": mixed, "action_version": mixed, "payload": payloads | mixed}
)
envelopes = st.fixed_dictionaries(
    {},
    optional={"protocol_version": mixed, "message_id": mixed, "actions": st.lists(actions | mixed, max_size=3) | mixed},
)


@given(json_values | envelopes | payloads | st.binary(max_size=40) | st.text(max_size=40))
def test_any_value_decodes_or_raises_a_hint_error(value: Any) -> None:
    try:
        envelope = decode_hints(value)
    except HintError as error:
        assert str(error).startswith("kv_hints")
        return
    for fetch in envelope.fetches:
        check_endpoint(fetch.source_control_endpoint)
        assert 0 < len(fetch.block_hashes) <= fetch.announced
        assert all(0 <= value < 1 << 64 for value in fetch.block_hashes)


@given(st.lists(actions, max_size=3))
def test_an_encoded_envelope_decodes_to_the_same(items: list[dict[str, Any]]) -> None:
    try:
        envelope = decode_hints(envelope_of(*items))
    except HintError:
        return
    again = decode_hints(encode_hints(envelope))
    assert [action.block_hashes for action in again.fetches] == [action.block_hashes for action in envelope.fetches]
    assert not again.problems
