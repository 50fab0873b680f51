"""A program that has run out of something: its results, exceptions and exit status are those of a program without optree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from optree._store import Directory, load
from optree._tree import walk_ops
from optree.errors import DamagedError
from tests.exhaustion.ways import WAYS

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


SHORT = [way for way in WAYS if f"{way}, later" not in WAYS and way != "nothing"]
"""Each way once, those that may come at two times at the later one; the others run with OPTREE_EXHAUSTION=all."""


class Done(NamedTuple):
    """What a run came to."""

    told: list[list[Any]]
    output: str
    errors: str
    status: int

    @property
    def health(self) -> dict[str, Any]:
        """What optree says of itself."""
        return self.of("health")

    def of(self, name: str) -> Any:
        """Return what was told under a name."""
        return next(found for one, found in self.told if one == name)

    @property
    def own(self) -> tuple[list[list[Any]], str, int, list[str]]:
        """What is the program's own."""
        raised = [line for line in self.errors.splitlines() if line.startswith("tests.exhaustion.program.")]
        return [found for found in self.told if found[0] not in ("health", "holds")], self.output, self.status, raised


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`refusing.c`, compiled."""
    path = tmp_path_factory.mktemp("refusing") / "refusing.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", path, Path(__file__).with_name("refusing.c"), "-ldl"], check=True)
    return path


def run(kind: str, way: str, base: Path, library: Path) -> Done:
    """Run the program."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OPTREE_", "OTEL_", "TRACEPARENT"))}
    env |= {"OPTREE_BASE_DIR": str(base), "LD_PRELOAD": str(library), "PYTHONPATH": str(ROOT), **WAYS[way].env}
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.exhaustion.program", kind, str(write), way, str(base)],
        env=env, pass_fds=[write], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", cwd=ROOT,
    )  # fmt: skip
    os.close(write)
    try:
        output, errors = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        pytest.fail("it does not end")
    with os.fdopen(read) as file:
        told = [json.loads(line) for line in file]
    return Done(told, output, errors, process.returncode)


def recorded(base: Path) -> Counter[str]:
    """Return how many ops of each name are in the sessions below *base*, all of which load, but for those that nothing was recorded in."""
    found: Counter[str] = Counter()
    directory = Directory.of(base)
    for saved in directory.saved():
        try:
            loaded = load(saved.txn, directory)
        except DamagedError as error:
            assert "nothing was recorded" in str(error)  # noqa: PT017
        else:
            found.update(op.name for *_, op in walk_ops(loaded.session))
    return found


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Counter[str]:
    """What is recorded where nothing is in the way."""
    base = tmp_path_factory.mktemp("whole") / "base"
    base.mkdir()
    run("optree", "nothing", base, library)
    return recorded(base)


@pytest.mark.parametrize("way", WAYS if os.environ.get("OPTREE_EXHAUSTION") == "all" else SHORT)
def test_its_own_results(way: str, tmp_path: Path, library: Path, whole: Counter[str]) -> None:
    """Whatever it runs out of, its results, exceptions and status are its own; what is saved loads, and what is not is said.

    The program tells, too, that the condition is there.
    """
    if WAYS[way].needs_root and os.geteuid() != 0:
        pytest.skip("only root can make this condition")
    tmp_path.chmod(0o755)
    place = WAYS[way].place
    with place(tmp_path / "plain") as other, place(tmp_path / "base") as base, ThreadPoolExecutor(1) as aside:
        without = aside.submit(run, "plain", way, other, library)
        done = run("optree", way, base, library)
        assert without.result().own == done.own, done.errors
        assert done.of("holds") is True
        found = Counter[str]() if WAYS[way].unreadable else recorded(base)
    print(f"{way}: {found.total()} of {whole.total()} ops")  # noqa: T201 - with -s: the table in docs/reliability.md
    assert Counter() == found - whole
    # Python 3.14 runs no finalizer at its end where threads have small stacks: the program does without it, too.
    wanted = whole if any(name == "finalizer" for name, _ in done.told) else whole - Counter(["double"])
    if found != wanted and not way.startswith(("fork", "threads")):  # what a process would have recorded that never was is not missing
        assert done.health["lost"] or done.health["problems"]


makes_functions = pytest.mark.skipif(
    sys.version_info[:2] == (3, 13),
    reason="where a function cannot be made, 3.13.0 forgets a reference that others hold: https://github.com/python/cpython/issues/122752",
)


@makes_functions
def test_json_of_what_finds_no_memory() -> None:
    """Whichever allocation fails while a payload or a record is encoded: MemoryError, and no dead process."""
    pytest.importorskip("_testcapi")
    done = subprocess.run([sys.executable, "-c", ENCODING], capture_output=True, text=True, check=False)
    assert (0, "True\n") == (done.returncode, done.stdout), done.stderr


