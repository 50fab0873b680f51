import msgspec
import pytest

from optree import SessionTreeBuilder
from optree import _records as r
from optree._builder import Stream
from optree._builder.histories import PooledHistory
from optree._nodes import Pool
from optree._values import decode, raw
from tests.growth import size
from tests.strategies import Taker

TOOLS = [{"name": f"tool{number}", "description": "what it does " * 20} for number in range(8)]
LATER = 1.05
"""How much more than twice as much twice as many calls may take: numbers grow by a digit."""


def converse(calls):
    """Record an agent of so many calls, each of which sends the whole history and its tools again; return its builder and lines."""
    taker = Taker()
    stream = Stream([taker])
    builder = SessionTreeBuilder("a", txn="t", stream=stream)
    turn = builder.begin_turn()
    messages = [{"role": "system", "content": "be brief"}]
    for number in range(calls):
        messages.append({"role": "user", "content": f"question {number:04d} " + "q" * 300})
        with_history = builder.begin_op("llm", "openai:gpt-4o", turn=turn)
        with_history.request(messages, tools=TOOLS, temperature=0.5)
        messages.append({"role": "assistant", "content": f"answer {number:04d} " + "a" * 300})
        with_history.response(messages[-1])
        with_history.end()
    stream.close()
    return builder, taker.lines


def test_records_grow_with_what_is_new():
    """Twice as many calls that each send the whole history again make twice as many bytes of records, not four times."""
    few, many = (sum(map(len, converse(calls)[1])) for calls in (60, 120))
    assert 1.9 * few <= many <= 2 * LATER * few


def test_tree_grows_with_what_is_new():
    """The saved tree of twice as many such calls is twice as large."""
    few, many = (len(msgspec.json.encode(converse(calls)[0].tree)) for calls in (60, 120))
    assert 1.9 * few <= many <= 2 * LATER * few


def test_memory_grows_with_what_is_new():
    """The live tree of eight times as many such calls has eight times as many bytes, not 64 times."""
    few, many = (size((builder.node, builder.core.pool)) for builder, _ in map(converse, (20, 160)))
    assert 6 * few < many < 10 * few


def test_each_message_once():
    """Each message, and the list of tools, stands once in the pool, however often it was sent."""
    builder, lines = converse(10)
    assert 1 + 2 * 10 - 1 + 1 == len(builder.core.pool.blobs)
    assert 1 == b"".join(lines).count(b"question 0000")
    assert 1 == b"".join(lines).count(b"tool7")


def test_histories_read_back():
    """Each call's request resolves to all that it sent, live and from its records."""
    builder, lines = converse(5)
    pool = Pool()
    for record in (r.parse(line[:-1]) for line in lines):
        if isinstance(record, r.Pooled):
            pool.blobs.update(record.blobs)
            pool.links.update({link: (before, blob) for link, before, blob in record.links})
    for number, op in enumerate(builder.node.turns[0].ops):
        for found in (builder.core.pool.resolve(decode(op.request.payload)), pool.resolve(decode(op.request.payload))):
            assert (TOOLS, 0.5, 2 + 2 * number) == (found["tools"], found["temperature"], len(found["messages"]))
            assert found["messages"][-1]["content"].startswith(f"question {number:04d}")
            assert {"role": "system", "content": "be brief"} == found["messages"][0]


def test_shape_of_a_request():
    """A request keeps short members as they are and refers to long ones and to its history, with count and bytes (S4-25, S4-43)."""
    builder = SessionTreeBuilder("a")
    op = builder.begin_op("llm", "m")
    messages = [{"role": "user", "content": "hi"}]
    op.request(messages, tools=TOOLS, stream=True)
    payload = decode(op.node.request.payload)
    assert ("llm", True, {"$blob"}) == (op.node.request.kind, payload["stream"], set(payload["tools"]))
    assert (1, len(msgspec.json.encode(messages[0]))) == (payload["messages"]["count"], payload["messages"]["bytes"])


