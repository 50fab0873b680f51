"""A program that puts spans into a sender and ends, or forks: run by the tests with a destination as JSON and a way to go on.

Prints the wall time at which its own code has ended, so that a test can tell how long the interpreter took after it.
"""

import json
import os
import sys
import time

from optree_otel.otlp.batches import EncodedItem, Limits
from optree_otel.otlp.sender import Sender
from optree_otel.otlp.transport import connect
from optree_otel.settings import Destination


class Spans:
    """A source of spans that are their name only, written by hand."""

    def encode(self, item: str) -> EncodedItem:
        """Return a span of that name."""
        return EncodedItem(0, _field(5, item.encode()))

    def frame(self, entries: list[EncodedItem]) -> bytes:
        """Return a request: resource spans (1) of scope spans (2) of spans (2)."""
        return _field(1, _field(2, b"".join(_field(2, entry.body) for entry in entries)))

    def shrink(self, item: str, limit: int) -> None:
        """Return nothing: spans are small."""

    def delivered(self, items: list[str]) -> None:
        """Do nothing."""

    def lost(self, item: str, reason: str) -> None:
        """Do nothing."""

    left = delivered


def _field(number: int, body: bytes) -> bytes:
    assert len(body) < 16384
    return bytes([number << 3 | 2, len(body) & 127 | 128, len(body) >> 7]) + body


def main(destination: Destination, way: str) -> None:
    """Put, and end as *way* says."""
    sender = Sender("traces", Spans(), lambda: connect(destination), Limits(linger=0.0))
    sender.put("one")
    if way == "later":  # in the middle of a request, or of the pause after one
        time.sleep(1.0)
    if way == "fork":
        assert sender.flush(20)
        sender.put("parent's")
        if os.fork() == 0:
            sender.after_fork()
            sender.put("child's")
            whole = sender.flush(20)
            os._exit(0 if whole else 9)
        assert os.wait()[1] == 0
        assert sender.flush(20)
        return
    sender.close(0.25)
    sys.stdout.write(f"{time.time()}\n")
    sys.stdout.flush()


main(Destination(**json.loads(sys.argv[1])), sys.argv[2])
