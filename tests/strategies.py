"""Generated programs: sequences of builder calls, with child sessions, parallel ops, late entries and unfinished nodes."""

from typing import Any, NamedTuple

from hypothesis import strategies as st

from optree import _records as r
from optree._builder import Op, SessionTreeBuilder, Stream
from optree._tree import Fold, Tree
from optree.testing import Ticking

SETTERS = (r.SessionSet, r.TurnSet, r.OpSet, r.Requested, r.Responded)
"""Records of which the last one of a node holds."""
STATUSES = ["ok", "failed", "cancelled"]
_which = st.integers(0, 30)
_text = st.text(max_size=12)
_status = st.sampled_from(STATUSES)
_name = st.sampled_from(["openai:gpt-4o", "search", "read", ""])
_figures = st.fixed_dictionaries(
    {},
    optional={
        "input_tokens": st.integers(0, 10**6),
        "output_tokens": st.integers(0, 10**6),
        "cache_read_tokens": st.integers(0, 10**6),
        "cache_write_tokens": st.integers(0, 10**6),
        "cost_usd": st.floats(0, 10, allow_nan=False),
        "status": st.sampled_from(["ok", "failed"]),
        "upstream_inference_cost_usd": st.floats(0, 10, allow_nan=False),
        "characters_in": st.integers(0, 10**6),
        "characters_out": st.integers(0, 10**6),
        "error": _text,
    },
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _text | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=8,
)
"""What traced code hands in: JSON, and floats, numbers and bytes that JSON cannot hold."""
_block = st.none() | st.dictionaries(_text, values, max_size=2)
_messages = st.none() | st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": _text}), max_size=4)
_severity = st.sampled_from(["VRB", "WRN", "ERR", "TRC", "THK", "FIN"])