@pytest.mark.parametrize(
    "own", [{"$blob": {"a": 1}}, {"$blob": 1}, {"$blob": ["a"], "b": 2}, {"$blob": "a", "b": 2}, {"$history": {"a": 1}}, {"$history": None}]
)
def test_members_that_look_like_references(own):
    """Members of a request of the program's own stay what they are, though they have the names of references."""
    builder = SessionTreeBuilder("a")
    op = builder.begin_op("tool", "m")
    builder.set_request(op, {"sent": own})
    assert {"sent": own} == Pool().resolve(decode(op.node.request.payload))


def test_branches_share_their_beginning():
    """Histories that part share what they began with; each resolves to its own."""
    builder = SessionTreeBuilder("a")
    found = []
    for last in ("left", "right", "left"):
        op = builder.begin_op("llm", "m")
        op.request([{"content": "start"}, {"content": last}])
        found.append(decode(op.node.request.payload)["messages"]["$history"])
    assert ([{"content": "start"}, {"content": "right"}], found[0]) == (builder.core.pool.history(found[1]), found[2])
    assert (3, 3) == (len(builder.core.pool.blobs), len(builder.core.pool.links))


def test_repeated_message_is_two_entries():
    """A message that stands twice in a history stands twice in what it resolves to."""
    builder = SessionTreeBuilder("a")
    op = builder.begin_op("llm", "m")
    op.request(["again", "again"])
    assert ["again", "again"] == builder.core.pool.resolve(decode(op.node.request.payload))["messages"]


def test_empty_history():
    """An empty list of messages is one, not none."""
    op = SessionTreeBuilder("a").begin_op("llm", "m")
    op.request([])
    payload = decode(op.node.request.payload)
    assert ({"$history": "", "count": 0, "bytes": 0}, []) == (payload["messages"], Pool().resolve(payload)["messages"])


@pytest.mark.parametrize("lost", ["links", "blobs"])
def test_lost_content(lost):
    """A history of which a part was lost gives what is left of it."""
    pool = Pool({"x": raw("1st"), "y": raw("2nd")}, {"l1": ("", "x"), "l2": ("l1", "y")})
    del getattr(pool, lost)[{"links": "l1", "blobs": "x"}[lost]]
    assert {"links": ["2nd"], "blobs": [None, "2nd"]}[lost] == pool.history("l2")


def test_circle():
    """A chain of links that a damaged file closed to a circle ends."""
    pool = Pool({"x": raw("x")}, {"l1": ("l2", "x"), "l2": ("l1", "x")})
    assert ["x", "x"] == pool.history("l2")


def test_credentials_in_headers_are_not_kept():
    """Credentials in a request's headers never get into the tree (S4-48, S4-120)."""
    builder, taker = SessionTreeBuilder("a"), Taker()
    builder.core.stream.subscribe(taker)
    op = builder.begin_op("llm", "m")
    op.request(headers={"Authorization": "Bearer s3cret-s3cret", "accept": "json"}, url="u")
    assert {"headers": {"Authorization": "[REDACTED]", "accept": "json"}, "url": "u"} == decode(op.node.request.payload)
    assert b"s3cret" not in b"".join(taker.lines)


def test_a_history_grows_in_the_pool():
    """A history that is told message by message is the same request, of the same size, as one that is given whole; sent twice it is one."""
    messages = [{"role": "user", "content": "x" * 600}, {"role": "assistant", "content": "y"}, {"role": "user", "content": "z"}]
    builder = SessionTreeBuilder("a", txn="t")
    history, empty = PooledHistory(), builder.begin_op("llm", "p:m")
    builder.set_request(empty, {"temperature": 0}, history)
    for message in messages:
        history = builder.core.appended(history, message)
    grown, whole = builder.begin_op("llm", "p:m"), builder.begin_op("llm", "p:m")
    builder.set_request(grown, {"temperature": 0}, history)
    before = dict(builder.core.pool.links)
    builder.set_request(whole, {"temperature": 0}, messages)
    assert (whole.node.request, before) == (grown.node.request, builder.core.pool.links)
    assert {"temperature": 0, "messages": messages} == builder.tree.pool.resolve(decode(grown.node.request.payload))
    assert {"temperature": 0, "messages": []} == builder.tree.pool.resolve(decode(empty.node.request.payload))
