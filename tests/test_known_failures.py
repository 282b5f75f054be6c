"""The known-failures file: what it says, what makes it stale, and how it is brought up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvwire_conform.consumer_model import AnswerVerdict, Difference, Judgement
from kvwire_conform.known_failures import Entry, KnownFailures, KnownFailuresError, read, update, write

LOSSY, EXACT, WRONG, CRASHED = AnswerVerdict.LOSSY, AnswerVerdict.EXACT, AnswerVerdict.WRONG, AnswerVerdict.CRASHED


def judgement(ident: str, verdict: AnswerVerdict = LOSSY, *, required: bool = True, where: str = "") -> Judgement:
    differences = (Difference(where=where, expected="1", got="nothing"),) if where else ()
    return Judgement(
        id=ident, dialect="slot9", kind="valid", verdict=verdict, required=required, differences=differences
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "known.txt"


def entries(path: Path, text: str) -> KnownFailures:
    path.write_text(text, encoding="utf-8")
    return read([path])


def test_a_file_is_read_line_by_line(path: Path) -> None:
    found = entries(path, "# Salts.\n\nslot9/salt-* \tlossy   # cache_salt, see #7\nslot8/salt sibling-lost\n")
    assert found.entries == [
        Entry("slot9/salt-*", LOSSY, "cache_salt, see #7", f"{path}:3"),
        Entry("slot8/salt", AnswerVerdict.SIBLING_LOST, "", f"{path}:4"),
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("slot9/salt", ":1: an entry is a vector id or glob and a verdict, not 'slot9/salt'"),
        ("slot9/salt lossy wrong", ":1: an entry is"),
        ("slot9/salt losy", "'losy' is no verdict of a failure; did you mean lossy?"),
        ("slot9/salt exact", "'exact' is no verdict of a failure"),
        ("slot9/salt 7", "there are lossy, sibling-lost, wrong"),
    ],
)
def test_what_is_no_entry(path: Path, line: str, problem: str) -> None:
    with pytest.raises(KnownFailuresError) as caught:
        entries(path, line)
    assert problem in str(caught.value)


def test_a_file_that_cannot_be_read(path: Path) -> None:
    with pytest.raises(KnownFailuresError, match="cannot read"):
        read([path])
    path.write_bytes(b"\xff")
    with pytest.raises(KnownFailuresError, match="not UTF-8"):
        read([path])


def test_two_entries_about_one_payload_are_refused_wherever_they_stand(path: Path) -> None:
    found = entries(path, "slot9/* lossy\n*/salt lossy\n")
    assert found.of("slot9/other") == found.entries[0]
    with pytest.raises(
        KnownFailuresError, match=r":1: slot9/\* lossy and .*:2: \*/salt lossy are both about slot9/salt"
    ):
        found.of("slot9/salt")


def test_only_the_very_verdict_is_known(path: Path) -> None:
    found = entries(path, "slot9/a lossy\n")
    for verdict in AnswerVerdict:
        (marked,), stale, gone = found.apply([judgement("slot9/a", verdict)])
        assert marked.known is (verdict is LOSSY)
        assert bool(stale) is bool(gone) is (verdict is not LOSSY)


@pytest.mark.parametrize(
    ("text", "verdict", "said"),
    [
        ("slot9/a lossy", EXACT, "it is exact; remove the entry"),
        ("slot9/a lossy", CRASHED, "it is crashed; change the entry or remove it"),
        ("slot9/aa lossy", EXACT, "matches no payload of this run (near it is slot9/a); remove the entry"),
        ("nowhere/* lossy", EXACT, "matches no payload of this run; remove the entry"),
        (
            "slot9/* lossy",
            EXACT,
            "1 of the 2 payloads that it matches are not, first slot9/a, which is exact; narrow the entry or remove it",
        ),
    ],
)
def test_a_stale_entry_says_what_to_do(path: Path, text: str, verdict: AnswerVerdict, said: str) -> None:
    _, stale, _ = entries(path, text).apply([judgement("slot9/a", verdict), judgement("slot9/b")])
    assert stale == [f"{path}:1: {text}: {said}"]


def test_an_entry_about_what_was_left_out_is_not_stale(path: Path) -> None:
    found = entries(path, "slot9/a lossy\nseed-7/* wrong\n")
    assert found.apply([], ["slot9/a"], generated=False)[1] == []
    assert len(found.apply([], ["slot9/a"])[1]) == 1
    assert len(found.apply([], [], generated=False)[1]) == 1


def test_an_update_of_nothing_is_a_sorted_list_with_reasons() -> None:
    text = update(
        "",
        [
            judgement("slot9/b", where="events[0].medium"),
            judgement("slot9/a"),
            judgement("slot9/exact", EXACT),
            judgement("slot9/not-claimed", required=False),
        ],
        [],
    )
    assert text == "slot9/a  lossy\nslot9/b  lossy         # events[0].medium\n"


BEFORE = """\
# Of Dynamo.

# Salts.
slot9/b lossy   # mine
slot9/c lossy
# Ranks.
slot9/x wrong
"""


def test_an_update_keeps_comments_and_what_holds(path: Path) -> None:
    found = entries(path, BEFORE)
    run = [judgement("slot9/a"), judgement("slot9/b"), judgement("slot9/c", EXACT), judgement("slot9/d")]
    run += [judgement("slot9/x", WRONG), judgement("slot9/y", CRASHED)]
    marked, _, gone = found.apply(run)
    write(path, marked, gone)
    assert path.read_text(encoding="utf-8") == (
        "# Of Dynamo.\n\n# Salts.\nslot9/a  lossy\nslot9/b lossy   # mine\n"
        "# Ranks.\nslot9/d  lossy\nslot9/x wrong\nslot9/y  crashed\n"
    )
    marked, stale, _ = read([path]).apply(run)
    assert stale == []
    assert all(one.known or one.verdict is EXACT for one in marked)
    write(path, marked, [])
    assert read([path]).apply(run)[1] == []


def test_what_a_stale_glob_covered_gets_entries_of_its_own(path: Path) -> None:
    found = entries(path, "slot9/* lossy\n")
    marked, _, gone = found.apply([judgement("slot9/a"), judgement("slot9/b", EXACT)])
    write(path, marked, gone)
    assert path.read_text(encoding="utf-8") == "slot9/a  lossy\n"


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(KnownFailuresError, match="cannot write"):
        write(tmp_path / "nowhere" / "known.txt", [], [])
