import os
import subprocess
import sys
from pathlib import Path

from optree import _guard

MOST = 60  # modules; 26 of them are Python's, with 3.11: each of `TOO_HEAVY` would add a hundred
MOST_OWN = 96 + (sys.version_info >= (3, 12))  # modules of optree; one is for Pythons that warn of forks
LATER = [
    "optree._providers.answers",
    "optree._providers.streams",
    "optree._providers.server_tools",
    "optree._store.reading.ai_agent",
    "optree._cli",
    "optree.conversation",
]  # where they are needed
TOO_HEAVY = ["typer", "rich", "httpx", "asyncio", "opentelemetry", "starlette", "importlib.metadata"]
ENVIRON = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}  # empty counts as unset: only the first run compiles


def test_import_takes_few_modules():
    """Importing optree loads msgspec, zstandard, and little else that is not its own (benchmarks/bench_import.py has the milliseconds)."""
    code = """import sys, msgspec, zstandard
before = set(sys.modules)
import optree
print(*sorted(name for name in set(sys.modules) - before if name.partition(".")[0] != "optree"))"""
    loaded = subprocess.run([sys.executable, "-c", code], env=ENVIRON, capture_output=True, text=True, check=True).stdout.split()
    assert [] == [name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names]
    assert MOST > len(loaded)


def test_import_is_light():
    """Importing optree loads none of the libraries that only some of its parts use."""
    code = f"import sys, optree; print([name for name in {TOO_HEAVY} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], env=ENVIRON, capture_output=True, text=True, check=True)
    assert "[]" == run.stdout.strip()


def test_import_takes_few_modules_of_its_own():
    """What only some programs use, providers' answers and other programs' files, is imported where it is met."""
    code = "import sys, optree; print(*(name for name in sys.modules if name.partition('.')[0] == 'optree'))"
    loaded = subprocess.run([sys.executable, "-c", code], env=ENVIRON, capture_output=True, text=True, check=True).stdout.split()
    assert [] == [name for name in LATER if name in loaded]
    assert MOST_OWN >= len(loaded)


def test_what_comes_before_all_other_imports_imports_nothing():
    """Until Ctrl-C ends the command `optree` without a traceback, no module is loaded that Python has not loaded itself."""
    code = """import sys
before = set(sys.modules)
with open(sys.argv[1], encoding="utf-8") as file:
    exec(compile(file.read(), "_guard", "exec"), {"__name__": "_guard"})
print(*sorted(set(sys.modules) - before))"""
    run = subprocess.run([sys.executable, "-c", code, str(Path(_guard.__file__))], env=ENVIRON, capture_output=True, text=True, check=True)
    assert "" == run.stdout.strip()
