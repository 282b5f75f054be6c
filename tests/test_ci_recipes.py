"""docs/ci.md does what it says: each recipe is run on a sample project, and turns red when the project misreads the wire.

What the page shows is what runs: its files are written into a copy of the sample, the ``run:`` lines of its workflows and its
scripts are given to a shell. ``pip`` finds kvwire installed, from this checkout, and no registry.
"""

from __future__ import annotations

import fcntl
import inspect
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvwire_conform.golden import list_vectors
from kvwire_conform.pytest_engine import Engine
from kvwire_conform.pytest_publisher import PublisherCheck
from kvwire_conform.pytest_vectors import VectorCase, _chosen
from kvwire_conform.simulator import SimulatedEngine, Simulator
from tests.conftest import ROOT

pytest.importorskip("typer")

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ci-recipes")]

PAGE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
SAMPLES = ROOT / "tests" / "samples"
BUILDS = ROOT / "build" / "ci-recipes"
TIMEOUT = 300
WORKFLOW = ".github/workflows/kvwire.yml"
VECTORS = "testdata/kvwire"


def part(title: str) -> str:
    """The text under a heading, down to the next of its level."""
    found = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^\1 |\Z)", PAGE, re.M | re.S)
    assert found, title
    return found[2]


def files(title: str) -> dict[str, str]:
    """The files that a part of the page shows."""
    found = re.findall(r"^\*\*`([^`]+)`\*\*\n\n```\w+\n(.*?)^```$", part(title), re.M | re.S)
    assert found, title
    return dict(found)


def steps(workflow: str) -> list[str]:
    """The commands of a workflow."""
    found = re.findall(r"^ +- run: (.+)$", workflow, re.M)
    assert found
    assert len(found) == workflow.count("run:")
    return found


def outputs(title: str) -> list[str]:
    """The lines of what a part of the page shows as output, without comments' blocks."""
    found = re.findall(r"^```text\n([^#].*?)^```$", part(title).partition("\n### ")[0], re.M | re.S)
    assert len(found) == 2
    return "".join(found).splitlines()