def _step(verb: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(st.just(verb), *arguments)


steps = st.one_of(
    _step("begin_turn", _which, st.none() | _text, _block),
    _step("assistant", _which, _text),
    _step("end_turn", _which, _status, st.none() | _text),
    _step("begin_op", _which, st.sampled_from(["llm", "tool", "session", "system"]), _name, _block),
    _step("begin_op", _which, st.sampled_from(["llm", "tool"]), _name, _block),
    _step("child", _which, st.sampled_from(["reader", "writer"])),
    _step("log", _which, _text, _severity, st.none()),
    _step("log", _which, _text, st.just("VRB"), st.none()),
    _step("log_line", _which, _text),
    _step("think", _which, _text),
    _step("chunk", _which, _text),
    _step("account", _which, _figures),
    _step("request", _which, _messages, _block),
    _step("response", _which, values),
    _step("set", _which, st.none() | _name, st.dictionaries(st.sampled_from(["a", "b"]), values, max_size=2)),
    _step("prompt", _which, _text),
    _step("by_id", _which, _text, _figures),
    _step("end_op", _which, _status, st.none() | _text, st.dictionaries(st.sampled_from(["a", "b"]), values, max_size=2)),
    _step("end_well", _which),
    _step("message", _which, _text),
    _step("title", _which, st.none() | _text, st.none() | _text),
    _step("end_session", _which, _status, values),
    _step("deliver"),
)
programs = st.lists(steps, max_size=40)
paths = st.integers(0, 6).flatmap(lambda depth: st.tuples(*[st.integers(1 if part % 2 else 0, 10**6) for part in range(depth)]))
"""Parts of paths: turns from 0, ops from 1."""


class Taker:
    """Keeps the lines of what it takes, as the journal would write them."""

    def __init__(self):
        self.lines: list[bytes] = []

    def take(self, batch: list[r.Record]) -> None:
        """Encode records."""
        self.lines += [r.line(record, 0) for record in batch]


class Played(NamedTuple):
    """What a program left behind."""

    live: Tree
    lines: list[bytes]
    accounted: int
    """Accounting entries that the program itself made."""

    def records(self) -> list[r.Record]:
        """Return the records, decoded anew: no entry is shared with the live tree."""
        return [r.parse(line[:-1]) for line in self.lines]

    def folded(self, found: list[r.Record] | None = None) -> Tree:
        """Return the tree that records make, by default all of them in their order."""
        fold = Fold(self.live.session.origin_txn_id)
        for record in self.records() if found is None else found:
            fold.apply(record)
        return fold.finish()


def play(program: list[tuple[Any, ...]]) -> Played:
    """Run a program on a builder; steps for which there is nothing to work on are passed over."""
    taker = Taker()
    builder, accounted = play_on(Stream([taker]), program)
    return Played(builder.tree, taker.lines, accounted)


def play_on(stream: Stream, program: list[tuple[Any, ...]]) -> tuple[SessionTreeBuilder, int]:
    """Run a program on a stream; returns its builder, and how many accounting entries it made itself."""
    player = _Player(SessionTreeBuilder("root", txn="t", stream=stream, now=Ticking()))
    for verb, *arguments in program:
        getattr(player, verb)(*arguments)
    stream.close()
    assert "" == stream.last_failure
    return player.sessions[0], player.accounted


class _Player:
    """One method a verb; *which* picks among what there is, ended or not."""

    def __init__(self, root: SessionTreeBuilder):
        self.sessions = [root]
        self.turns: list[Any] = []
        self.ops: list[Op] = []
        self.accounted = 0

    def begin_turn(self, which, user, attributes):
        self.turns.append(_pick(self.sessions, which).begin_turn(user=user, attributes=attributes))

    def assistant(self, which, said):
        for turn in _some(self.turns, which):
            turn.assistant(said)

    def end_turn(self, which, status, error):
        for turn in _some(self.turns, which):
            turn.end(status, error)

    def begin_op(self, which, kind, name, attributes):
        session = _pick(self.sessions, which)
        turns = [turn for turn in self.turns if turn.builder is session]
        turn = _pick([*turns, None], which)
        self.ops.append(session.begin_op(kind, name, turn=turn, parent=_pick([*self.ops, None], which), attributes=attributes))

    def child(self, which, agent):
        hosts = [op for op in self.ops if op.node.kind == "session" and op.node.child_session is None]
        for op in _some(hosts, which):
            self.sessions.append(op.builder.attach_child_session(op, agent))

    def log(self, which, message, severity, details):
        for op in _some(self.ops, which):
            op.log(message, severity, details=details)

    def log_line(self, which, message):
        for op in _some(self.ops, which):
            op.log(message)

    def think(self, which, chunk):
        for op in _some(self.ops, which):
            op.think(chunk)

    def chunk(self, which, chunk):
        for op in _some(self.ops, which):
            op.chunk(chunk)

    def account(self, which, figures):
        for op in _some(self.ops, which):
            op.account(**figures)
            self.accounted += 1

    def request(self, which, messages, members):
        for op in _some(self.ops, which):
            op.builder.set_request(op, members or {}, messages)

    def response(self, which, payload):
        for op in _some(self.ops, which):
            op.response(payload)

    def set(self, which, name, attributes):
        for op in _some(self.ops, which):
            op.builder.record(r.OpSet(op.path, 0.0, name, op.builder.core.attributes(attributes)))

    def prompt(self, which, text):
        for turn in _some(self.turns, which):
            turn.builder.record(r.TurnSet(turn.path, prompts={"user": text}))

    def by_id(self, which, message, figures):
        for op in _some(self.ops, which):
            op.builder.append_log(op.id, message)
            op.builder.append_accounting(op.path, **figures)
            self.accounted += 1

    def end_op(self, which, status, error, attributes):
        for op in _some(self.ops, which):
            op.end(status, error, **attributes)

    def end_well(self, which):
        for op in _some(self.ops, which):
            op.end()

    def message(self, which, said):
        _pick(self.sessions, which).append_message(said)

    def title(self, which, title, status):
        _pick(self.sessions, which).set_title(title, status=status)

    def end_session(self, which, status, report):
        _pick(self.sessions, which).end_session(status, final_report=report)

    def deliver(self):
        self.sessions[0].core.stream.flush()


def _pick(items, which):
    return items[which % len(items)]


def _some(items, which):
    return [_pick(items, which)] if items else []


def shuffled(found: list[r.Record], random: Any) -> list[r.Record]:
    """Return records in any order in which each list, and what is set repeatedly on one node, keeps its own."""
    together = {r.OpEnd: r.OpSet}  # either sets attributes of an op: one writer has both, in their order
    keys = [(together.get(type(record), type(record)), getattr(record, "path", "")) for record in found]
    lists: dict[Any, list[r.Record]] = {}
    for key, record in zip(keys, found, strict=True):
        lists.setdefault(key, []).append(record)
    random.shuffle(keys)
    return [lists[key].pop(0) for key in keys]
