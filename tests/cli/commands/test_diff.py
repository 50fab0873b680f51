import json
import sys

import pytest

OTHER = "another step"
PROVIDER = """
import sys
import optree

with optree.session(agent="a"), optree.turn(user="go"), optree.llm(provider="p", model="m") as op:
    op.request(messages=[])
    op.response({"id": sys.argv[2], "object": "response", "output": []})
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Return a command line with two sessions, of which the second did one step more."""
    from tests.cli.conftest import CommandLine

    line = CommandLine(tmp_path_factory.mktemp("two"))
    line.first = line.record("step")
    line.second = line.record("step", OTHER)
    return line


def test_text(two):
    """Two sessions are drawn as one tree, with a sign where they differ; what is the same is counted."""
    lines = two.read("diff", two.first, "last").stdout.splitlines()
    assert [f"- {two.first}", f"+ {two.second}"] == lines[:2]
    assert "  1 op added" == lines[3]
    assert ["+ 1.4", OTHER] == [lines[-1][6:11], lines[-1][17 : 17 + len(OTHER)]]
    assert "… 3 ops the same" in lines[-2]


def test_all(two):
    """--all shows also what is the same."""
    said = two.read("diff", two.first, two.second, "--all").stdout
    assert "1.2.1.1 tool search" in said
    assert "the same" not in said


def test_json(two):
    """--json gives the comparison: txns, counts, deltas, and the tree of differences."""
    found = two.json("diff", two.first, two.second)
    assert ["txnA", "txnB", "same", "counts", "delta", "root"] == list(found)
    assert (two.first, two.second, False, 1) == (found["txnA"], found["txnB"], found["same"], found["counts"]["added"]["op"])
    [turn] = found["root"]["below"]
    assert {"mark": "added", "type": "op", "label": f"tool {OTHER}", "pathB": "1.4"}.items() <= turn["below"][-1].items()
    assert 1 == found["delta"]["ops"]


def test_html(two, tmp_path):
    """--html writes a page, and prints nothing."""
    page = tmp_path / "diff.html"
    assert "" == two.read("diff", two.first, two.second, "--html", page).stdout
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert OTHER in page.read_text()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no/where.html", "its directory is not there; make it first, or name another place"),
        (".", "it is a directory; name a file"),
        ("file/x.html", "a file stands where its directory would be; name another place"),
    ],
)
def test_a_page_that_cannot_be_written_is_named(two, tmp_path, name, said):
    """A page that cannot be written is named, with what to do."""
    (tmp_path / "file").write_text("mine")
    assert (
        f"optree: {tmp_path / name} cannot be written: {said}\n"
        == two.read("diff", two.first, two.second, "--html", tmp_path / name, code=2).stderr
    )


@pytest.mark.parametrize(("other", "code"), [("first", 0), ("second", 1)])
def test_exit_code(two, other, code):
    """--exit-code tells by the exit code whether the sessions differ; without it the code is 0."""
    names = two.first, getattr(two, other)
    two.read("diff", *names, "--exit-code", code=code)
    assert (code == 0) == json.loads(two.read("diff", *names, "--json").stdout)["same"]


def test_files_and_wrong_names(two):
    """Sessions may be given as files; one that is not there is named."""
    [path] = two.sessions.glob(f"{two.first}*")
    assert "the same" in two.read("diff", path, two.first).stdout
    assert "nosuch" in two.read("diff", "nosuch", "last", code=1).stderr


def test_a_session_that_is_not_whole_is_compared(two):
    """A killed session is compared as far as it came."""
    killed = two.record("kill", code=-9)
    assert "status: ok → none" not in two.read("diff", two.first, killed).stdout
    assert "… 2 ops the same" in two.read("diff", two.first, killed).stdout


def test_exact(optree):
    """Ids that a provider makes anew are no difference, unless --exact asks for them."""
    optree.agent.write_text(PROVIDER)
    first, second = optree.record("one"), optree.record("two")
    assert optree.json("diff", first, second)["same"]
    assert "· response.id: one → two" in optree.read("diff", first, second, "--exact").stdout


def test_a_cost_that_nobody_gave_is_no_number(optree):
    """What no call of a session says the cost of has none in the JSON of tree, load and diff (a 0 would be a price)."""
    code = "import optree\nwith optree.session('a'), optree.turn(), optree.llm('x') as op:\n    op.account(input_tokens=5)"
    optree("run", "--", sys.executable, "-c", code)
    [txn] = optree.txns()
    for found in (optree.json("tree", txn)["session"]["totals"], optree.json("load", txn)["session"]["totals"]):
        assert 1 == found["unknownCosts"]
        assert "costUsd" not in found
    delta = optree.json("diff", txn, txn)["root"]["figuresA"]
    assert (None, 1) == (delta["costUsd"], delta["unknownCosts"])


def test_texts_that_are_not_recorded_are_not_said_to_be_the_same(optree):
    """Of sessions without content `diff` and `diff-context` say that what was said in them cannot be compared."""
    optree.env["OPTREE_CONTENT"] = "off"
    optree.agent.write_text(PROVIDER)
    first, second = optree.record("one"), optree.record("two")
    for command, txns in ("diff", (first, second)), ("diff-context", (first,)):
        said = optree.read(command, *txns).stderr
        for txn in txns:
            assert f"session {txn} was recorded without content (content=False): whether texts differ is not known" in said