class Project:
    """A copy of a sample project, and a shell to run things in it."""

    def __init__(self, folder: Path, sample: str, bin_: Path) -> None:
        self.folder = folder
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PIP_", "COV_"))},
            "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}",
            "PIP_NO_INDEX": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "CARGO_TARGET_DIR": str(BUILDS / "cargo"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        # As new files, see `rust`.
        shutil.copytree(SAMPLES / sample, folder, copy_function=shutil.copy)

    def write(self, *titles: str) -> None:
        """Write the files that these parts of the page show."""
        for title in titles:
            for name, text in files(title).items():
                path = self.folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")

    def change(self, name: str, old: str, new: str) -> None:
        """Replace something in a file, which has it once."""
        path = self.folder / name
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{old} stands {text.count(old)} times in {name}"
        path.write_text(text.replace(old, new), encoding="utf-8")

    def spoil(self, vector: str) -> None:
        """Change one byte of a payload; the files are shared with other copies, so it is replaced."""
        path = self.folder / VECTORS / f"{vector}.msgpack"
        payload = path.read_bytes()
        path.unlink()
        path.write_bytes(payload.replace(b"GPU", b"CPU"))

    def shell(self, command: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command as a CI does."""
        return subprocess.run(
            ["bash", "-e", "-c", command],
            cwd=self.folder,
            env={**self._env, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )

    def workflow(self) -> tuple[str, str]:
        """Run the workflow: the step that failed ("" when none did), and what all of them wrote."""
        written = ""
        for step in steps((self.folder / WORKFLOW).read_text(encoding="utf-8")):
            done = self.shell(step)
            written += done.stdout
            if done.returncode:
                return step, written
        return "", written


@pytest.fixture(scope="module")
def bin_(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands that an activated environment has."""
    folder = tmp_path_factory.mktemp("bin")
    python = shlex.quote(sys.executable)
    for name, module in (
        ("python", ""),
        ("pip", "-m pip"),
        ("pytest", "-m pytest"),
        ("kvwire-conform", "-m kvwire_conform"),
    ):
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec {python} {module} "$@"\n')
        script.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, bin_: Path) -> Path:
    """A project's copy of the vectors, made by the line that the page gives."""
    (command,) = re.findall(r"^```sh\n(.*?)^```$", part("A copy of the vectors"), re.M | re.S)
    project = Project(tmp_path_factory.mktemp("export") / "project", "python", bin_)
    done = project.shell(command)
    assert done.returncode == 0, done.stdout
    return project.folder / VECTORS


@pytest.fixture
def python(tmp_path: Path, bin_: Path) -> Project:
    return Project(tmp_path / "project", "python", bin_)


@pytest.fixture
def go(tmp_path: Path, bin_: Path, exported: Path) -> Project:
    return _with_vectors("go", "go", tmp_path, bin_, exported)


@pytest.fixture
def rust(tmp_path: Path, bin_: Path, exported: Path) -> Iterator[Project]:
    """Its builds are shared by all runs, and cargo goes by the time of a source: one run after the other, each copy newer."""
    BUILDS.mkdir(parents=True, exist_ok=True)
    with open(BUILDS / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield _with_vectors("rust", "cargo", tmp_path, bin_, exported)


def _with_vectors(sample: str, tool: str, tmp_path: Path, bin_: Path, exported: Path) -> Project:
    if shutil.which(tool) is None:
        reason = f"{tool} is not on PATH"
        if os.environ.get("KVWIRE_REQUIRE_TESTEES", "") not in ("", "0"):
            pytest.fail(f"{reason}, and KVWIRE_REQUIRE_TESTEES asks for every recipe")
        pytest.skip(reason)
    project = Project(tmp_path / "project", sample, bin_)
    shutil.copytree(exported, project.folder / VECTORS, copy_function=os.link)
    return project


# Python


def test_github_actions(python: Project) -> None:
    python.write("The pytest plugin", "GitHub Actions")
    failed, written = python.workflow()
    assert not failed, written
    vectors = [len(list_vectors(dialect=name, kind="valid")) for name in ("slot7", "slot8", "slot8")]
    assert f" {sum(vectors) + 2} passed" in written
    assert "test_decode[slot8/salt]" in (python.folder / "kvwire.xml").read_text()


def test_three_lines(python: Project) -> None:
    (three, *_) = re.findall(r"^```python\n(@.*?)^```$", part("The pytest plugin"), re.M | re.S)
    assert len(three.splitlines()) == 3
    prelude = "import kvwire, pytest\ndecode = kvwire.Decoder(on_error='collect').decode\n"
    (python.folder / "test_three.py").write_text(f"{prelude}\n{three}")
    done = python.shell("pytest test_three.py")
    assert done.returncode == 0, done.stdout
    assert re.search(r" \d\d\d passed", done.stdout)


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        pytest.param(
            "tinykv/wire.py",
            "medium=slots[6], salt",
            "medium=slots[5], salt",
            [
                r"VectorError: slot8/stored-full: wrong",
                r"field    events\[0\]\.medium",
                r'expected "\w+"',
                "bytes .* slot 6 medium: a",
            ],
            id="decoder",
        ),
        pytest.param(
            "tinykv/wire.py",
            'slots[7]["cache_salt"] if len(slots) > 7 else None',
            "None",
            [re.escape(line) for line in outputs("The pytest plugin")],
            id="salt",
        ),
        pytest.param(
            "tinykv/wire.py",
            "event.medium, *salted]",
            "event.medium]",
            [r"test_encode\[slot8/salt\]", "the encoder wrote other bytes"],
            id="encoder",
        ),
        pytest.param(
            "tinykv/publisher.py",
            "[second], first,",
            "[second], 1,",
            ["FAIL parent-known", "a parent that was stored"],
            id="publisher",
        ),
        pytest.param(
            "tinykv/listener.py",
            "_topic, _seq, payload = self",
            "payload, _seq, _topic = self",
            ["FAILED tests/test_wire.py::test_listener"],
            id="listener",
        ),
    ],
)
def test_github_actions_turn_red(python: Project, name: str, old: str, new: str, words: list[str]) -> None:
    python.write("The pytest plugin", "GitHub Actions")
    python.change(name, old, new)
    failed, written = python.workflow()
    assert failed.startswith("pytest")
    for pattern in words:
        assert re.search(pattern, written), f"{pattern} is not in {written[-4000:]}"


