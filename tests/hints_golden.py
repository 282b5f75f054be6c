"""Writes ``golden/hints/``: run ``python -m tests.hints_golden``.

What a case must give is written down here by hand. What the engines' own envelope code says of it is asked of that code,
taken out of the published packages: their structs are all that they check; the fields of an action are the reader's.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec

from tests import hashing_engines as engines
from tests.conftest import ROOT

FOLDER = ROOT / "golden" / "hints"
FORMAT = "kvwire-hints/1"
SUITE = 1
RELEASES = (("sglang", "0.5.23"), ("vllm", "0.33.0"))

Case = dict[str, Any]

PEER = "tcp://peer-a:25000"
KEY = "f" * 16 + "0123456789abcdef" * 3
HIGH, LOW = "ffffffffffffffff", "0123456789abcdef"


def envelope(*actions: Any, version: str = "0.1") -> dict[str, Any]:
    return {"protocol_version": version, "message_id": "2f82414c", "actions": list(actions)}


def action(payload: Any, kind: str = "kv.fetch", version: str = "1.0", name: str = "fetch-0") -> dict[str, Any]:
    return {"action_id": name, "action_type": kind, "action_version": version, "payload": payload}


def fetch(*hashes: Any, endpoint: Any = PEER, **more: Any) -> dict[str, Any]:
    return {"source_control_endpoint": endpoint, "block_hashes": list(hashes), **more}


def found(*hashes: str, endpoint: str = PEER, announced: int | None = None, name: str = "fetch-0") -> dict[str, Any]:
    count = len(hashes) if announced is None else announced
    return {"action_id": name, "endpoint": endpoint, "block_hashes": list(hashes), "announced": count, "mode": "copy"}


def problem(code: str, field: str, action: int | None = 0, name: str | None = "fetch-0") -> dict[str, Any]:
    told = {"code": code, "action": action, "action_id": name, "field": field}
    return {key: value for key, value in told.items() if value is not None}


def case(
    name: str,
    text: str,
    given: Any,
    fetches: list[Any] | None = None,
    problems: list[Any] | None = None,
    *,
    others: list[str] | None = None,
    error: dict[str, Any] | None = None,
    form: str = "envelope",
) -> Case:
    expected: dict[str, Any]
    if error is not None:
        expected = {"error": error}
    else:
        expected = {"form": form, "fetches": fetches or [], "other_actions": others or [], "problems": problems or []}
    raw = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return {"id": name, "description": text, "json": raw, "expected": expected}


def valid() -> list[Case]:
    return [
        case(
            "fetch",
            "a fetch as a sender should write it",
            envelope(action(fetch(int(LOW, 16), int(HIGH, 16), mode="copy"))),
            [found(LOW, HIGH)],
        ),
        case("no-actions", "an envelope without actions", envelope()),
        case(
            "unknown-action",
            "an action that nobody here implements is kept and skipped",
            envelope(
                action({"session_id": "agent-42"}, kind="kv.demote", name="demote-0"), action(fetch(1, mode="copy"))
            ),
            [found("0000000000000001")],
            others=["kv.demote"],
        ),
        case(
            "newer-version",
            "a newer version of a fetch is another action: its payload may mean something else",
            envelope(action(fetch(1), version="2.0"), action(fetch(2), name="fetch-1")),
            [found("0000000000000002", name="fetch-1")],
            others=["kv.fetch"],
        ),
        case(
            "two-fetches",
            "actions are independent of each other",
            envelope(action(fetch(1)), action(fetch(2, endpoint="tcp://[2001:db8::7]:25001"), name="fetch-1")),
            [
                found("0000000000000001"),
                found("0000000000000002", endpoint="tcp://[2001:db8::7]:25001", name="fetch-1"),
            ],
        ),
        case(
            "unknown-keys",
            "keys that are not known are ignored",
            {**envelope(action(fetch(1, later="x"))), "trace": {}},
            [found("0000000000000001")],
        ),
    ]


def tolerated() -> list[Case]:
    return [
        case(
            "older-type",
            "the action's older name",
            envelope(action(fetch(1), kind="kv.source_locations")),
            [found("0000000000000001")],
        ),
        case(
            "bare-payload",
            "the oldest form: the payload without an envelope",
            fetch(1, 2),
            [found("0000000000000001", "0000000000000002", name="")],
            form="bare-payload",
        ),
        case(
            "signed",
            "signed integers are the same 64 bits",
            envelope(action(fetch(-1, -(1 << 63)))),
            [found(HIGH, "8000000000000000")],
        ),
        case(
            "hex",
            "16 hex digits, either case, with or without 0x",
            envelope(action(fetch(LOW, LOW.upper(), "0x" + LOW))),
            [found(LOW, LOW, LOW)],
        ),
        case("page-key", "a whole page key is cut to its first 16 digits", envelope(action(fetch(KEY))), [found(HIGH)]),
        case("no-mode", "a fetch without a mode is a copy", envelope(action(fetch(1))), [found("0000000000000001")]),
        case(
            "cut-at-nil",
            "the first entry that is no hash ends the list, for the others would move to wrong blocks",
            envelope(action(fetch(KEY, None, 7))),
            [found(HIGH, announced=3)],
            [problem("field", "payload.block_hashes[1]")],
        ),
        case(
            "cut-at-fraction",
            "a number beyond 2^53 that a sender's JSON library rounded to a fraction",
            '{"protocol_version":"0.1","message_id":"2f82414c","actions":[{"action_id":"fetch-0","action_type":"kv.fetch",'
            '"action_version":"1.0","payload":{"source_control_endpoint":"tcp://peer-a:25000",'
            '"block_hashes":[1,1.8446744073709552e19]}}]}',
            [found("0000000000000001", announced=2)],
            [problem("field", "payload.block_hashes[1]")],
        ),
        case(
            "cut-at-decimal-text",
            "a decimal number in a string is not taken for hex",
            envelope(action(fetch(1, "14643705804678351452"))),
            [found("0000000000000001", announced=2)],
            [problem("field", "payload.block_hashes[1]")],
        ),
        case(
            "cut-at-boolean",
            "a boolean is no hash",
            envelope(action(fetch(1, True))),
            [found("0000000000000001", announced=2)],
            [problem("field", "payload.block_hashes[1]")],
        ),
        case(
            "bad-sibling",
            "a fetch at fault does not stop its sibling",
            envelope(action(fetch(1, endpoint="tcp://*:5")), action(fetch(2), name="fetch-1")),
            [found("0000000000000002", name="fetch-1")],
            [problem("endpoint", "payload.source_control_endpoint")],
        ),
        case(
            "other-protocol",
            "of a newer protocol no action is known",
            envelope(action(fetch(1)), version="0.2"),
            others=["kv.fetch"],
        ),
    ]


def refused() -> list[Case]:
    """Fetches that are left out: the request goes on without a hint."""
    bad_endpoints = {
        "wildcard-star": "tcp://*:25000",
        "wildcard-ipv4": "tcp://0.0.0.0:25000",
        "wildcard-ipv6": "tcp://[::]:25000",
        "wildcard-mapped": "tcp://[::ffff:0.0.0.0]:25000",
        "wildcard-as-number": "tcp://0:25000",
        "port-0": "tcp://peer-a:0",
        "port-65536": "tcp://peer-a:65536",
        "no-port": "tcp://peer-a",
        "no-scheme": "peer-a:25000",
        "ipc": "ipc:///run/kv.sock",
        "http": "http://peer-a:25000",
        "ipv6-without-brackets": "tcp://2001:db8::7:25000",
        "path": "tcp://peer-a:25000/x",
        "user": "tcp://user@peer-a:25000",
        "empty": "",
    }
    cases = [
        case(
            f"endpoint-{name}",
            "an endpoint that cannot be dialled",
            envelope(action(fetch(1, endpoint=endpoint))),
            problems=[problem("endpoint", "payload.source_control_endpoint")],
        )
        for name, endpoint in bad_endpoints.items()
    ]
    return [
        *cases,
        case(
            "endpoint-number",
            "an endpoint of the wrong type",
            envelope(action(fetch(1, endpoint=25000))),
            problems=[problem("field", "payload.source_control_endpoint")],
        ),
        case(
            "endpoint-missing",
            "no endpoint",
            envelope(action({"block_hashes": [1]})),
            problems=[problem("field", "payload.source_control_endpoint")],
        ),
        case(
            "hashes-missing",
            "no hashes",
            envelope(action({"source_control_endpoint": PEER})),
            problems=[problem("field", "payload.block_hashes")],
        ),
        case(
            "hashes-empty",
            "an empty list names nothing to fetch",
            envelope(action(fetch())),
            problems=[problem("field", "payload.block_hashes")],
        ),
        case(
            "hashes-text",
            "hashes that are no list",
            envelope(action({"source_control_endpoint": PEER, "block_hashes": "abc"})),
            problems=[problem("field", "payload.block_hashes")],
        ),
        case(
            "first-hash-bad",
            "nothing is left of a list whose first entry is no hash",
            envelope(action(fetch(None, 1))),
            problems=[problem("field", "payload.block_hashes[0]")],
        ),
        case(
            "mode-move",
            "a mode that is not known",
            envelope(action(fetch(1, mode="move"))),
            problems=[problem("field", "payload.mode")],
        ),
        case(
            "bare-bad-endpoint",
            "a bare payload at fault",
            fetch(1, endpoint="tcp://*:1"),
            form="bare-payload",
            problems=[problem("endpoint", "source_control_endpoint", None, None)],
        ),
    ]


def invalid() -> list[Case]:
    """Envelopes that are none: the request is rejected."""

    def error(field: str | None, action: int | None = None, name: str | None = None) -> dict[str, Any]:
        told = {"code": "envelope", "action": action, "action_id": name, "field": field}
        return {key: value for key, value in told.items() if value is not None}

    return [
        case("not-json", "no JSON", "{", error=error(None)),
        case("array", "an array is no envelope", [], error=error(None)),
        case("empty-object", "an object without anything", {}, error=error("protocol_version")),
        case("no-message-id", "no message_id", {"protocol_version": "0.1", "actions": []}, error=error("message_id")),
        case(
            "version-number",
            "a version that is a number",
            {**envelope(), "protocol_version": 0.1},
            error=error("protocol_version"),
        ),
        case("actions-object", "actions that are no list", {**envelope(), "actions": {}}, error=error("actions")),
        case("action-text", "an action that is no object", envelope("kv.fetch"), error=error(None, 0)),
        case("action-empty", "an action without anything", envelope({}), error=error("action_id", 0)),
        case(
            "action-no-type",
            "an action without a type",
            envelope({"action_id": "x", "action_version": "1.0", "payload": {}}),
            error=error("action_type", 0, "x"),
        ),
        case(
            "payload-array", "a payload that is no object", envelope(action([1])), error=error("payload", 0, "fetch-0")
        ),
    ]


FILES = {"valid.json": valid, "tolerated.json": tolerated, "refused.json": refused, "invalid.json": invalid}


def verdicts(raw: str) -> dict[str, str]:
    """What each engine's own envelope code says of a hint: accepted or rejected."""
    found_: dict[str, str] = {}
    for engine, version in RELEASES:
        module = engines.modules(engine, version)["hints"]  # type: ignore[arg-type]
        try:
            value = msgspec.json.decode(raw)
            msgspec.convert(value, envelope_class(module))
            found_[module.release] = "accepted"
        except (msgspec.ValidationError, msgspec.DecodeError):
            found_[module.release] = "rejected"
    return found_


def envelope_class(module: engines.Module) -> Any:
    """``KvHintsEnvelope`` of a release."""
    names = ["KvHintAction", "KvHintsEnvelope"]
    return engines.run(module, names, lazy=False, msgspec=msgspec, Any=Any, Dict=dict, List=list).KvHintsEnvelope


def document(cases: list[Case]) -> str:
    told = [{**item, "engines": verdicts(item["json"])} for item in cases]
    return json.dumps({"format": FORMAT, "cases": told}, indent=1, ensure_ascii=False) + "\n"


def manifest() -> str:
    """The manifest of the files as they are."""
    files = {}
    for name in sorted(FILES):
        data = (FOLDER / name).read_bytes()
        files[name] = {"sha256": hashlib.sha256(data).hexdigest(), "cases": len(json.loads(data)["cases"])}
    return json.dumps({"format": FORMAT, "suite": SUITE, "files": files}, indent=1) + "\n"


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, cases in FILES.items():
        (FOLDER / name).write_text(document(cases()), encoding="utf-8")
    (FOLDER / "manifest.json").write_text(manifest(), encoding="utf-8")


if __name__ == "__main__":
    main()
