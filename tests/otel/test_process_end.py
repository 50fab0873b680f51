import json
import os
import subprocess
import sys
from pathlib import Path
from time import time

import pytest
from msgspec import to_builtins

from optree_otel.settings import Destination
from tests.otel.receiver import PROTOCOLS, free_port, raw, receiver

AGENT = Path(__file__).with_name("sending_agent.py")
ROOT = AGENT.parents[2]
TIMEOUT = 30.0
"""Seconds that one request may take: an exit that waits for it takes as long, one that does not takes milliseconds."""


def run(destination: Destination, way: str) -> tuple[float, subprocess.CompletedProcess[str]]:
    """Run the agent; returns the seconds from the end of its own code to the end of its process."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "exporters")])}
    arguments = [sys.executable, "-W", "ignore::DeprecationWarning", str(AGENT), json.dumps(to_builtins(destination)), way]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False, env=environ)
    return time() - float(done.stdout or time()), done


@pytest.mark.parametrize("way", ["at once", "later"])
@pytest.mark.parametrize("there", ["hang", "drip", "closed"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_exit_is_not_held(protocol: str, there: str, way: str):
    """Neither our thread nor the libraries' keep the process from ending, whatever the other side does."""
    with raw("hang" if there == "closed" else there) as port:
        number = free_port() if there == "closed" else port.port
        endpoint = f"http://127.0.0.1:{number}/v1/traces" if protocol != "grpc" else f"127.0.0.1:{number}"
        seconds, done = run(Destination(protocol, endpoint, timeout=TIMEOUT, insecure=True), way)
    assert (0, "") == (done.returncode, done.stderr)
    assert seconds < TIMEOUT / 2


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_fork(protocol: str):
    """After a fork the child sends what is its own, over a connection of its own, and the parent's goes out once."""
    with receiver(protocol) as collector:
        _, done = run(collector.destination(), "fork")
        assert (0, "") == (done.returncode, done.stderr)
        assert ["child's", "one", "parent's"] == sorted(span.name for span in collector.spans())
