import cProfile
import json
import pstats

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import optree
from optree._nodes import Payload
from optree.compare import context_changes
from optree.compare.calls import messages_since
from optree.compare.histories import CallSpan, Histories, previous_calls
from optree.testing import Ticking, capture
from tests.compare.sessions import INPUT, READ, WRITE, assistant, call, user
from tests.strategies import play, programs

LONG = "s" * 4000
texts = st.lists(st.sampled_from(["ua", "ub", "aa", "ab", "u" + "long " * 9, "u" + "long " * 9 + "!"]), max_size=9)
"""Histories: a message is a letter for its role, and its text."""
DOUBLE = 2.5
"""Twice as many calls may take so many times as much work: what grows with their square takes four times."""


def contexts(record, step=0.001):
    """Return what is told of the calls that a function makes in a session."""
    with capture(Ticking(step=step)) as recording, optree.session(agent="lead"), optree.turn(user="go"):
        record()
    return context_changes(recording.tree)


def chat(*calls):
    """Return a function that makes calls, each given as messages and keywords."""

    def record():
        for messages, figures in calls:
            call(messages, **figures)

    return record


def priced(base=0):
    """Return calls of which prices can be worked out, in conversations of their own."""
    figures = [(100, 2000, 0, 50), (300, 0, 5000, 90), (90, 3000, 700, 20), (10, 100, 20, 10), (55, 999, 4000, 70)]
    return [
        ([user(f"price {base + number}")], {"sent": sent, "read": read, "written": written, "output": output})
        for number, (sent, read, written, output) in enumerate(figures)
    ]


def test_appended():
    """A call that only appends keeps all that was there: counted in messages and in bytes of their JSON."""
    history = [user("one"), assistant("two")]
    first, second = contexts(chat((history, {}), ([*history, user("three")], {})))
    assert ("first", None, 2) == (first.cache, first.previous, first.count)
    assert (first.path, 2, 1, 0) == (second.previous, second.messages.kept, second.messages.appended, second.messages.removed)
    assert (first.bytes, len(b'{"role":"user","content":"three"}')) == (second.messages.kept_bytes, second.messages.appended_bytes)
    assert ([], [], None) == (second.messages.edits, second.parts, second.cause)


def test_edited_removed_inserted():
    """Messages in the shared part that are not as they were are named with their position, role, and what differs."""
    before = [user("zero"), assistant("one " + LONG), user("two"), assistant("three"), user("four")]
    after = [before[0], assistant("one " + LONG + "!"), before[2], user("new here"), before[3], before[4], assistant("five")]
    first, second, third = contexts(chat((before, {}), (after, {}), ([*after[:4], *after[5:]], {})))
    assert (1, 3, 1, 1, 0, 1) == tuple(
        getattr(second.messages, name) for name in ("kept", "later", "edited", "inserted", "removed", "appended")
    )
    assert [("edited", 1, "assistant"), ("inserted", 3, "user")] == [(edit.kind, edit.at, edit.role) for edit in second.messages.edits]
    assert ("…" + "s" * 24, "…" + "s" * 24 + "!") == (second.messages.edits[0].before, second.messages.edits[0].after)
    assert [("removed", 4, "assistant", "three", None)] == [
        (edit.kind, edit.at, edit.role, edit.before, edit.after) for edit in third.messages.edits
    ]
    assert second.cause.startswith("message 1 (assistant) edited: ")
    assert first.path == second.previous


