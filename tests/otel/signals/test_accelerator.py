"""The compiled inner loops write what the Python functions write, to the byte, and leave to them what they do not know."""

import os
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from optree._nodes import LogEntry
from optree_otel.signals import protobuf, spans
from optree_otel.signals.protobuf import KeyValues
from optree_otel.signals.spans import put_logs

compiled = pytest.mark.skipif(
    protobuf.compiled_attributes is None and not os.environ.get("CI"),
    reason="optree is not compiled here: no C compiler or Python headers, or OPTREE_PURE",
)
_text = st.text(max_size=300) | st.text(st.characters(), max_size=20) | st.just("sk-" + "a" * 20)
_entries = st.builds(
    LogEntry,
    st.floats(0, 2e12) | st.sampled_from([-1.0, 1e300, float("inf"), float("nan"), 0.0]),
    st.sampled_from(["VRB", "WRN", "ERR", "TRC", "THK", "FIN", "odd"]),
    _text,
    st.none() | st.just("request"),
    st.just(msgspec.UNSET) | st.just(msgspec.Raw(b'{"a":1}')),
)
_pairs = st.lists(
    st.tuples(
        st.sampled_from(["gen_ai.usage.input_tokens", "optree.cost_usd", "key", "", "password", "k" * 200]),
        st.integers(-3, 300) | st.integers() | st.floats() | st.booleans() | st.none() | _text | st.lists(st.text(max_size=4), max_size=2),
    ),
    max_size=8,
)


def outcome(work):
    """Return what work returns, or what it raises."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is to be the same
        return type(error), str(error)


def test_ci_has_it():
    """Where the whole check runs, the inner loops are compiled."""
    if not os.environ.get("CI") or os.environ.get("OPTREE_PURE"):
        pytest.skip("this machine may have no C compiler, or is told to go without")
    assert (True, True) == (protobuf.compiled_attributes is not None, spans._log_lines is not None)


@compiled
@given(st.lists(_entries, max_size=6).map(tuple), st.sampled_from([0, 40, 65_536]))
@examples(max_examples=500)
def test_log_lines(logs, limit):
    """Log lines of any kind become the same events, or the same error."""

    def work():
        out = []
        put_logs(out, logs, limit)
        return b"".join(out)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans, "_log_lines", None)
        expected = outcome(work)
    assert expected == outcome(work)


@compiled
@given(st.lists(_pairs, max_size=5), st.sampled_from([0, 40, 65_536]))
@examples(max_examples=500)
def test_attributes(lists, limit):
    """Attributes of any kind, met before or not, become the same bytes, or the same error."""

    def work():
        writer = KeyValues(9)
        return [outcome(lambda pairs=pairs: writer.encode(pairs, limit)) for pairs in lists * 2]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protobuf, "compiled_attributes", None)
        expected = work()
    assert expected == work()


@compiled
def test_plain_ones_are_not_left_to_python():
    """What nearly all spans hold is written by the compiled functions, however much of it there is, and nothing of it is kept."""
    logs = tuple(LogEntry(1.7e12 + number, "VRB", f"line {number} é " * number) for number in range(200))
    pairs = [("optree.cost_usd", 0.5), ("gen_ai.usage.input_tokens", 1 << 40), ("optree.kind", "llm")]
    writer = KeyValues(9)
    writer.encode(pairs, 1000)
    assert None is not protobuf.compiled_attributes(pairs, writer._kept, writer._fronts)
    rounds, before = 1000, sys.getallocatedblocks()
    for _ in range(rounds):
        assert 200_000 < len(spans._log_lines(logs, 0))
        assert None is spans._log_lines((*logs, None), 0)
        protobuf.compiled_attributes(pairs, writer._kept, writer._fronts)
        assert None is protobuf.compiled_attributes([*pairs, ("a", "never met")], writer._kept, writer._fronts)
    assert rounds > 2 * (sys.getallocatedblocks() - before)  # other threads may keep some
