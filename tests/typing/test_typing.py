import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
API = Path(__file__).with_name("api.py")


def test_mypy_accepts_a_users_program(tmp_path):
    """A program that uses all of the API passes `mypy --strict`, which sees its types and still finds its mistakes."""
    check("mypy", "--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path), str(API))


def test_pyright_accepts_a_users_program():
    """The same program passes pyright in its strict mode."""
    check("pyright", "--pythonpath", sys.executable, str(API))


def check(checker, *options):
    """Run a type checker and check that it has nothing to say."""
    if importlib.util.find_spec(checker) is None:
        missing = pytest.fail if os.environ.get("CI") else pytest.skip
        missing(f"{checker} is not installed: pip install -e '.[dev]'")
    run = subprocess.run([sys.executable, "-m", checker, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    assert 0 == run.returncode, run.stdout + run.stderr