@pytest.mark.parametrize(
    ("name", "before", "after", "said"),
    [
        ("model", {"model": "small"}, {"model": "large"}, "model: small → large"),
        ("tools", {"tools": [{"name": "a"}, {"name": "b"}]}, {"tools": [{"name": "b"}, {"name": "a"}]}, "tools: a, b → b, a"),
        ("tools", {"tools": [{"name": "a"}]}, {"tools": [{"name": "a", "x": 1}]}, 'tools: {"name":"a"} → {"name":"a","x":1}'),
        ("tools", {"tools": [{"function": {"name": "a"}}]}, {}, 'tools: - [{"function":{"name":"a"}}]'),
        ("system", {"system": "at 09:31"}, {"system": "at 09:32"}, "system: at 09:31 → at 09:32"),
        ("system", {"config": {"system_instruction": "x"}}, {"config": {"system_instruction": "y"}}, "system: x → y"),
        ("output format", {"response_format": {"type": "text"}}, {"response_format": {"type": "json"}}, "output format: "),
        ("tool choice", {"tool_choice": "auto"}, {"tool_choice": "any"}, "tool choice: auto → any"),
        ("thinking", {}, {"thinking": {"budget_tokens": 5}}, 'thinking: + {"budget_tokens":5}'),
        ("cache key", {"prompt_cache_key": "a"}, {"prompt_cache_key": "b"}, "cache key: a → b"),
    ],
)
def test_parts_of_the_key(name, before, after, said):
    """A change of model, tools, system prompt, or a parameter of the cache's key, is named as what differs first."""
    history = [user(LONG)]
    figures = {"written": 3000}
    _, second = contexts(chat((history, {**figures, **before}), ([*history, user("more")], {**figures, **after})))
    assert [name] == [change.what for change in second.parts]
    assert second.cause.startswith(said)
    assert (1, "broken") == (second.messages.kept, second.cache)


def test_what_is_no_part_of_the_key():
    """A temperature breaks no cache, and neither do Anthropic's marks, which move along with the conversation."""
    marked = {"role": "user", "content": [{"type": "text", "text": "one", "cache_control": {"type": "ephemeral"}}]}
    plain = {"role": "user", "content": [{"type": "text", "text": "one"}]}
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    _, second = contexts(
        chat(
            ([marked], {"system": system, "temperature": 0.1}),
            ([plain, user("two")], {"system": [{"type": "text", "text": "Be brief."}], "temperature": 0.9}),
        )
    )
    assert ([], 1, 1, 0) == (second.parts, second.messages.kept, second.messages.appended, second.messages.edited)


def test_broken_cache_and_its_price():
    """A changed system prompt makes tokens be paid again: how many is estimated by bytes, their price comes from the session's bills."""
    history = [user("why " + LONG)]
    calls = [
        *priced(),
        (history, {"sent": 10, "written": 4000, "system": "at 09:31"}),
        ([*history, user("more")], {"sent": 4050, "system": "at 09:32"}),
    ]
    *_, first, second = contexts(chat(*calls))
    assert ("broken", True, "system: at 09:31 → at 09:32") == (second.cache, second.estimated, second.cause)
    share = second.messages.kept_bytes / (first.bytes + len(b'{"system":"at 09:31"}'))
    assert int(4010 * share) == second.reusable_tokens == second.lost_tokens
    assert second.lost_tokens * (INPUT - READ) == pytest.approx(second.lost_usd, rel=1e-6)


def test_tokens_written_again_cost_more():
    """Tokens that were written to the cache anew cost the price of that, less that of reading."""
    history = [user("why " + LONG)]
    calls = [
        *priced(),
        (history, {"sent": 0, "written": 4000, "system": "at 09:31"}),
        ([*history, user("more")], {"sent": 50, "written": 4000, "system": "at 09:32"}),
    ]
    *_, second = contexts(chat(*calls))
    assert second.lost_tokens * (WRITE - READ) == pytest.approx(second.lost_usd, rel=1e-6)


@pytest.mark.parametrize("bills", [0, 1, 3])
def test_price_is_not_invented(bills):
    """Where the session's bills do not determine the prices, what was lost costs an unknown amount."""
    history = [user("why " + LONG)]
    first = (history, {"written": 4000, "cost": False, "system": "a"})
    *_, second = contexts(chat(*priced()[:bills], first, ([*history, user("more")], {"sent": 4050, "cost": False, "system": "b"})))
    assert ("broken", None) == (second.cache, second.lost_usd)
    assert second.lost_tokens > 3000


