import signal

import pytest


@pytest.fixture(scope="session", autouse=True)
def signals():
    """Give the programs that tests start the signals' default actions, also where this run itself was started with some ignored."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
