"""A session may be given by a file of any format: it is read as it is."""

import pytest


@pytest.mark.parametrize("name", ["markdown", "transcript", "events", "ai-agent-v3"])
def test_a_file_of_any_format_is_a_session(optree, name):
    """What was exported is shown by the commands that show sessions, without being imported."""
    txn = optree.record()
    optree("export", txn, "--to", name, "-o", "out/")
    [path] = [path for path in (optree.folder / "out").iterdir() if path.name.startswith(txn) and "summary" not in path.name]
    [agent, *_] = optree("tree", txn).stdout.split()
    assert agent in optree("tree", path).stdout.split("\n")[0]
    assert "why" in optree("messages", path).stdout


def test_what_is_of_no_format_is_told(optree):
    """The answer names the file, and does not look for a session of its name."""
    (optree.folder / "text").write_text("hi\n")
    run = optree("tree", "text", code=3)
    assert "text is no session file" in run.stderr


def test_a_folder_of_several_sessions(optree):
    """Which one is meant is not guessed."""
    first, second = optree.record(), optree.record()
    for txn in (first, second):
        optree("export", txn, "--to", "transcript", "-o", "out/")
    run = optree("tree", "out", code=3)
    assert "sessions: optree import out" in run.stderr