def test_plain_shell(python: Project) -> None:
    python.write("The pytest plugin", "Plain shell")
    done = python.shell("sh ci/kvwire.sh", PORT=free_port())
    assert done.returncode == 0, done.stdout
    assert "speaks slot7" in done.stdout
    assert (python.folder / "kvwire.xml").is_file()


def test_plain_shell_turns_red(python: Project) -> None:
    """A publisher that its unit tests would not find out: it is right, and sends each message twice."""
    python.write("The pytest plugin", "Plain shell")
    send = "            socket.send_multipart(frames)\n"
    python.change("tinykv/publisher.py", send, 2 * send)
    done = python.shell("sh ci/kvwire.sh", PORT=free_port())
    assert done.returncode == 1, done.stdout
    assert "FAIL" in done.stdout
    assert "seq-step" in done.stdout


def free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


# Copies of the vectors


def test_the_hook(python: Project, exported: Path) -> None:
    python.write("Before every commit")
    shutil.copytree(exported, python.folder / VECTORS, copy_function=os.link)
    hook = dict(re.findall(r"^ +(?:- )?(\w+): (.+)$", (python.folder / ".pre-commit-config.yaml").read_text(), re.M))
    assert (hook["language"], hook["pass_filenames"]) == ("python", "false")
    assert re.search(hook["files"], f"{VECTORS}/slot8/salt.msgpack")
    done = python.shell(hook["entry"])
    assert done.returncode == 0, done.stdout
    python.spoil("slot8/salt")
    done = python.shell(hook["entry"])
    assert done.returncode == 1
    assert "slot8/salt.msgpack: is not the file that was released" in done.stdout


@pytest.mark.network
def test_go(go: Project) -> None:
    go.write("Go")
    failed, written = go.workflow()
    assert not failed, written


@pytest.mark.network
def test_go_turns_red(go: Project) -> None:
    go.write("Go")
    go.change("kvevents/decode.go", "event.Medium, _ = slots[6]", "event.Medium, _ = slots[5]")
    failed, written = go.workflow()
    assert failed == "go test ./..."
    assert "FAIL: TestGoldenVectors/slot8/stored-full" in written
    assert re.search(r"batch\.events\[0\]\.medium: expected \w+, got <nil>", written)
    go.spoil("slot8/salt")
    failed, written = go.workflow()
    assert failed == f"kvwire-conform golden verify {VECTORS}"
    assert "slot8/salt.msgpack: is not the file that was released" in written


@pytest.mark.network
def test_go_notices_what_is_read_after_all(go: Project) -> None:
    go.write("Go")
    go.change("kvevents/golden_test.go", '"slot*/hash-bytes*"', '"slot*/hash-*"')
    failed, written = go.workflow()
    assert failed == "go test ./..."
    assert "it is read now" in written


@pytest.mark.network
def test_rust(rust: Project) -> None:
    rust.write("Rust")
    failed, written = rust.workflow()
    assert not failed, written
    assert "test golden_vectors ... ok" in written