def test_measured_and_missed():
    """Where all of the previous call is in this one, what could be read is measured; if nothing changed, the wait is named."""
    history = [user("why " + LONG)]
    calls = [
        (history, {"sent": 10, "written": 4000}),
        ([*history, user("x")], {"sent": 20, "read": 4000, "written": 30}),
        ([*history, user("x"), user("y")], {"sent": 4060}),
    ]
    _, second, third = contexts(chat(*calls), step=60)
    assert ("kept", False, 4000, 0) == (second.cache, second.estimated, second.reusable_tokens, second.lost_tokens)
    assert ("missed", False, 4030, 4030) == (third.cache, third.estimated, third.reusable_tokens, third.lost_tokens)
    assert " min after the previous call" in third.cause


def test_no_loss_where_no_cache_could_help():
    """A prefix too short to be cached, a rest smaller than a block, and figures that nobody gave, are no losses."""
    short = [user("why")]
    long = [user("why " + LONG)]
    for first, second, expected in [
        ({"written": 1000, "system": "a"}, {"sent": 1010, "system": "b"}, "kept"),
        ({"sent": 4000}, {"sent": 110, "read": 3900}, "kept"),
        ({"cost": None, "system": "a"}, {"cost": None, "system": "b"}, "unknown"),
        ({"sent": 4000}, {"sent": 4100}, "unknown"),
    ]:
        *_, found = contexts(chat((short if expected == "a" else long, first), ([*long, user("more")], second)))
        assert (expected, 0) == (found.cache, found.lost_tokens)


def test_unreported_cache_is_said():
    """Where no call tells of a cache nothing is said to be lost: what changed is told, and that its effect is not known."""
    history = [user("why " + LONG)]
    _, second = contexts(chat((history, {"sent": 4000, "system": "a"}), ([*history, user("more")], {"sent": 4050, "system": "b"})))
    assert ("unknown", 0, "system: a → b") == (second.cache, second.lost_tokens, second.cause)
    assert "no call of claude tells of a cache: whether anything was lost is not known" == second.note


@pytest.mark.parametrize("name", ["input", "contents"])
@pytest.mark.parametrize("size", [1, 600])
def test_other_names_of_messages(name, size):
    """OpenAI's `input` and Gemini's `contents` are histories too, pooled or in their place."""
    items = [{"role": "user", "parts": [{"text": "x" * size}]}, {"role": "model", "parts": [{"text": "y"}]}]
    more = [*items, {"type": "function_call_output", "output": "z"}]
    _, second = contexts(chat((None, {name: items}), (None, {name: more})))
    assert (2, 1, 0) == (second.messages.kept, second.messages.appended, second.messages.edited)


def test_plain_text_input():
    """A text is a history of one message."""
    _, second = contexts(chat((None, {"input": "hello"}), (None, {"input": "hello!"})))
    assert [("edited", "hello", "hello!")] == [(edit.kind, edit.before, edit.after) for edit in second.messages.edits]


def test_what_cannot_be_compared_says_why():
    """Requests that were not recorded, were cut, have no messages, or leave them with the provider, are not compared, and say so."""

    def record():
        call([user("one")])
        with optree.llm(provider="p", model="m"):
            pass
        call(None, temperature=1)
        call(None, input="more", previous_response_id="r1")
        call([user("one"), user("two")])

    with capture() as recording, optree.session(agent="lead"), optree.turn(user="go"):
        record()
    cut = Payload(msgspec.Raw(b'"[TRUNCATED] Original"'), None, 10**7, True)
    [*_, (_, _, last)] = optree.walk_ops(recording.tree.session)
    found = context_changes(recording.tree)
    assert ["no request is recorded", "the request has no messages", "earlier messages are with the provider (previous_response_id)"] == [
        one.note for one in found[1:4]
    ]
    assert ([None] * 3, found[0].path, 1) == ([one.messages for one in found[1:4]], found[4].previous, found[4].messages.kept)
    last.request = cut
    assert "the request was cut" == context_changes(recording.tree)[4].note


