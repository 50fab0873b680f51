"""The scenarios that exceptions and signals hit have every public call in them."""

import inspect
import sys
from pathlib import Path

import pytest

import optree
from optree import _speed as speed
from tests.interrupts import rounds
from tests.interrupts.injecting import NOWHERE
from tests.interrupts.scenarios import CALLS_WITHIN, PRICES, ROOTS
from tests.interrupts.test_guard import OWN, SURFACE
from tests.tracing.conftest import runtime  # noqa: F401 - a fixture

SCENARIOS = Path(__file__).with_name("scenarios.py")


def code_of(name):
    """Return the code of a name of the surface, without what stands around it."""
    kind, _, member = name.partition(".")
    value = getattr(optree, kind)
    value = inspect.getattr_static(value, member) if member else value
    value = value.fget if isinstance(value, property) else value.__init__ if inspect.isclass(value) else value
    return inspect.unwrap(value).__code__


@pytest.mark.usefixtures("runtime")
def test_each_public_call_is_in_a_scenario(tmp_path, monkeypatch):
    """A scenario itself makes each public call, method and property alike; two of them are scenarios as they are."""
    (tmp_path / "prices.json").write_text(PRICES)
    optree.configure(console=False, prices=tmp_path / "prices.json")
    with speed.plainly():
        wanted = {code_of(name): name for name in SURFACE}
        hooking = [getattr(call, "func", call) for call in rounds.HOOKING.values()]
        called = {name for name in SURFACE if getattr(optree, name, None) in hooking}

        def watch(frame, event, _arg):
            caller = frame.f_back
            if event == "call" and frame.f_code in wanted:
                while caller is not None and caller.f_code.co_filename in OWN:
                    caller = caller.f_back
                if caller is not None and Path(caller.f_code.co_filename) == SCENARIOS:
                    called.add(wanted[frame.f_code])

        def run(_injection, function):
            sys.setprofile(watch)
            try:
                function()
            finally:
                sys.setprofile(None)

        monkeypatch.setattr(rounds.Injection, "run", run)
        assert [] == [flaw for name in (*ROOTS, *CALLS_WITHIN) for flaw in rounds.Round(name, NOWHERE).run(probing=False)]
    assert [] == [name for name in SURFACE if name not in called]
