"""The logical work that every variant does, so that figures compare.

One log is one line of about 105 bytes. One chunk is one piece of reasoning of about 110 bytes. One op is: begin, 10 logs, 5 chunks,
1 accounting record of 6 figures, end: 18 events. A turn holds 20 ops.
"""

from __future__ import annotations

import random

OPS_PER_TURN = 20
EVENTS_PER_OP = 18
MODEL = "gpt-5"
LOGS = [f"attempt {i}: asking openai/gpt-5, 18342 tokens of context, 12 tools, at most 4096 tokens of output, streaming" for i in range(10)]
CHUNKS = [
    f"The user asks why node {i} was slow at 14:05 UTC. I should compare its queue length with its neighbours', and then " for i in range(5)
]
LOG = LOGS[3]
INPUT, OUTPUT, CACHED, COST, LATENCY = 18342, 512, 16000, 0.01843, 2310.0

VOCABULARY = [
    *("the", "a", "node", "queue", "metric", "shows", "that", "incident", "latency", "since", "deploy", "rollback", "cache", "region"),
    *("shard", "error", "retry", "budget", "at", "of", "14:05", "95%", "tool", "search", "tokens", "context", "model", "answer", "user"),
]
_TEXT = " ".join(random.Random(1).choices([*VOCABULARY, *(f"{number:x}" for number in range(4096, 65536, 97))], k=20_000))


def varied(number: int) -> str:
    """Return a log line of its own for each number, of about 105 bytes; it compresses as prose with ids does."""
    start = number * 7919 % (len(_TEXT) - 100)
    return f"{number} {_TEXT[start : start + 100]}"


def turns(ops: int) -> list[int]:
    """Return how many ops each turn holds."""
    return [min(OPS_PER_TURN, ops - done) for done in range(0, ops, OPS_PER_TURN)]