def test_lost_messages():
    """Of a history that is not all there, what is there is compared, and what is missing counted."""
    with capture() as recording, optree.session(agent="lead"), optree.turn(user="go"):
        call([user("one"), user("two")])
        call([user("one"), user("two"), user("three")])
    tree = recording.tree
    head = json.loads(bytes(next(op for _, _, op in optree.walk_ops(tree.session)).request.payload))["messages"]["$history"]
    first, _ = tree.pool.links[head]
    del tree.pool.links[first]
    _, second = context_changes(tree)
    assert (3, 1, 0) == (second.count, second.messages.appended, second.messages.removed)
    tree.pool.links[head] = (head, "nowhere")
    assert 2 == len(context_changes(tree))


def test_compaction():
    """After a compaction the removed messages are counted, not each held against the summary; what stays is no loss."""
    history = [user("system " + LONG), *[message for n in range(50) for message in (user(f"q {n}"), assistant(f"a {n}"))]]
    compacted = [history[0], user("Summary: much was said."), *history[-2:]]
    calls = [(history, {"sent": 100, "written": 5000}), ([*compacted, user("on")], {"sent": 200, "read": 3500})]
    _, second = contexts(chat(*calls))
    assert (1, 2, 98, 1) == (second.messages.kept, second.messages.later, second.messages.removed, second.messages.inserted)
    assert ("kept", 5) == (second.cache, len(second.messages.edits))


@settings(max_examples=60)
@given(texts, texts)
def test_every_message_is_accounted_for(before, after):
    """Whatever becomes of a history: each message of it was kept, edited or removed, each message now was kept, edited or is new."""
    histories = Histories()
    old, new = (histories.listed([{"role": text[0], "content": text[1:]} for text in one]) for one in (before, after))
    found = messages_since(histories, old, new)
    assert len(before) == found.kept + found.later + found.edited + found.removed
    assert len(after) == found.kept + found.later + found.edited + found.inserted + found.appended
    assert found.kept == next((at for at, (x, y) in enumerate(zip(before, after, strict=False)) if x != y), min(len(before), len(after)))
    assert histories.size[new] - found.appended_bytes >= found.kept_bytes + found.later_bytes


@settings(max_examples=40)
@given(st.lists(st.tuples(st.lists(st.sampled_from("ab"), max_size=4), st.integers(0, 6)), max_size=8))
def test_previous_call_has_the_longest_prefix(calls):
    """The previous call had ended, and no other that had shares a longer prefix."""
    histories = Histories()
    heads = [histories.listed([user(text) for text in texts]) for texts, _ in calls]
    histories.number()
    spans = [CallSpan("x", at, at + length, head) for at, ((_, length), head) in enumerate(zip(calls, heads, strict=True))]
    for at, found in enumerate(previous_calls(spans, histories)):
        ended = [earlier for earlier in range(at) if spans[earlier].ended_at <= at]
        shared = {earlier: histories.depth[histories.shared(heads[earlier], heads[at])] for earlier in ended}
        assert (found is None) == (not ended)
        assert found is None or max(shared.values()) == shared[found]


@settings(max_examples=30)
@given(programs)
def test_any_session_can_be_looked_at(program):
    """Any tree gives one entry for each of its LLM ops, in the order of their begin, and JSON of them."""
    tree = play(program).folded()
    found = context_changes(tree)
    assert sorted(op.path for _, _, op in optree.walk_ops(tree.session) if op.kind == "llm") == sorted(call.path for call in found)
    assert len(found) == len(json.loads(msgspec.json.encode(found)))


