"""What lies in the sessions directory costs a session nothing: no call on the program's thread looks through it."""

import subprocess
import sys

import pytest

from optree._store import Directory

WATCHED = """
import sys, threading
calls, main = [], threading.get_ident()

def note(event, args):
    if threading.get_ident() == main and (event in ("open", "glob.glob") or event.startswith(("os.", "pathlib.", "shutil."))):
        calls.append((event, str(args[0]) if args else ""))

import optree
optree.configure(console=False)
with optree.session("warm"), optree.turn(), optree.tool("t"):
    pass
optree.flush("snapshot")
sys.addaudithook(note)
BEGIN
    with optree.turn(), optree.tool("t") as op:
        op.log("x")
found, calls = calls, []
print(len(found), [name for event, name in found if event in ("os.listdir", "os.scandir") and name.endswith("sessions")])
"""
WAYS = {
    "any name": "with optree.session('a'):",
    "a name of its own": "import os\nos.environ['OPTREE_TXN'] = 'mine'\nwith optree.session('a'):",
    "resumed": "import os\nos.environ['OPTREE_RESUME'] = 'old-0'\nwith optree.session('a'):",
}


def fill(directory, number):
    """Put snapshots and interrupted sessions there, as a program leaves them that records many."""
    script = "import optree\noptree.configure(console=False)\nwith optree.session('a'), optree.turn():\n    pass\noptree.flush('snapshot')"
    env = {"OPTREE_BASE_DIR": str(directory.sessions.parent), "OPTREE_TXN": "old-0", "PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", script], env=env, check=True)
    data = directory.snapshot("old-0").read_bytes()
    for one in range(1, number):
        directory.snapshot(f"old-{one}").write_bytes(data)
        directory.live(f"gone-{one}").mkdir()


@pytest.mark.parametrize("way", WAYS)
def test_a_session_costs_the_same_wherever_it_is(tmp_path, way):
    """With 10 and with 1,000 sessions there, begin and end make the same calls on the program's thread, and none lists the directory."""
    counts = []
    for number in (10, 1000):
        directory = Directory.of(tmp_path / str(number))
        fill(directory, number)
        env = {"OPTREE_BASE_DIR": str(directory.sessions.parent), "PYTHONPATH": ":".join(sys.path)}
        script = WATCHED.replace("BEGIN", WAYS[way])
        ran = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
        counts.append(ran.stdout)
    assert counts[0] == counts[1]
    assert "[]" == counts[0].split(" ", 1)[1].strip()
    assert 0 < int(counts[0].split()[0])
