"""Programs of several processes: what any of them has recorded is delivered after their end, without another run."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.otel.leaving_agent import WHOLE, WITHIN
from tests.otel.mirroring import environ, expected, loaded, unsent
from tests.otel.receiver import Fault, receiver, until

AGENT = Path(__file__).with_name("leaving_agent.py")
SECONDS = 60.0
"""In which all must have arrived, on any machine."""


def has_left(message):
    """Tell whether a request has a span of what is left."""
    return "execute_tool left" in str(message)


@pytest.mark.parametrize("way", [*WITHIN, *WHOLE])
def test_what_any_process_has_left(tmp_path, way):
    """However a process ends, and whether its parent or it goes first: all that had ended arrives after the last one's end."""
    with receiver("http/protobuf") as collector:
        collector.always = Fault(503, text="try later", when=has_left)
        where = environ(tmp_path, collector.endpoint, OPTREE_OTEL_DELIVER_AT_EXIT="true")
        done = subprocess.run([sys.executable, str(AGENT), way], env=where, capture_output=True, text=True, timeout=120, check=True)
        txn = done.stdout.strip()
        collector.always = None
        assert collector.wait_until(lambda: any(span.name == "execute_tool left" for span in collector.spans()), SECONDS), done.stderr
        assert until(lambda: [] == unsent(tmp_path), SECONDS)
        tree = loaded(tmp_path, txn).session
        assert sorted(one.span_id for one in expected(tree) if one.told != "interrupted") == sorted(
            span.span_id.hex() for span in collector.spans()
        )
        assert "not sent yet" not in done.stderr
