import os
import subprocess
import sys

LIMIT = 50 / 27  # 50 ms where importing msgspec, which has most of it, takes 27 ms; as a ratio, since machines differ by a factor of two
RUNS = 9
TOO_HEAVY = ["typer", "rich", "httpx", "asyncio", "opentelemetry", "starlette", "importlib.metadata"]
ENVIRON = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}  # empty counts as unset: only the first run compiles


def test_import_is_quick():
    """Importing optree costs at most 50 ms of CPU time over the bare interpreter, on a machine where msgspec alone costs 27 ms."""
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
