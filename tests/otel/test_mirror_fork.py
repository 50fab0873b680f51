import subprocess
import sys

from optree_otel.signals.metrics import Meter
from optree_otel.signals.resource import Resources
from tests.otel.mirroring import environ

FORKS = """
import os, signal, sys, time, warnings
warnings.simplefilter("ignore")
import optree, optree_otel.otlp.transport
optree_otel.otlp.transport.FORK_SECONDS = 20  # however busy the machine is
optree.configure(console=False, otel={"endpoint": "http://127.0.0.1:9"})
with optree.session("a"):
    until = time.monotonic() + 20
    while LIBRARY not in sys.modules and time.monotonic() < until:
        time.sleep(0.001)
    child = os.fork()
    if not child:
        signal.alarm(20)
        import requests
        os._exit(0 if requests.get else 1)
    print(LIBRARY in sys.modules, os.waitpid(child, 0)[1], flush=True)
os._exit(0)
"""


def test_a_fork_while_a_library_is_loaded(tmp_path):
    """The child can load it too: what its parent had loaded by half would hold it for ever."""
    for library in ("urllib3", "requests"):
        code = FORKS.replace("LIBRARY", repr(library))
        done = subprocess.run([sys.executable, "-c", code], env=environ(tmp_path), capture_output=True, text=True, timeout=60, check=True)
        assert "True 0\n" == done.stdout


def test_figures_tell_their_process():
    """Each meter, so each process, has an id of its own; only metrics have it in their resource."""
    resources = Resources(program="p")
    first, second = Meter(), Meter()
    assert first.instance == first.instance != second.instance
    assert first.instance.encode() in resources.encoded("p", instance=first.instance)
    assert b"service.instance.id" not in resources.encoded("p")


def test_no_thread_starts_in_a_fork(tmp_path):
    """A child that has done nothing yet has one thread: it may be another program soon, and gevent would run greenlets of the parent."""
    code = """
import os, sys, threading, warnings
warnings.simplefilter("ignore")
import optree
optree.configure(console=False, otel={"endpoint": "http://127.0.0.1:9"})
with optree.session("a"):
    child = os.fork()
    if not child:
        os._exit(threading.active_count())
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code], env=environ(tmp_path), capture_output=True, text=True, timeout=60, check=True)
    assert "1\n" == done.stdout
