"""What is looked at before optree is imported."""

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORK = """
import sys

def work():
    import optree
    with optree.session("far"):
        return sys.argv[1:]
"""
MODULE = """
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from agentpkg.work import work

if __name__ == "__main__":
    with ProcessPoolExecutor(1, multiprocessing.get_context(sys.argv[1])) as pool:
        print(pool.submit(work).result())
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("arguments", [[], ["--model", "gpt-5", "--out", "x.json", "--verbose"]])
def test_a_child_of_a_program_that_is_a_module(method, arguments, tmp_path):
    """The library is imported in it, however many arguments the program has: the child has these, and a command line of its own."""
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"there is no {method}")
    (tmp_path / "agentpkg").mkdir()
    (tmp_path / "agentpkg" / "work.py").write_text(WORK)
    (tmp_path / "agentpkg" / "__main__.py").write_text(MODULE)
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]), "OPTREE_BASE_DIR": str(tmp_path / "base")}
    command = [sys.executable, "-m", "agentpkg", method, *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (0, f"{[method, *arguments]}\n") == (done.returncode, done.stdout), done.stderr