@pytest.mark.network
def test_rust_turns_red(rust: Project) -> None:
    rust.write("Rust")
    rust.change("src/lib.rs", "event.medium = text(&slots[6])", "event.medium = text(&slots[5])")
    failed, written = rust.workflow()
    assert failed == "cargo test --test golden"
    assert re.search(r'^slot8/stored-full\.events\[0\]\.medium: expected "\w+", got null$', written, re.M)
    rust.spoil("slot8/salt")
    failed, written = rust.workflow()
    assert failed == f"kvwire-conform golden verify {VECTORS}"


@pytest.mark.network
def test_a_testee(go: Project) -> None:
    go.write("Go", "A testee")
    done = go.shell("sh ci/kvwire.sh")
    assert done.returncode == 0, done.stdout
    assert (go.folder / "kvwire.xml").is_file()


@pytest.mark.network
@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        ("kvevents/decode.go", "event.Medium, _ = slots[6]", "event.Medium, _ = slots[5]", "LOSSY medium"),
        ("known-failures.txt", "slot[78]/hash-bytes*", "slot[78]/hash-*", "narrow the entry or remove it"),
    ],
)
def test_a_testee_turns_red(go: Project, name: str, old: str, new: str, words: str) -> None:
    go.write("Go", "A testee")
    go.change(name, old, new)
    done = go.shell("sh ci/kvwire.sh")
    assert done.returncode == 1, done.stdout
    assert words in " ".join(done.stdout.split()), done.stdout


def test_a_missing_tool_is_told(tmp_path: Path, bin_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(bin_))
    monkeypatch.delenv("KVWIRE_REQUIRE_TESTEES", raising=False)
    with pytest.raises(pytest.skip.Exception, match="cargo is not on PATH"):
        _with_vectors("rust", "cargo", tmp_path, bin_, tmp_path)
    monkeypatch.setenv("KVWIRE_REQUIRE_TESTEES", "1")
    with pytest.raises(pytest.fail.Exception, match="cargo is not on PATH, and KVWIRE_REQUIRE_TESTEES"):
        _with_vectors("rust", "cargo", tmp_path, bin_, tmp_path)


# The page


def test_every_option_and_name_on_the_page_is_there() -> None:
    table = re.findall(r"^\| `(\w+)` \|", part("`@pytest.mark.kvwire_vectors(…)`"), re.M)
    assert table == [name for name in inspect.signature(_chosen).parameters if name != "folder"]
    names = re.findall(r"^\| (`\w.*?) \| ", part("`@pytest.mark.kvwire_vectors(…)`").partition("`vector` has")[2], re.M)
    told = {name for cell in names for name in re.findall(r"`(\w+)", cell)}
    assert told >= {"check_decoder", "check", "check_encoded", "check_encoder", "payload", "meaning", "batch"}
    assert all(hasattr(VectorCase, name) or name in ("id", "dialect", "kind") for name in told)
    check = part("`kvwire_check(frames, …)`").partition("Options:")[2].partition("No message")[0].replace("\n", " ")
    options = set(re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", check)))
    assert options == set(inspect.signature(PublisherCheck.__call__).parameters) - {"self", "frames"}
    engine = part("`kvwire_engine(dialect, seed, …)`")
    methods, _, rest = engine.partition("Options:")
    for name in re.findall(r"`(\w+)(?:\(\w*\))?`", methods):
        assert hasattr(Engine, name), name
    known = {*inspect.signature(SimulatedEngine).parameters, *inspect.signature(Simulator).parameters}
    assert set(re.findall(r"`(\w+)(?:=[^`]*)?`", rest.partition("For annotations")[0])) <= known


def test_links_lead_somewhere() -> None:
    headings = {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.+)$", PAGE, re.M)
    }
    for target in re.findall(r"\]\(([^)]+)\)", re.sub(r"^```.*?^```$", "", PAGE, flags=re.M | re.S)):
        name, _, anchor = target.partition("#")
        if name:
            assert (ROOT / "docs" / name).exists(), target
        else:
            assert anchor in headings, target
