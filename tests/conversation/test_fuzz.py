from hypothesis import given, settings
from hypothesis import strategies as st

from optree.conversation import line
from tests.conversation.conftest import DATA, read

GOOD = [
    one
    for path in sorted(DATA.glob("*.jsonl"))
    for one in path.read_bytes().splitlines()
    if one and b"[...]" not in one and b"edit" not in one
]


@given(st.binary(max_size=2_000))
def test_random_bytes(data):
    """Random bytes never raise, never loop, and give a fault for each line that is no event."""
    events, faults = read(data)
    assert len(events) + len(faults) <= 3 * (1 + data.count(b"\n"))
    assert all(1 <= fault.line <= 1 + data.count(b"\n") for fault in faults)


@st.composite
def mutated(draw):
    """Return lines of the examples, some of them mutated, with the numbers of those that are not."""
    lines, kept = [], []
    for number, one in enumerate(draw(st.lists(st.sampled_from(GOOD), min_size=1, max_size=12)), 1):
        if draw(st.booleans()):
            lines.append(one)
            kept.append(number)
            continue
        at = draw(st.integers(0, len(one) - 1))
        length = draw(st.integers(0, 30))
        lines.append((one[:at] + draw(st.binary(max_size=10)) + one[at + length :]).replace(b"\n", b" "))
    return lines, kept


@settings(max_examples=150)
@given(mutated())
def test_mutated_lines(found):
    """Damaged lines never raise; each good line beside them is kept, in its place; all that is read can be written (S0-35)."""
    lines, kept = found
    events, _ = read(b"\n".join(lines))
    expected = [read(lines[number - 1])[0][0] for number in kept]
    rest = iter(events)
    assert all(any(event == one for one in rest) for event in expected)
    for event in events:
        assert [event] == read(line(event))[0]
