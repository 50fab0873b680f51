"""Out and in again, for every format that is written."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from optree._formats.installed import installed_formats
from tests.formats.aspects import ASPECTS, holds
from tests.formats.held import held
from tests.formats.samples import WRITTEN, sample
from tests.formats.streams import streams
from tests.strategies import play, programs

_, PROBLEMS = installed_formats()
NAMES = [form.name for form in WRITTEN]
few = settings(
    max_examples=8,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
some = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors])


def contents(files):
    """Return files' bytes by their names within the folder of the first."""
    return {path.name: path.read_bytes() for path in files}


def there_and_back(form, tree):
    """Write a tree, read it, write what was read; returns both writings and the tree that was read."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("1", "2"):
            (Path(folder) / name).mkdir()
        first = form.write(tree, Path(folder) / "1" / f"t{form.suffix}")
        main = Path(folder) / "1" / f"t{form.suffix}"
        read = form.read(main, strict=True)
        [back] = read.trees
        second = form.write(back, Path(folder) / "2" / f"t{form.suffix}")
        return contents(first), contents(second), back


def test_all_formats_are_there():
    """Every format of the project can be loaded here: nothing below is left out in silence."""
    assert [] == PROBLEMS
    assert {"events-v1", "events", "transcript", "markdown", "ai-agent", "ai-agent-v1", "ai-agent-v3", "json"} <= set(NAMES)


@pytest.mark.parametrize("form", WRITTEN, ids=NAMES)
@some
@given(programs)
def test_a_session_is_kept_but_for_what_is_listed(form, program):
    """Any session that is written and read has all but what the format lists, and is written again byte for byte."""
    tree = play(program).folded()
    first, second, back = there_and_back(form, tree)
    assert first == second
    assert held(form, tree) == held(form, back)


@pytest.mark.parametrize("form", WRITTEN, ids=NAMES)
@some
@given(streams)
def test_a_conversation_is_kept_but_for_what_is_listed(form, tree):
    """Any conversation with links, agents in agents and texts for several has all but what the format lists, byte for byte."""
    first, second, back = there_and_back(form, tree)
    assert first == second
    assert held(form, tree) == held(form, back)


def through(form, tree):
    """Return a tree as it is after a way out and in."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / f"t{form.suffix}"
        form.write(tree, target)
        [back] = form.read(target, strict=True).trees
        return back


def kept_by_all(form, tree):
    """Assert that a tree which came from a format keeps through every other, and back, what both hold."""
    first = through(form, tree)
    for other in WRITTEN:
        shared = [name for name in ASPECTS if holds(form, name) and holds(other, name)]
        second = through(other, first)
        third = through(form, second)
        for name in shared:
            expected = ASPECTS[name].of(first)
            assert expected == ASPECTS[name].of(second), (form.name, other.name, name)
            assert expected == ASPECTS[name].of(third), (form.name, other.name, form.name, name)


@pytest.mark.parametrize("form", WRITTEN, ids=NAMES)
@few
@given(programs)
def test_what_two_formats_hold_goes_from_one_to_the_other(form, program):
    """From each format through each other one and back, a session keeps all that both have a place for."""
    kept_by_all(form, play(program).folded())


@pytest.mark.parametrize("form", WRITTEN, ids=NAMES)
@few
@given(streams)
def test_a_conversation_goes_from_one_format_to_the_other(form, tree):
    """From each format through each other one and back, a conversation keeps all that both have a place for."""
    kept_by_all(form, tree)


@pytest.mark.parametrize("form", WRITTEN, ids=NAMES)
def test_a_session_with_something_of_everything(form):
    """A session with messages, thoughts, costs, logs, a failure and a sub-agent is kept likewise."""
    tree = sample()
    first, second, back = there_and_back(form, tree)
    assert first == second
    assert held(form, tree) == held(form, back)
    kept_by_all(form, tree)


def test_each_part_has_formats_that_hold_it():
    """Every part of a session that is compared is held by several formats, so that the comparisons above are not about nothing."""
    for name in ASPECTS:
        assert len([form for form in WRITTEN if holds(form, name)]) >= 3, name
