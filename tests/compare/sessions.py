"""Sessions to compare: recorded from short descriptions, with generated ones among them."""

from hypothesis import strategies as st

import optree
from optree._tree import Tree
from optree.testing import Ticking, capture

INPUT, OUTPUT, READ, WRITE = 3e-6, 15e-6, 0.3e-6, 3.75e-6
"""US dollars a token."""


def run(turns, *, agent="lead", step=0.001) -> Tree:
    """Return the tree of a session of turns ``(prompt, [op…])``; an op is ``(name, arguments)`` or ``(agent, [turn…])``."""
    with capture(Ticking(step=step)) as recording:
        session(agent, turns)
    return recording.tree


def session(agent, turns):
    """Record a session, or a sub-agent's."""
    with optree.session(agent=agent):
        for prompt, ops in turns:
            with optree.turn(user=prompt):
                for name, held in ops:
                    if isinstance(held, list):
                        session(name, held)
                    else:
                        with optree.tool(name) as op:
                            op.request(**held)
                            op.response(f"done {held}")


def call(messages, sent=0, read=0, written=0, *, output=50, model="claude", cost=True, **members):
    """Record an LLM call and what it cost; with *cost* None it says no figures at all."""
    with optree.llm(provider="anthropic", model=model) as op:
        op.request(messages=messages, **members) if messages is not None else op.request(**members)
        if cost is not None:
            dollars = INPUT * sent + OUTPUT * output + READ * read + WRITE * written if cost else None
            op.account(input_tokens=sent, output_tokens=output, cache_read_tokens=read, cache_write_tokens=written, cost_usd=dollars)
        op.response("fine")


def user(text):
    """Return a message of the user."""
    return {"role": "user", "content": text}


def assistant(text):
    """Return a message of the assistant."""
    return {"role": "assistant", "content": text}


def numbered(turns):
    """Return turns whose prompts and arguments differ from all others."""
    return _numbered(turns, iter(range(10**6)))


def _numbered(turns, numbers):
    return [
        (
            f"prompt {next(numbers)}",
            [(name, _numbered(held, numbers)) if isinstance(held, list) else (name, {"n": next(numbers)}) for name, held in ops],
        )
        for ops in turns
    ]


_tools = st.tuples(st.sampled_from(["search", "read"]), st.just({}))
_leaves = st.lists(st.lists(_tools, max_size=5), max_size=2)
_ops = st.lists(_tools | st.tuples(st.sampled_from(["helper", "writer"]), _leaves), max_size=6)
described = st.lists(_ops, min_size=1, max_size=4).map(numbered)
"""Descriptions of sessions in which no two nodes hold the same."""


def places(turns):
    """Return every list of ops in a description."""
    found = []
    for _, ops in turns:
        found.append(ops)
        for _, held in ops:
            if isinstance(held, list):
                found += places(held)
    return found
