"""The pytest plugin as a project sees it: small test files, run by pytest with the plugin that kvwire's install registers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvwire import DIALECTS
from kvwire_conform import golden
from kvwire_conform.pytest_plugin import Engine, Engines, PublisherCheck, VectorCase

pytest_plugins = ["pytester"]

PLAIN = ("-p", "no:cacheprovider", "-p", "no:randomly", "--strict-markers", "-W", "error")

DECODERS = """
import kvwire

def good(payload):
    return kvwire.decode(payload, on_error="collect")

def saltless(payload):
    batch = good(payload)
    for event in batch.events:
        if isinstance(event, kvwire.BlockStored):
            event.cache_salt = None
    return batch
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(decoders=DECODERS)
    pytester.syspathinsert()
    return pytester


def run(project: pytest.Pytester, *arguments: str, **files: str) -> pytest.RunResult:
    """Run pytest on the files, ``name="text"``, in this process."""
    project.makepyfile(**{name: f"import pytest, kvwire, decoders\n{text}" for name, text in files.items()})
    return project.runpytest_inprocess(*PLAIN, *arguments)


def marked(options: str, body: str = "vector.check_decoder(decoders.good)") -> str:
    return f"@pytest.mark.kvwire_vectors({options})\ndef test_it(vector):\n    {body}\n"


def ids(project: pytest.Pytester, options: str) -> list[str]:
    result = run(project, "--collect-only", "-q", test_ids=marked(options))
    assert result.ret == 0, result.stdout.str()
    return re.findall(r"test_it\[(.*)\]$", result.stdout.str(), re.M)


# Vectors


def test_a_decoder_that_reads_everything_passes_each_vector_in_order(project: pytest.Pytester) -> None:
    options = 'dialects=["slot8", "vllm-map5"]'
    wanted = [
        row.id
        for row in golden.list_vectors()
        if row.dialect in ("slot8", "vllm-map5") and golden.load(row.id).reading == "any"
    ]
    assert ids(project, options) == wanted
    run(project, test_ids=marked(options)).assert_outcomes(passed=len(wanted))


def test_what_is_not_said_is_every_dialect(project: pytest.Pytester) -> None:
    found = ids(project, 'only="*/stored-minimal"')
    assert found == [f"{dialect}/stored-minimal" for dialect in DIALECTS]


def test_selections(project: pytest.Pytester) -> None:
    assert ids(project, 'dialects="sglang==0.5.19", only=["slot8/salt", "salt-emp"]') == [
        "slot8/salt",
        "slot8/salt-empty",
    ]
    assert {name.partition("/")[0] for name in ids(project, 'dialects=["any", "7-slot"], suite=1')} == {"any", "slot7"}
    kinds = {golden.load(name).kind for name in ids(project, 'dialects="slot8", kind=["valid", "invalid"]')}
    assert kinds == {"valid", "invalid"}
    told = {golden.load(name).reading for name in ids(project, 'dialects="slot8", reading="told"')}
    strict = {golden.load(name).reading for name in ids(project, 'dialects="slot8", reading="strict"')}
    assert (told, strict) == ({"any", "told"}, {"any", "told", "strict"})


def test_readings_are_judged_as_such(project: pytest.Pytester) -> None:
    """What a tolerant reader takes a strict one refuses, and both are right."""
    body = "vector.check_decoder(lambda p: kvwire.Decoder(vector.dialect{more}).decode(p))"
    told, strict = body.format(more=", on_error='collect'"), body.format(more=", strict=True")
    assert run(project, test_a=marked('dialects="slot8", reading="told"', told)).ret == 0
    assert run(project, test_a=marked('dialects="slot8", reading="strict"', strict)).ret == 0
    assert run(project, test_a=marked('dialects="slot8", reading="strict"', told)).ret == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ('dialects="slot99"', "did you mean slot9"),
        ('dialects="slot8", only="slot8/saltt"', "near it are slot8/salt"),
        ('dialects="slot8", kind="good"', "kind is valid, tolerated or invalid, not 'good'"),
        ('dialects="slot8", only="*/stored-minimal", kind="invalid"', "no vector of the selection is invalid"),
        ('dialects="slot8", reading="loose"', "reading is any, told or strict, not 'loose'"),
        ('dialects="slot8", suite=99', "there is no golden suite 99"),
        ('dialect="slot8"', "unexpected keyword argument 'dialect'"),
        ('"slot8"', "positional argument"),
        ('dialects="slot8", known_failures="none.txt"', "cannot read"),
    ],
)
def test_a_selection_that_makes_no_sense_fails_the_collection(
    project: pytest.Pytester, options: str, words: str
) -> None:
    result = run(project, test_a=marked(options))
    assert result.ret == 2
    assert words in result.stdout.str()
    assert "Traceback" not in result.stdout.str()


