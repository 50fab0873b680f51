"""The benchmarks run and say what they should. Only counts of objects and bytes are held to bounds here; times are `make bench`'s."""

import json
import subprocess
import sys

import pytest

from benchmarks import report
from benchmarks.measure import ROOT, Cost, Job, Rounds, child_environ, run

NAMES = ["default", "sessions", "web", "op", "capture", "import", "memory", "growth", "snapshot", "load", "otel", "formats"]


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Run all benchmarks once, quickly; return their JSON and what was printed."""
    file = tmp_path_factory.mktemp("benchmarks") / "figures.json"
    command = [sys.executable, "-m", "benchmarks", "--quick", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, env=child_environ(), check=True, capture_output=True, text=True)
    return json.loads(file.read_bytes()), done.stdout


@pytest.fixture(scope="module")
def tables(quick):
    """Return the rows of each table, as dicts by column, by the row's first cell."""
    found, _ = quick
    every = (table for each in found["reports"] for table in each["tables"])
    return {table["title"]: {row[0]: dict(zip(table["columns"], row, strict=True)) for row in table["rows"]} for table in every}


@pytest.mark.slow
def test_every_benchmark_reports(quick):
    """The JSON has all benchmarks in order, and each has rows as wide as its columns."""
    found, _ = quick
    assert NAMES == [each["name"] for each in found["reports"]]
    assert found["quick"]
    assert all(table["rows"] for each in found["reports"] for table in each["tables"])
    assert all(len(table["columns"]) == len(row) for each in found["reports"] for table in each["tables"] for row in table["rows"])


@pytest.mark.slow
def test_aims_stand_beside_what_was_measured(quick):
    """Each aim says whether it was reached, and the printed table shows the same mark."""
    found, printed = quick
    aims = [aim for each in found["reports"] for aim in each["aims"]]
    assert len(aims) > 9
    for aim in aims:
        held = aim["measured"] <= aim["bound"] if aim["relation"] == "<=" else aim["measured"] >= aim["bound"]
        assert held == aim["reached"] or aim["measured"] == pytest.approx(aim["bound"], rel=0.001)
        (line,) = (line for line in printed.splitlines() if line.startswith(f"| {aim['name']} "))
        assert aim["reached"] == ("✗" not in line)


@pytest.mark.slow
def test_peers_are_measured_or_named_as_missing(quick):
    """A peer that is not installed stands in the tables as missing."""
    found, printed = quick
    missing = {name for each in found["reports"] for name in each["missing"]}
    assert all(any(name in line and "missing" in line for line in printed.splitlines()) for name in missing)
    assert ("OTel SDK, no-op processor" in printed) != ("opentelemetry-sdk" in missing)


@pytest.mark.slow
def test_the_collector_never_sees_entries(tables):
    """A further log entry adds no object for the garbage collector to look at."""
    rows = tables["200,000 log entries in one session"]
    for name in ("optree, memory", "optree, journal (default)"):
        assert 0.01 >= rows[name]["tracked objects an entry"]


@pytest.mark.slow
def test_growth_is_linear(quick):
    """A history that is sent again with each call is stored once: in the journal, the snapshot and in memory."""
    found, _ = quick
    growth = {aim["name"]: aim["measured"] for each in found["reports"] for aim in each["aims"] if aim["name"].startswith("growth")}
    assert 3 == len(growth)
    assert all(0.75 <= measured <= 1.25 for measured in growth.values()), growth


@pytest.mark.slow
def test_a_stream_that_comes_at_once_is_not_held(quick):
    """What waits to be read of a captured stream, and what is kept of its text, is bounded."""
    found, _ = quick
    [aim] = [aim for each in found["reports"] for aim in each["aims"] if "at once, captured: memory" in aim["name"]]
    assert aim["reached"]


@pytest.mark.slow
def test_a_snapshot_encodes_only_what_is_new(tables):
    """One more turn makes a snapshot encode the same in a session four times the size."""
    small, large = (row["one more turn: KB encoded"] for row in tables["Snapshots"].values())
    assert pytest.approx(small, rel=0.1) == large


def test_a_ratio_is_taken_within_each_round():
    """Ratios are medians over rounds, so that a round which was slow as a whole changes nothing."""
    rounds = Rounds({}, 1, 1)
    rounds.costs = {
        "a": [Cost(2.0, 0.0), Cost(200.0, 0.0), Cost(4.0, 0.0)],
        "b": [Cost(1.0, 0.0), Cost(100.0, 0.0), Cost(2.0, 0.0)],
        "loop": [Cost(0.5, 0.0), Cost(50.0, 0.0), Cost(1.0, 0.0)],
    }
    assert 2.0 == rounds.ratio("a", "b")
    assert 3.0 == rounds.ratio("a", "b", "loop")
    assert 4.0 == rounds.caller("a")


def test_closing_is_not_timed():
    """A job's close comes last, after its flush."""
    seen = []
    cost = run(Job(lambda: seen.append("work"), lambda: seen.append("flush"), lambda: seen.append("close")), 1)
    assert ["work", "flush", "close"] == seen
    assert cost.caller >= 0


def test_figures_go_between_the_markers(tmp_path):
    """Figures replace those of the run before, and leave the page around them alone."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{report.BEGIN}\nold\n{report.END}\nafter\n", "utf-8")
    report.rewrite(page, "new")
    report.rewrite(page, "newer")
    assert f"before\n\n{report.BEGIN}\n\nnewer\n\n{report.END}\nafter\n" == page.read_text("utf-8")


def test_a_page_without_markers_is_left_alone(tmp_path):
    """A page that has no place for the figures is refused, not overwritten."""
    page = tmp_path / "page.md"
    page.write_text("text\n", "utf-8")
    with pytest.raises(ValueError, match="markers"):
        report.rewrite(page, "new")
    assert "text\n" == page.read_text("utf-8")


def test_the_documentation_has_a_place_for_the_figures():
    """docs/benchmarks.md has both markers, in order."""
    page = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    assert -1 < page.find(report.BEGIN) < page.find(report.END)


def test_an_unknown_name_says_which_there_are():
    """A name that is no benchmark is refused with those that are."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "nothing"], cwd=ROOT, env=child_environ(), capture_output=True, text=True, check=False
    )
    assert 2 == done.returncode
    assert "op, capture, import, memory, growth, snapshot, load" in done.stderr
