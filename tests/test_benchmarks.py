"""The benchmarks measure what they say: peers agree on the content, every item runs, and the report shows its rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks import __main__ as command
from benchmarks import payloads, report, run
from benchmarks.items import ITEMS, Item
from benchmarks.model import Figure, Row, Run, compared, percentile
from benchmarks.peers import exact, exact_batch, untyped_decoders, untyped_encoders
from benchmarks.timing import QUICK, interleave
from kvwire import DIALECTS, Decoder, Encoder, EventBatch, decode
from kvwire_conform.releases import ReleaseError, fetch_module

NEEDS_VLLM = {"publish", "replay"}
"""Items whose peer is vLLM's own publisher, out of its package."""


def plain(value: Any) -> Any:
    """Structs as lists or dicts, tuples as lists: what an untyped decoder gives."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value))


@pytest.mark.parametrize("corpus", payloads.shaped(), ids=lambda corpus: corpus.name)
def test_every_decoder_reads_the_same_out_of_a_payload(corpus: payloads.Corpus) -> None:
    for dialect, payload in corpus.parts[:2]:
        ours = decode(payload)
        theirs = exact(dialect).decode(payload)
        untyped = plain(msgspec.msgpack.decode(payload))
        assert len(ours.events) == len(theirs.events) == len(untyped[1])
        for event, peer in zip(ours.events, theirs.events, strict=True):
            assert event.tag == type(peer).__struct_config__.tag
            assert event.block_hashes == peer.block_hashes
            if event.tag == "BlockStored":
                assert event.token_ids == peer.token_ids
                assert event.block_size == peer.block_size
        for name, unpack in untyped_decoders().items():
            assert plain(unpack(payload)) == untyped, name
        assert Decoder(dialect).decode(payload) == ours
        assert Decoder(skip_tokens=True).decode(payload) == ours


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_encoder_writes_the_same(dialect: str) -> None:
    encoder, peer = Encoder(dialect), exact(dialect)
    batch = payloads.shaped_batch(dialect, "16x16")
    if "dp_rank" not in encoder.dialect.batch_fields:
        batch = EventBatch(batch.ts, batch.events)
    payload = encoder.encode(batch)
    own = EventBatch(batch.ts, [encoder.to_wire(event) for event in batch.events], batch.dp_rank)
    assert encoder.encode(own) == payload
    assert peer.encode(exact_batch(dialect, batch)) == payload
    for name, pack in untyped_encoders().items():
        assert decode(pack(msgspec.msgpack.decode(payload))) == batch, name


def test_mixed_traffic_has_every_dialect_and_salts_and_its_exact_structs_read_it() -> None:
    corpus = payloads.mixed(0.005)
    assert set(corpus.dialects) == set(payloads.MIXED_DIALECTS)
    batches = [decode(payload) for payload in corpus.payloads]
    assert sum(len(batch.events) for batch in batches) == corpus.events
    salts = {event.cache_salt for batch in batches for event in batch.events if event.tag == "BlockStored"}
    assert None in salts
    assert len(salts) > 1
    for (dialect, payload), batch in zip(corpus.parts, batches, strict=True):
        assert len(exact(dialect).decode(payload).events) == len(batch.events)


def test_captured_batches_are_read_by_the_exact_structs() -> None:
    corpus = payloads.captured()
    if corpus is None:
        pytest.skip(f"no captures in {payloads.CAPTURES}: set KVWIRE_CAPTURES")
    for dialect, payload in corpus.parts:
        assert len(exact(dialect).decode(payload).events) == len(decode(payload).events)


def test_subjects_are_interleaved_and_take_turns_at_being_first() -> None:
    order: list[str] = []
    subjects = {name: (lambda name=name: order.append(name)) for name in ("a", "b")}
    series = interleave(subjects, msgspec.structs.replace(QUICK, slice=0.0, rounds=4))
    assert {name: len(values) for name, values in series.items()} == {"a": 4, "b": 4}
    assert order[-8:] == ["a", "b", "b", "a", "a", "b", "b", "a"]


def test_a_ratio_is_taken_round_by_round() -> None:
    # Both twice as slow in the second round: the ratio does not notice.
    row = compared(
        {"kvwire": [1.0, 2.0, 1.0], "peer": [3.0, 6.0, 3.0]}, "peer", item="x", case="c", measure="m", target=2.9
    )
    assert (row.value, row.low, row.high, row.reached) == (3.0, 3.0, 3.0, True)
    slower = compared(
        {"kvwire": [2.0], "peer": [1.0]}, "peer", item="x", case="c", measure="m", target=1.0, sense="<=", inverse=False
    )
    assert (slower.value, slower.reached) == (2.0, False)
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5


def needs_vllm(item: Item) -> None:
    if item.name in NEEDS_VLLM:
        try:
            fetch_module("vllm", "0.33.0")
        except ReleaseError as error:
            pytest.skip(f"vLLM's publisher cannot be had: {error}")


@pytest.mark.slow
@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
def test_every_item_runs_and_fills_its_rows(item: Item) -> None:
    needs_vllm(item)
    rows = item.run(QUICK)
    assert rows
    assert len({(row.case, row.measure) for row in rows}) == len(rows)
    for row in rows:
        assert row.item == item.name
        assert row.figures[0].name.startswith("kvwire")
        assert row.low <= row.value <= row.high
        assert all(figure.low <= figure.high for figure in row.figures)
    assert any(row.target is not None for row in rows)


def example(**given: Any) -> Run:
    rows = [
        Row(item="decode", case="good", variant="pure", measure="speed / msgspec", value=1.25, low=1.0, high=1.5, target=0.95,
            figures=[Figure("kvwire", 2.0, 1.0, 3.0, "µs"), Figure("msgspec", 2.5, 2.0, 3.0, "µs")]),
        Row(item="decode", case="bad", variant="pure", measure="speed / msgspec", value=0.5, low=0.4, high=0.6, target=0.95,
            figures=[Figure("kvwire", 2.0, 1.0, 3.0, "µs"), Figure("msgspec", 1.0, 0.5, 3.0, "µs")], note="vllm==0"),
        Row(item="replay", case="delay", measure="delay", value=2.0, low=1.0, high=9.0, unit="ms", target=5.0, sense="<=",
            figures=[Figure("kvwire", 2.0, 1.0, 9.0, "ms")]),
    ]  # fmt: skip
    return Run(
        machine={"cpu": "one"}, versions={"msgspec": "1"}, compiled=[], quick=False, started="now", seconds=1.0,
        load=0.1, rows=rows, skipped={"token_array": "not there"}, **given,
    )  # fmt: skip


def test_the_table_has_every_row_and_the_summary_the_worst() -> None:
    text = report.markdown(example())
    lines = text.splitlines()
    assert "| bad | pure | speed / msgspec | 0.5 × (0.4–0.6) | ≥ 0.95 × | **no** | 2 µs | 1 µs |" in lines
    assert "| delay | delay | 2 ms (1–9) | ≤ 5 ms | yes | 2 ms |" in lines
    assert "| decode | pure | speed / msgspec | 1/2 reached | 0.5 × (0.4–0.6) | bad | ≥ 0.95 × | **no** |" in lines
    assert "Not run: not there." in lines
    assert "- vllm==0" in lines
    for line in lines:
        if line.startswith("|"):
            assert line.endswith("|")
    assert "0.5 ×" in report.summary(example())


def test_quoted_numbers_are_those_of_the_run() -> None:
    text = (
        "a <!-- bench:decode -->old<!-- /bench --> b <!-- bench:decode good -->old<!-- /bench --> "
        "c <!-- bench:replay delay -->?<!-- /bench --> d <!-- bench:decode all -->?<!-- /bench --> "
        "e <!-- bench:encode -->?<!-- /bench -->"
    )
    filled = report.quote(text, example())
    assert filled == report.quote(filled, example())
    assert "<!-- bench:decode -->0.5 ×<!-- /bench -->" in filled
    assert "<!-- bench:decode good -->1.25 ×<!-- /bench -->" in filled
    assert "<!-- bench:replay delay -->2 ms<!-- /bench -->" in filled
    assert "<!-- bench:decode all -->0.5 to 1.25 ×<!-- /bench -->" in filled
    assert "<!-- bench:encode -->not measured<!-- /bench -->" in filled


def test_the_command_writes_what_it_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out.json"
    assert command.main(["--quick", "--only", "hashing", "--json", str(target)]) == 0
    found = msgspec.convert(json.loads(target.read_bytes()), Run)
    assert {row.item for row in found.rows} == {"hashing"}
    assert found.quick
    assert found.machine["cores"].isdigit()
    assert "msgspec" in found.versions
    assert "hashing" in capsys.readouterr().out


def test_an_item_that_fails_fails_the_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "ITEMS", (Item("no_such_item", "Nothing"),))
    assert command.main(["--quick"]) == 1
    assert "no_such_item: exit 1" in capsys.readouterr().err


def test_pure_rows_are_measured_without_the_extension() -> None:
    done = run._work(next(item for item in ITEMS if item.name == "hashing"), True, pure=True)
    assert done.compiled == []


def test_the_list_names_every_item(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [item.name for item in ITEMS]