ENCODING = """
import _testcapi
from optree._records import OpBegin, line
from optree._values import encode

refused = 0
for number in range(100):
    _testcapi.set_nomemory(number, number + 1)
    try:
        encode([{"role": "user", "content": "x" * 200}] * 5)
        line(OpBegin("1.2", 1.0, "tool", "name" * 300), 0)
    except MemoryError:
        refused += 1
    finally:
        _testcapi.remove_mem_hooks()
print(refused > 5)
"""


@makes_functions
@pytest.mark.skipif(
    sys.version_info[:2] == (3, 15),
    reason="3.15.0 frees twice what list.append finds no memory for: https://github.com/python/cpython/issues/151818",
)
def test_a_message_that_finds_no_memory() -> None:
    """Whichever allocation fails while a message is recorded: the process goes on."""
    pytest.importorskip("_testcapi")
    done = subprocess.run([sys.executable, "-c", MESSAGES], capture_output=True, text=True, check=False)
    assert (0, "alive\n") == (done.returncode, done.stdout), done.stderr


MESSAGES = """
import _testcapi, optree
from optree.testing import capture

with capture(), optree.session("a") as session, optree.turn():
    session.message("hi")
    for number in range(150):
        _testcapi.set_nomemory(number, number + 1)
        try:
            session.message("hi", cause=["m"])
            session.message({"role": "user", "content": "x" * 200})
        except MemoryError:
            pass
        finally:
            _testcapi.remove_mem_hooks()
print("alive")
"""


@makes_functions
@pytest.mark.skipif(
    sys.version_info[:2] == (3, 15),
    reason="3.15.0 frees twice what list.append finds no memory for: https://github.com/python/cpython/issues/151818",
)
def test_an_op_that_finds_no_memory(tmp_path: Path) -> None:
    """Whichever allocation fails while an op is begun: the tree has it if the journal has, and no other."""
    pytest.importorskip("_testcapi")
    done = subprocess.run([sys.executable, "-c", BEGINNING, tmp_path], capture_output=True, text=True, check=False)
    assert (0, "[]\n") == (done.returncode, done.stdout), done.stderr


BEGINNING = """
import _testcapi, optree, sys
from pathlib import Path
from optree._records import OpBegin
from optree._store.reading.reader import read_journal

optree.configure(base_dir=sys.argv[1], console=False)
wrong = []
with optree.session("a") as session:
    builder = session.builder
    turn = builder.begin_turn()
    for number in range(120):
        _testcapi.set_nomemory(number, number + 1)
        try:
            builder.begin_op("tool", "t", turn=turn, request={"text": "hi"})
            builder.begin_op("llm", "m", turn=turn)
        except MemoryError:
            pass
        finally:
            _testcapi.remove_mem_hooks()
        builder.begin_op("llm", "m", turn=turn).end()  # delivers what could not be
        assert optree.flush()
        journals = sorted(Path(sys.argv[1]).rglob("j-*.jsonl"))
        known = {record.path for path in journals for record in read_journal(path).records if isinstance(record, OpBegin)}
        if {op.path for op in turn.node.ops} != known:
            wrong.append(number)
            break
print(wrong)
"""


@makes_functions
@pytest.mark.skipif(
    sys.version_info[:2] == (3, 15),
    reason="3.15.0 frees twice what list.append finds no memory for: https://github.com/python/cpython/issues/151818",
)
@pytest.mark.parametrize("pure", ["", "1"], ids=["compiled", "pure"])
def test_where_not_even_the_count_finds_memory(pure: str) -> None:
    """Whichever allocations fail while something is recorded, and while that is counted: the program gets no MemoryError of it."""
    pytest.importorskip("_testcapi")
    env = os.environ | {"OPTREE_PURE": pure}
    done = subprocess.run([sys.executable, "-c", COUNTING], env=env, capture_output=True, text=True, check=False)
    assert (0, "[]\n") == (done.returncode, done.stdout), done.stderr


COUNTING = """
import _testcapi, optree
from optree._builder.guard import FAULTS
from optree.testing import capture

CALLS = [
    lambda op, _: op.log("x"),
    lambda op, _: op.think("x"),
    lambda op, _: op.chunk("x"),
    lambda op, _: op.account(input_tokens=5),
    lambda op, _: op.end(),
    lambda _, builder: builder.begin_op("tool", "t"),
]
reached = []
with capture(), optree.session("a") as session, optree.turn():
    FAULTS.calls = session.builder.core.stream.failures = 1000  # from 257 on Python makes each number anew
    for place, call in enumerate(CALLS):
        for number in range(40):
            with optree.llm("m") as op:
                _testcapi.set_nomemory(number, number + 20)
                try:
                    call(op, session.builder)
                except MemoryError:
                    reached.append((place, number))
                finally:
                    _testcapi.remove_mem_hooks()
print(reached)
"""
