import os
import subprocess
import sys

LIMIT = 3.5  # times msgspec's own import, which has most of it; 1.4 to 2.6 was measured on busy machines; a library of `TOO_HEAVY` adds 2
RUNS = 9
TOO_HEAVY = ["typer", "rich", "httpx", "asyncio", "opentelemetry", "starlette", "importlib.metadata"]
ENVIRON = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}  # empty counts as unset: only the first run compiles


def test_import_is_quick():
    """Importing optree costs little more than importing msgspec does (the benchmark has the milliseconds)."""
    codes = ("import optree", "import msgspec", "pass")
    runs = [[cpu_seconds(code) for code in codes] for _ in range(RUNS)]
    with_optree, with_msgspec, bare = (min(column) for column in zip(*runs, strict=True))  # a busy machine only ever adds
    assert LIMIT >= (with_optree - bare) / (with_msgspec - bare)


def test_import_is_light():
    """Importing optree loads none of the libraries that only some of its parts use."""
    code = f"import sys, optree; print([name for name in {TOO_HEAVY} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], env=ENVIRON, capture_output=True, text=True, check=True)
    assert "[]" == run.stdout.strip()


def cpu_seconds(code):
    """Return the CPU time, user and system, of a new interpreter that runs the code."""
    process = os.posix_spawn(sys.executable, [sys.executable, "-c", code], ENVIRON)
    _, status, usage = os.wait4(process, 0)
    assert status == 0
    return usage.ru_utime + usage.ru_stime
