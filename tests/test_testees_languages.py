"""The testees in four languages, each held against every golden vector, and the builder that makes them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvwire import DIALECTS
from kvwire_conform import testees
from kvwire_conform.consumer import Known, Selection, judge
from kvwire_conform.consumer_model import AnswerVerdict
from kvwire_conform.golden import list_vectors, load

ROOT = Path(__file__).resolve().parents[1]
LANGUAGES = ("python-kvwire", "python-msgspec", "python-msgpack", "node", "go", "rust")


def names_of(found: tuple[testees.TesteeSpec, ...]) -> list[str]:
    return [spec.name for spec in found]


@pytest.fixture(scope="session")
def asked() -> int:
    """How many golden vectors a testee that is not told the dialect is asked."""
    return sum(load(row.id).reading == "any" for row in list_vectors())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [name if name.startswith("python-") else pytest.param(name, marks=pytest.mark.network) for name in LANGUAGES],
)
def test_reads_every_vector_exactly(name: str, asked: int) -> None:
    spec, _ = testees.find(name)
    built = testees.build(spec)
    if isinstance(built, testees.Skipped):
        pytest.skip(built.reason)
    known = testees.known_failures(spec)
    report = judge(built.command, selection=Selection(seed=3, batches=10), known=Known((known,) if known else ()))
    assert report.consumer is not None
    assert name.endswith(report.consumer.name)
    assert report.consumer.language == spec.language
    assert not spec.versions or report.consumer.version == spec.versions[-1]
    assert report.consumer.dialects == tuple(DIALECTS)
    amiss = [(one.id, one.verdict, one.said) for one in report.judgements if one.verdict is not AnswerVerdict.EXACT]
    assert [one for one in amiss if known is None] == []
    assert report.exit_code == 0, (amiss[:5], report.stale, report.advice)
    golden = [one for one in report.judgements if not one.id.startswith("seed-")]
    assert len(golden) == asked
    assert len(report.judgements) == asked + 10 * len(DIALECTS)


def test_catalog_has_the_languages() -> None:
    assert set(LANGUAGES) <= set(names_of(testees.catalog()))


@pytest.mark.parametrize("name", LANGUAGES)
def test_readme_names_the_testee(name: str) -> None:
    text = (testees.testees_dir() / "README.md").read_text(encoding="utf-8")
    spec, _ = testees.find(name)
    assert re.search(rf"^\| `{name}` \| {re.escape(spec.language)} \|", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "file", "pin"),
    [
        (
            "node",
            "package-lock.json",
            r'"node_modules/@msgpack/msgpack": \{\s*"version": "VERSION",\s*"integrity": "sha512-',
        ),
        ("go", "go.sum", r"github\.com/vmihailenco/msgpack/v5 vVERSION h1:"),
        ("rust", "Cargo.lock", r'name = "rmp-serde"\nversion = "VERSION"\n'),
    ],
)
def test_version_is_what_the_lock_file_pins(name: str, file: str, pin: str) -> None:
    spec, _ = testees.find(name)
    (version,) = spec.versions
    text = (spec.folder / file).read_text(encoding="utf-8")
    assert re.search(pin.replace("VERSION", re.escape(version)), text)


def test_node_lock_names_no_registry() -> None:
    """Whoever builds it takes the package from the registry that npm is configured with."""
    lock = json.loads((testees.testees_dir() / "node" / "package-lock.json").read_text(encoding="utf-8"))
    assert [name for name, entry in lock["packages"].items() if "resolved" in entry] == []


PROGRAM = "import sys; print(sys.argv[1])"
COPY = "import pathlib, sys; pathlib.Path('made').write_text(pathlib.Path('source.txt').read_text() + sys.argv[1])"


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one testee, ``demo``, whose build copies a file; builds go beside it."""
    monkeypatch.setenv("KVWIRE_TESTEES", str(tmp_path / "builds"))
    monkeypatch.delenv("KVWIRE_REQUIRE_TESTEES", raising=False)
    folder = tmp_path / "testees" / "demo"
    folder.mkdir(parents=True)
    (folder / "source.txt").write_text("one ", encoding="utf-8")
    write_recipe(folder, ["{python}", "-c", COPY, "{version}"])
    return folder


def write_recipe(folder: Path, step: list[str], head: str = "") -> None:
    lines = [
        'language = "Python"',
        'library = "none"',
        'versions = ["1.0", "2.0"]',
        f"run = {json.dumps(['{python}', '-c', PROGRAM, '{build}/made'])}",
        head,
        "[[steps]]",
        f"argv = {json.dumps(step)}",
    ]
    (folder / "testee.toml").write_text("\n".join(lines), encoding="utf-8")


def built(folder: Path, version: str | None = None) -> testees.Built:
    (spec,) = testees.catalog(folder.parent)
    done = testees.build(spec, version)
    assert isinstance(done, testees.Built)
    return done


def made(done: testees.Built) -> str:
    """What the build left behind, found by running the testee's command from another folder."""
    said = subprocess.run(done.command, capture_output=True, text=True, check=True, cwd="/")
    return Path(said.stdout.strip()).read_text(encoding="utf-8")


def test_builds_the_newest_version_and_only_once(demo: Path) -> None:
    first = built(demo)
    assert (first.fresh, made(first)) == (True, "one 2.0")
    assert built(demo) == testees.Built(first.command, fresh=False)


def test_versions_are_built_apart(demo: Path) -> None:
    old, new = built(demo, "1.0"), built(demo, "2.0")
    assert (made(old), made(new)) == ("one 1.0", "one 2.0")


def test_builds_again_when_a_source_changes(demo: Path) -> None:
    built(demo)
    (demo / "source.txt").write_text("two ", encoding="utf-8")
    again = built(demo)
    assert (again.fresh, made(again)) == (True, "two 2.0")