def test_parallel_calls():
    """Parallel branches go on from where they parted, and a call that still runs is nobody's previous one."""
    histories = Histories()
    branches = [["a"], ["a", "b"], ["a", "c"], ["a", "b", "b2"], ["a", "c", "c2"], ["title"], ["a", "b", "b2", "b3"]]
    heads = [histories.listed([user(text) for text in one]) for one in branches]
    histories.number()
    times = [(0, 1), (2, 5), (3, 6), (7, 9), (8, 10), (11, 12), (13, None)]
    spans = [CallSpan("x", begin, end, head) for (begin, end), head in zip(times, heads, strict=True)]
    assert [None, 0, 0, 1, 2, 4, 3] == previous_calls(spans, histories)


def test_failed_calls_are_passed_over():
    """A call that failed before the provider read it left nothing in the cache: the next one goes on from the one before."""

    def record():
        call([user("one")])
        with optree.llm(provider="p", model="m") as op:
            op.request([user("one"), user("two")])
            op.end("failed", "429")
        call([user("one"), user("two")])

    first, failed, third = contexts(record)
    assert (first.path, first.path) == (failed.previous, third.previous)


def test_runs_of_one_agent_share_its_cache():
    """A sub-agent's next run goes on from what its earlier run had, since the provider's cache does not tell them apart."""
    with capture() as recording, optree.session(agent="lead"), optree.turn(user="go"):
        for question in ("one", "two"):
            with optree.session(agent="helper"), optree.turn(user=question):
                call([{"role": "system", "content": LONG}, user(question)], 3000)
        call([user("other")])
    first, second, other = context_changes(recording.tree)
    assert ((first.path, 1), None) == ((second.previous, second.messages.kept), other.previous)


@pytest.mark.parametrize("between", [False, True])
def test_growing_histories_take_linear_time(between):
    """Twice as many calls with histories that grow take about twice the work, though they send four times as many messages."""
    work = {}
    for number in (150, 300):
        tree = growing(number, between=between)
        profile = cProfile.Profile()
        found = profile.runcall(context_changes, tree)
        work[number] = pstats.Stats(profile).total_calls
        assert number * 2 - 2 == found[-1].messages.kept
    assert work[300] < DOUBLE * work[150]


def growing(number, *, between=False):
    """Return a session whose history grows with each call, with short calls in between where asked for."""
    with capture() as recording, optree.session(agent="lead"), optree.turn(user="go"):
        history = []
        for step in range(number):
            history = [*history, user(f"question {step}"), assistant(f"answer {step}")]
            if between:
                call([user(f"title for {step}")])
            call(history)
    return recording.tree


def test_credentials_are_not_shown():
    """What changed is told without credentials."""
    keys = [f"sk-abcdefghijklmnopqrstuvwxyz{number}" for number in (1, 2)]
    found = contexts(chat(*(([user(f"use {key}")], {"system": f"key {key}", "tools": [{"name": "t", "api_key": key}]}) for key in keys)))
    assert b"abcdefghij" not in msgspec.json.encode(found)
    assert ["tools", "system"] == [change.what for change in found[1].parts]


@pytest.mark.parametrize(
    ("rates", "lost"), [({"cached": 0.3, "written": 3.75}, 2.7), ({}, 0.0), ({"cached": [[0, 0.3], [200_000, 0.6]]}, None)]
)
def test_price_of_the_snapshot(tmp_path, rates, lost):
    """What was lost costs by the price that the session's bills were made by, in dollars a million tokens, if that is one of all sizes."""
    table = tmp_path / "prices.json"
    table.write_text(json.dumps({"anthropic": {"claude": {"input": 3.0, "output": 15.0, **rates}}}))
    history = [user("why " + LONG)]
    optree.configure(prices=table)
    first = (history, {"sent": 10, "written": 4000, "cost": False, "system": "at 09:31"})
    _, second = contexts(chat(first, ([*history, user("more")], {"sent": 4050, "cost": False, "system": "at 09:32"})))
    assert ("broken", None if lost is None else pytest.approx(second.lost_tokens * lost / 1e6)) == (second.cache, second.lost_usd)
