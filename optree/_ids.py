"""Ids: a transaction id is drawn, every other id follows from it and from the path.

A node's id is ``<txn>:<path>``, so one path is one node and a resumed session cannot give an id twice.
"""

from __future__ import annotations

import os
import re
from time import time_ns

try:
    from _blake2 import blake2b  # hashlib has the same, and brings OpenSSL, which takes 10 ms
except ImportError:  # another Python
    from hashlib import blake2b

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
TXN_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_NODE_ID = re.compile(r"[!-.0-\[\]-~]{1,256}")
"""What is printable in ASCII, but for spaces and both slashes."""
_GENERATED = re.compile(r"[0-9a-z]{8}-[0-9a-z]{8}")
"""What `new_txn` generates, from 1972 to 2059."""
SOON = 60_000
"""How many ms two clocks may be apart that are taken for one moment; a clock that was set back further begins anew."""
WRITER_SPAN = 1_000_000
"""Turn and op numbers that the k-th process to join gives in sessions it does not own begin at k times this."""
_latest = 0


def new_txn() -> str:
    """Return a new transaction id, ``<ms in base 36>-<8 base-36 characters>`` (seed 004 uses 6); those of a process are in order."""
    global _latest  # noqa: PLW0603 - what two threads generate at once has no order
    now = time_ns() // 1_000_000
    _latest = _latest + 1 if 0 <= _latest - now < SOON else now
    return f"{_base36(_latest)}-{_base36(int.from_bytes(os.urandom(8), 'big'))[-8:]:0>8}"


def txn_time(txn: str) -> float | None:
    """Return when `new_txn` generated a transaction id, in epoch ms; None of one that it did not."""
    return float(int(txn[:8], 36)) if _GENERATED.fullmatch(txn) else None


def is_txn(text: str) -> bool:
    """Tell whether *text* may name a session on disk (no separators, no dots, at most 64 characters)."""
    return TXN_PATTERN.fullmatch(text) is not None


def txn_of(told: object, kind: str = "file") -> str:
    """Return *told* if it may name a session; else ``<kind>-<hash of it>``, the same each time: a name that says nothing to a file system.

    For txns out of files: whatever a file says, the name stays in the folder where it is put.
    """
    if isinstance(told, str) and is_txn(told):
        return told
    return f"{kind}-{content_id(str(told).encode('utf-8', 'replace'))}"


def is_node_id(text: str) -> bool:
    """Tell whether *text* may be the id of a session, a turn or an op: printable, without spaces and slashes, 1 to 256 characters."""
    return _NODE_ID.fullmatch(text) is not None


def node_id(txn: str, path: str) -> str:
    """Return a node's id, ``<txn>:<path>``; of the root session, whose path is empty, the txn."""
    return f"{txn}:{path}" if path else txn


def trace_id(txn: str) -> str:
    """Return the OpenTelemetry trace id of a session's tree, 32 hexadecimal digits; it follows from the txn alone."""
    return blake2b(txn.encode(), digest_size=16, person=b"optree.trace").hexdigest()


def content_id(*parts: bytes) -> str:
    """Return a 24-hex-digit id of the bytes: same content, same id."""
    digest = blake2b(digest_size=12)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _base36(number: int) -> str:
    text = ""
    while number:
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
    return text or "0"


def span_id(node: str) -> str:
    """Return the OpenTelemetry span id of a node, 16 hexadecimal digits, never all zeros; it follows from the node's id alone."""
    return blake2b(node.encode(), digest_size=8, person=b"optree.span").hexdigest()