def test_a_marked_test_without_a_vector_is_a_mistake(project: pytest.Pytester) -> None:
    result = run(project, test_a="@pytest.mark.kvwire_vectors(dialects='slot8')\ndef test_it(): pass\n")
    assert result.ret == 2
    assert "takes an argument `vector`" in result.stdout.str()


def test_a_marked_module_is_about_its_tests_that_take_a_vector(project: pytest.Pytester) -> None:
    text = """
pytestmark = pytest.mark.kvwire_vectors(dialects="slot8", only="slot8/salt")
def test_without(): pass
def test_with(vector): vector.check_decoder(decoders.good)
@pytest.mark.kvwire_vectors(dialects="slot9", only="slot9/stored-minimal")
def test_other(vector): assert vector.dialect == "slot9"
class TestIt:
    def test_with(self, vector): assert vector.id == "slot8/salt"
"""
    run(project, test_a=text).assert_outcomes(passed=4)


def test_other_fixtures_named_vector_are_left_alone(project: pytest.Pytester) -> None:
    text = "@pytest.fixture\ndef vector(): return [1, 2]\ndef test_it(vector): assert vector == [1, 2]\n"
    run(project, test_a=text).assert_outcomes(passed=1)


def test_a_failure_says_what_is_wrong(project: pytest.Pytester) -> None:
    result = run(
        project, test_a=marked('dialects="slot8", only="salt-beside"', "vector.check_decoder(decoders.saltless)")
    )
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "E *VectorError: slot8/salt-beside-unsalted: lossy, *",
            "E * about    A salted block between unsalted ones; * (valid, as sglang==0.5.19 writes it)",
            "E * field    events[[]1].cache_salt",
            'E * expected "tenant-a"',
            "E * got      nothing",
            "E * hint     a tenant's salted blocks are taken for anybody's*",
            "E * bytes    events[[]1], slot 7 metadata: 81 aa 63 61 * (map of 1 key (cache_salt))",
            "E * see      kvwire-conform golden show slot8/salt-beside-unsalted",
            "1 vector failed, 1 likely cause:",
            "  lossy: cache_salt (slot8/salt-beside-unsalted)",
            "FAILED *slot8/salt-beside-unsalted* - lossy: events*",
        ]
    )
    assert "pytest_vectors.py" not in result.stdout.str(), "the plugin's own frames are no help"


def test_another_failure_gets_the_vector_beside_it(project: pytest.Pytester) -> None:
    result = run(project, test_a=marked('dialects="slot8", only="ts-int64"', "assert vector.meaning is None"))
    result = run(
        project,
        test_a=marked(
            'dialects="slot8", only="*/wrong-type-token-ids-str"', "vector.check(kvwire.decode(vector.payload))"
        ),
    )
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "*ShapeError*",
            "*kvwire vector*",
            "slot8/wrong-type-token-ids-str",
            "  about    token_ids that is a str. (invalid, *",
            "  bytes    events[[]1], slot 3 token_ids: a2 31 31  (str '11')",
        ]
    )
    assert "likely cause" not in result.stdout.str()


# Known failures

SALTLESS = marked(
    'dialects="slot8", kind="valid", known_failures="known.txt"', "vector.check_decoder(decoders.saltless)"
)


def known(project: pytest.Pytester, *lines: str) -> pytest.RunResult:
    Path(project.path, "known.txt").write_text("".join(f"{line}\n" for line in lines))
    return run(project, "-rxX", test_known=SALTLESS)


def test_the_lines_that_a_run_proposes_are_what_the_next_one_takes(project: pytest.Pytester) -> None:
    first = known(project)
    failed = first.parseoutcomes()["failed"]
    assert failed > 3
    shown = run(project, "-v", test_known=SALTLESS).stdout.str()
    lines = re.findall(r"^  (slot8/\S+ +lossy +# events\[\d\]\.cache_salt.*)$", shown, re.M)
    assert len(lines) == failed
    again = known(project, *lines)
    assert again.ret == 0
    assert again.parseoutcomes()["xfailed"] == failed
    assert "known.txt:1 lists it as lossy (events[" in again.stdout.str()


def test_an_entry_that_no_longer_holds_fails(project: pytest.Pytester) -> None:
    result = known(project, "slot8/salt* lossy # all of them", "slot8/stored-full  lossy")
    # An empty salt is no salt.
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(
        ["*XPASS(strict)*known.txt:1 lists it as lossy (all of them); it is exact: change the entry or remove it"]
    )