def test_files_of_a_version_lie_over_the_sources(demo: Path) -> None:
    over = demo / "versions" / "1.0"
    over.mkdir(parents=True)
    (over / "source.txt").write_text("old ", encoding="utf-8")
    assert (made(built(demo, "1.0")), made(built(demo, "2.0"))) == ("old 1.0", "one 2.0")


def test_failed_step_says_what_it_said_and_is_tried_again(demo: Path) -> None:
    write_recipe(demo, ["{python}", "-c", "import sys; print('no such header'); sys.exit(7)"])
    for _ in range(2):
        with pytest.raises(testees.BuildError, match=r"ended with 7:\n    no such header"):
            built(demo)
    write_recipe(demo, ["{python}", "-c", COPY, "{version}"])
    assert made(built(demo)) == "one 2.0"


def test_failed_build_leaves_no_older_one_in_use(demo: Path) -> None:
    built(demo)
    write_recipe(demo, ["{python}", "-c", "raise SystemExit(1)"])
    with pytest.raises(testees.BuildError):
        built(demo)
    with pytest.raises(testees.BuildError):
        built(demo)


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        ('[tools]\nno-such-compiler = ""', "no-such-compiler is not on PATH"),
        (
            '[modules]\nno_such_module = "no-such-module"',
            r"no-such-module is not installed \(pip install no-such-module\)",
        ),
        ('[tools]\ngit = "999.1"', r"git is [0-9.]+; it takes 999\.1 or later"),
    ],
)
def test_missing_tool_is_a_skip_unless_all_are_required(
    demo: Path, monkeypatch: pytest.MonkeyPatch, head: str, reason: str
) -> None:
    if "git" in head and shutil.which("git") is None:
        pytest.skip("git is not on PATH")
    write_recipe(demo, ["{python}", "-c", COPY, "{version}"], head)
    (spec,) = testees.catalog(demo.parent)
    done = testees.build(spec)
    assert isinstance(done, testees.Skipped)
    assert re.search(reason, done.reason)
    monkeypatch.setenv("KVWIRE_REQUIRE_TESTEES", "1")
    with pytest.raises(testees.BuildError, match=reason):
        testees.build(spec)


def test_built_testee_needs_its_tools_no_more(demo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "my-compiler"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 1.0\n", encoding="utf-8")
    tool.chmod(0o755)
    write_recipe(demo, ["{python}", "-c", COPY, "{version}"], '[tools]\nmy-compiler = "1.0"')
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    assert built(demo).fresh
    tool.unlink()
    assert not built(demo).fresh


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pyhton-msgspec", "no testee is called 'pyhton-msgspec'; there is python-msgspec"),
        ("go@0.1", r"go has no version '0\.1'; there is 5\.4\.1"),
        ("python-msgspec@1", "python-msgspec has no version '1'; there is no version to choose"),
    ],
)
def test_wrong_names_are_told(name: str, words: str) -> None:
    with pytest.raises(testees.TesteeError, match=words):
        testees.find(name)


def test_unknown_key_in_a_recipe_is_told(demo: Path) -> None:
    (demo / "testee.toml").write_text('language = "C"\nlibrary = "x"\nrun = ["x"]\nsteps_ = []\n', encoding="utf-8")
    with pytest.raises(testees.TesteeError, match=r"demo/testee\.toml: .*steps_"):
        testees.catalog(demo.parent)


def test_known_failures_of_a_version_come_first(demo: Path) -> None:
    (spec,) = testees.catalog(demo.parent)
    assert testees.known_failures(spec) is None
    folder = demo.parent / "known-failures"
    folder.mkdir()
    (folder / "demo.txt").touch()
    (folder / "demo@1.0.txt").touch()
    found = [testees.known_failures(spec, version) for version in (None, "1.0", "2.0")]
    assert [path.name for path in found if path] == ["demo.txt", "demo@1.0.txt", "demo.txt"]


def test_command_line(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert testees.main(["list"]) == 0
    listed = capsys.readouterr().out
    assert all(re.search(rf"^{name} ", listed, re.MULTILINE) for name in LANGUAGES)
    assert testees.main(["build", "python-msgspec"]) == 0
    assert re.match(r"ready +python-msgspec: .*msgspec_testee\.py$", capsys.readouterr().out)
    assert testees.main(["build", "nothing"]) == 2
    assert "no testee is called 'nothing'" in capsys.readouterr().err


def test_command_line_skips_and_fails(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Go: building skips with the reason, and fails where every testee is required."""
    build = [sys.executable, "-m", "kvwire_conform.testees", "build", "go", "python-msgspec"]
    env = {**os.environ, "PATH": str(demo), "KVWIRE_TESTEES": str(demo.parent / "empty")}
    done = subprocess.run(build, capture_output=True, text=True, env=env, check=False)
    assert (done.returncode, "skipped go@5.4.1: go is not on PATH" in done.stdout) == (0, True)
    assert "ready   python-msgspec: " in done.stdout
    env["KVWIRE_REQUIRE_TESTEES"] = "1"
    done = subprocess.run(build, capture_output=True, text=True, env=env, check=False)
    assert (done.returncode, "FAILED  go@5.4.1: go is not on PATH" in done.stdout) == (1, True)


def test_wheel_says_where_the_testees_are(tmp_path: Path) -> None:
    for package in ("kvwire", "conformance/kvwire_conform"):
        target = tmp_path / Path(package).name
        shutil.copytree(ROOT / package, target, ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [sys.executable, "-m", "kvwire_conform.testees", "list"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "error: the testees' sources are not in kvwire's wheel" in done.stderr
