import pytest

import optree
from optree._store import Directory
from tests.docs.test_docs import BLOCK, ROOT, run_code

WRAPPED, TOLD, DAEMON = BLOCK.findall((ROOT / "docs" / "howto" / "processes.md").read_text())
TREE = [("lead", False, ["fetch", "fetch"])]
APART = [("fetch", True, ["fetch"]), ("fetch", True, ["fetch"]), ("lead", False, [])]
UNWRAPPED = WRAPPED.replace("optree.wrap(fetch)", "fetch")
UNTOLD = TOLD.replace(", initializer=join, initargs=(optree.child_env({}),)", "")
FORKED = UNWRAPPED.replace('"spawn"', '"fork"')
BEFORE = "    pool = ProcessPoolExecutor(1, context)\n    pool.submit(int).result()\n    with optree.session"
EARLIER = FORKED.replace("    with optree.session", BEFORE).replace(", ProcessPoolExecutor(2, context) as pool", "")
PROGRAMS = {
    "spawn, wrapped": (WRAPPED, TREE),
    "spawn": (UNWRAPPED, APART),
    "forkserver, told": (TOLD, TREE),
    "forkserver": (UNTOLD, APART),
    "fork": (FORKED, TREE),
    "fork, before the session": (EARLIER, APART),
    "fork, before the session, wrapped": (EARLIER.replace("map(fetch", "map(optree.wrap(fetch)"), TREE),
    "daemon": (DAEMON, [("daemon", False, ["work"])]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_the_page_says_of_processes(name, tmp_path):
    """Each way to start processes records the tree that the page says, with its one line and without it."""
    program, expected = PROGRAMS[name]
    run = run_code(program, tmp_path)
    assert (0, "") == (run.returncode, run.stderr)
    directory = Directory.of(tmp_path)
    trees = [optree.load(saved.txn, directory) for saved in directory.saved()]
    assert {"ended"} == {tree.state for tree in trees}
    found = [
        (tree.session.agent_id, "detached" in tree.session.attributes, [op.name for _, _, op in optree.walk_ops(tree.session)])
        for tree in trees
    ]
    assert expected == sorted(found)


def test_what_the_page_says_of_a_session_that_is_older_than_its_daemon(tmp_path):
    """A session that was begun before the process became a daemon has all that this recorded, and stays interrupted until it is resumed."""
    within = 'optree.session("daemon"):\n        daemonize()\n        with optree.tool("work"):\n    '
    older = DAEMON.replace("    daemonize()\n", "").replace('optree.session("daemon"), optree.tool("work"):\n', within)
    run = run_code(older, tmp_path)
    assert (0, "") == (run.returncode, run.stderr)
    directory = Directory.of(tmp_path)
    [saved] = directory.saved()
    loaded = optree.load(saved.txn, directory)
    assert ("interrupted", ["work"]) == (loaded.state, [op.name for _, _, op in optree.walk_ops(loaded.session)])
    again = f"import os\nos.environ['OPTREE_RESUME'] = '{saved.txn}'\nimport optree\nwith optree.session('daemon'): pass"
    assert 0 == run_code(again, tmp_path).returncode
    assert "ended" == optree.load(saved.txn, directory).state