def test_an_entry_of_another_verdict_fails(project: pytest.Pytester) -> None:
    result = known(project, "slot8/salt  wrong", "slot8/salt-[!e]*  lossy", "slot8/stored-full  lossy")
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["E * known    *known.txt:1 lists it as wrong; change the entry or remove it"])


def test_a_known_failure_is_not_any_failure(project: pytest.Pytester) -> None:
    Path(project.path, "known.txt").write_text("slot8/salt  lossy\n")
    options = 'dialects="slot8", only="slot8/salt", known_failures="known.txt"'
    run(project, test_a=marked(options, "raise AssertionError('unrelated')")).assert_outcomes(failed=1)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("slot8/saltt  lossy", "near it is slot8/salt"),
        ("slot8/salt  lossi", "did you mean lossy?"),
        ("slot8/salt  lossy\nslot8/sal*  lossy", "are both about slot8/salt"),
    ],
)
def test_a_file_that_makes_no_sense_fails_the_collection(project: pytest.Pytester, line: str, words: str) -> None:
    result = known(project, line)
    assert result.ret == 2
    assert words in result.stdout.str()


def test_one_file_serves_several_tests(project: pytest.Pytester) -> None:
    result = known(
        project, "slot8/salt-[!e]* lossy", "slot8/salt lossy", "slot8/stored-full lossy", "slot9/*salt* lossy"
    )
    assert result.ret == 0


# The plugin as a guest


def test_a_project_that_does_not_use_it_pays_nothing(project: pytest.Pytester) -> None:
    text = """
def test_it():
    import sys
    ours = [name for name in sys.modules if name.partition(".")[0] in ("kvwire", "kvwire_conform")]
    assert sorted(ours) == ["kvwire_conform", "kvwire_conform.pytest_plugin"]
    assert not {"msgspec", "zmq", "rich", "typer", "jsonschema", "jinja2"} & set(sys.modules)
"""
    project.makepyfile(test_a=text)
    project.runpytest_subprocess(*PLAIN).assert_outcomes(passed=1)


def test_without_the_extra_only_the_report_of_a_publisher_is_missing(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = """
import sys
from importlib.machinery import PathFinder
class Installed(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in ("rich", "typer", "jsonschema", "jinja2", "xxhash", "cbor2"):
            return None
        return super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Installed
"""
    text = """
import pytest, decoders
from kvwire_conform.simulator import Simulator

@pytest.mark.kvwire_vectors(dialects="slot8", only="slot8/salt")
def test_vector(vector):
    vector.check_decoder(decoders.good)
    with pytest.raises(AssertionError, match="cache_salt"):
        vector.check_decoder(decoders.saltless)

def test_engine(kvwire_engine):
    assert kvwire_engine("slot8", wait_for_subscriber=False).publish(2)

def test_right(kvwire_check):
    kvwire_check(Simulator("slot8", 3).messages(50))

def test_wrong(kvwire_check):
    kvwire_check([])
"""
    project.makepyfile(sitecustomize=blocked, test_a=text)
    monkeypatch.setenv("PYTHONPATH", str(project.path))
    result = project.runpytest_subprocess(*PLAIN)
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*needs rich to show it: pip install 'kvwire[[]conform]'*"])


def test_the_marker_is_told(project: pytest.Pytester) -> None:
    project.runpytest_inprocess("--markers").stdout.fnmatch_lines(["@pytest.mark.kvwire_vectors(dialects, kind, *"])


def test_with_xdist(project: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    result = run(
        project, "-n", "2", test_a=marked('dialects="slot8", kind="valid"', "vector.check_decoder(decoders.saltless)")
    )
    outcomes = result.parseoutcomes()
    assert outcomes["failed"] + outcomes["passed"] == len(golden.list_vectors(dialect="slot8", kind="valid"))
    result.stdout.fnmatch_lines([f"{outcomes['failed']} vectors failed, 1 likely cause:"])


def test_the_names_for_annotations_are_there() -> None:
    for each in (Engine, Engines, PublisherCheck, VectorCase):
        assert isinstance(each, type)
    with pytest.raises(ImportError):
        from kvwire_conform.pytest_plugin import Vektor  # noqa: F401


def test_it_can_be_turned_off_and_on(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    project.makepyfile(test_a="import pytest, decoders\n" + marked('dialects="slot8", only="slot8/salt"'))
    off = project.runpytest_subprocess(*PLAIN, "-p", "no:kvwire")
    assert off.ret == 2
    off.stdout.fnmatch_lines(["*'kvwire_vectors' not found in `markers`*"])
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    on = project.runpytest_subprocess("--strict-markers", "-W", "error", "-p", "kvwire_conform.pytest_plugin")
    on.assert_outcomes(passed=1)
