"""What is said of the provider's cache, and what is not."""

import json

import msgspec
import pytest

import optree
from optree._cli.commands.diff import _explained, _summary, _verdict
from optree.compare import context_changes
from optree.compare.histories import bare
from optree.conversation import SessionViewer
from optree.testing import Ticking, capture
from tests.compare.sessions import assistant, call, user

LONG = "s" * 8000
DAYS = 3 * 86400.0
IMAGES = [
    {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 400_000}},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 400_000}},
]


def recorded(record, step=0.001):
    """Return the tree of what a function records."""
    with capture(Ticking(step=step)) as recording, optree.session(agent="lead"), optree.turn(user="go"):
        record()
    return recording.tree


def calls(*given, step=0.001):
    """Return what is told of calls, each given as messages and figures."""
    return context_changes(recorded(lambda: [call(messages, **figures) for messages, figures in given], step))


@pytest.mark.parametrize("first", [user("ask"), user("ask " + LONG), *({"role": "user", "content": [image]} for image in IMAGES)])
def test_an_edit_at_the_end_is_no_miss(first):
    """Where something was edited nothing is said to be as it was: an edit at the end neither breaks nor misses the cache."""
    texts = ["t" * 40000, "u" + "t" * 40000]
    _, found = calls(([first, user(texts[0])], {"written": 11000}), ([first, user(texts[1])], {"read": 100, "written": 10900}))
    assert 1 == found.messages.edited
    assert (True, 0) == (found.cache in ("kept", "unknown"), found.lost_tokens)
    assert "nothing" not in f"{found.cause} {_verdict(found)} {_explained(found)} {found.note}"


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_is_no_share_of_the_tokens(image):
    """The bytes of an image say nothing about its tokens: the share of what is in both calls is one of texts."""
    history = [{"role": "user", "content": [image]}, user("t" * 4000), user("v" * 4000)]
    _, found = calls((history, {"written": 9000}), ([history[0], user("u" * 4000), history[2]], {"sent": 9000}))
    assert 0.5 == pytest.approx(found.reusable_tokens / 9000, abs=0.05)
    assert 400_000 < found.messages.kept_bytes


def test_a_retried_call_sent_its_last_attempt():
    """Of a call with several accounting entries the last one is what the cache had: a perfect hit behind it is no loss."""

    def record():
        history = [user(LONG)]
        for read, attempts in ((0, 2), (5000, 1)):
            with optree.llm(provider="openai", model="gpt") as op:
                op.request(messages=history)
                for _ in range(attempts):
                    op.account(input_tokens=5000 + read, cache_read_tokens=read, output_tokens=5)
            history = [*history, assistant("a"), user("more")]

    first, second = context_changes(recorded(record))
    assert (10000, "kept", 5000, 0) == (first.input_tokens, second.cache, second.reusable_tokens, second.lost_tokens)


def test_a_model_without_a_cache_loses_nothing():
    """Where no call of a model tells of a cache, what became of it is unknown, in no total, and said."""
    found = calls(*(([user(f"now {number}"), user(LONG)], {"sent": 3000, "model": "llama3.2"}) for number in range(4)))
    assert ["first", "unknown", "unknown", "unknown"] == [one.cache for one in found]
    assert "no call of llama3.2 tells of a cache: whether anything was lost is not known" == found[1].note
    assert "message 0 (user) edited: now 0 → now 1" == found[1].cause
    assert "none lost" not in (said := _summary(found, 0))
    assert "broke" not in said
    assert "of 3 it is not known" in said


def test_models_by_turns():
    """A switch to a model of which no call tells of a cache, and back, is unknown; between two that tell, the switch is the cause."""
    history = [user(LONG), assistant("k"), user("n")]
    given = [
        (history[:1], {"written": 5000, "model": "a"}),
        (history, {"sent": 5010, "model": "b"}),
        ([*history, user("m")], {"read": 5000, "sent": 30, "model": "a"}),
    ]
    assert ["first", "unknown", "unknown"] == [one.cache for one in calls(*given)]
    given[1][1]["written"] = 5010
    _, second, _ = calls(*given)
    assert ("broken", "model: a → b", 5000) == (second.cache, second.cause, second.lost_tokens)


@pytest.mark.parametrize(("texts", "cache"), [(("now 0", "now 1"), "broken"), (("now", "now"), "missed")])
def test_after_days_the_entry_had_expired(texts, cache):
    """After a wait that no provider promises to keep an entry for, the change may not be what lost it: it is told, and not counted."""
    given = [([user(text), user(LONG), user(str(number))], {"written": 3000}) for number, text in enumerate(texts)]
    given[1][0][2:2] = given[0][0][2:]
    _, found = told = calls(*given, step=DAYS)
    assert (cache, True) == (found.cache, found.expired)
    assert "or had expired" in _verdict(found)
    assert "days after the previous call" in found.note
    assert "0 broke the cache, 0 missed it" in (said := _summary(told, 0))
    assert "1 after a wait" in said
    assert "0 tokens lost" in said
    assert not calls(*given)[1].expired


def test_how_long_an_entry_lives():
    """Anthropic keeps an entry for 5 minutes, OpenAI for an hour at most; a request may ask for longer."""
    long = {"extra": {"cache_control": {"type": "ephemeral", "ttl": "1h"}}}

    def expired(seconds, provider="openai", **members):
        def record():
            for text in ("a", "b"):
                with optree.llm(provider=provider, model="m") as op:
                    op.request(messages=[user(text), user(LONG)], **members)
                    op.account(input_tokens=3005, cache_write_tokens=3000)

        tree = recorded(record)
        first, second = (op for _, _, op in optree.walk_ops(tree.session))
        second.started_at = first.ended_at + seconds * 1e3
        return context_changes(tree)[1].expired

    assert (False, True) == (expired(290, "anthropic"), expired(310, "anthropic"))
    assert (False, True) == (expired(3500), expired(3700))
    assert (False, True) == (expired(3500, "anthropic", **long), expired(3700, "anthropic", **long))
    assert (False, True) == (expired(80000, prompt_cache_retention="24h"), expired(90000, prompt_cache_retention="24h"))


@pytest.mark.parametrize("size", [1, 5000])
def test_a_whole_body_given_as_messages(size):
    """A body that stands where a request has its messages, and a prompt, are read as the viewer reads them."""
    history = [user("q" * size)]

    def record():
        for number in range(3):
            with optree.llm(provider="openai", model="gpt") as op:
                op.request(messages={"model": "gpt-4o", "tools": [{"name": f"t{number}"}], "messages": list(history)})
                op.account(input_tokens=10 + 3000 * number, cache_read_tokens=3000 * number)
                op.response("a")
            history.extend([assistant("a"), user("more")])

    found = context_changes(tree := recorded(record))
    assert [("gpt-4o", 1), ("gpt-4o", 3), ("gpt-4o", 5)] == [(one.model, one.count) for one in found]
    assert [(1, 2), (3, 2)] == [(one.messages.kept, one.messages.appended) for one in found[1:]]
    assert ["tools"] == [change.what for change in found[1].parts]
    assert 7 == len(SessionViewer(tree).events)


@pytest.mark.parametrize("given", [{"prompt": "q"}, {"prompt": [user("q")]}])
def test_a_prompt_is_a_history(given):
    """What a request has as its prompt is compared."""
    _, second = calls((None, given), (None, {"prompt": [*given["prompt"], user("x")] if isinstance(given["prompt"], list) else "q!"}))
    assert 1 == second.messages.kept + second.messages.edited
    assert "no messages" not in (second.note or "")


def test_what_is_surely_in_the_key_is_named_first():
    """The cause is what surely is in a cache's key (model, tools, system, messages) before what may not be, such as thinking."""
    before = [user("now 0"), user(LONG)]
    after = [user("now 1"), user(LONG)]
    low, high = ({"reasoning_effort": effort, "tool_choice": effort} for effort in ("low", "high"))
    _, edited = calls((before, {"written": 5000, **low}), (after, {"written": 5000, **high}))
    assert ("broken", "message 0 (user) edited: now 0 → now 1") == (edited.cache, edited.cause)
    assert ["tool choice", "thinking"] == [change.what for change in edited.parts]
    assert any("tool choice: low → high" in line for line in _explained(edited))
    _, system = calls((before, {"written": 5000, "system": "a", **low}), (after, {"written": 5000, "system": "b", **high}))
    assert "system: a → b" == system.cause
    tail = [before[1], user("x")], [before[1], user("y")]
    _, behind = calls((tail[0], {"written": 5000, **low}), (tail[1], {"written": 5000, **high}))
    assert ("broken", "tool choice: low → high") == (behind.cache, behind.cause)


def test_damaged_blobs():
    """A message that is damaged is one that is lost: nothing raises."""
    damaged = b'{"role":"user","cache_control":{"type'
    assert damaged == bare(damaged)
    tree = recorded(lambda: [call([user("a" + LONG)], 5), call([user("b" + LONG)], 5), call([user("a" + LONG), user("c")], 5)])
    for blob in tree.pool.blobs:
        tree.pool.blobs[blob] = msgspec.Raw(damaged)
    assert 3 == len(json.loads(msgspec.json.encode(context_changes(tree))))
