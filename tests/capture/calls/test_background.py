"""Responses that OpenAI's API works on in the background: the program asks, and retrieves what has come of it until it has ended."""

import json
import sys
from contextlib import contextmanager, nullcontext

import httpx
import openai
import pytest

import optree
from optree._capture.calls import background
from optree.errors import BudgetExceeded
from optree.testing import capture, replay
from tests.capture.provider import Reply, events
from tests.cli.conftest import CommandLine

ASKED = {"model": "gpt-5", "input": "Weather?", "background": True}
SAID = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "It rains"}]}
USAGE = {
    "input_tokens": 1200, "input_tokens_details": {"cached_tokens": 1000}, "output_tokens": 64,
    "output_tokens_details": {"reasoning_tokens": 40}, "total_tokens": 1264,
}  # fmt: skip


def response(status, **more):
    """Return a reply with the response as it stands."""
    known = {"id": "resp_1", "object": "response", "created_at": 1, "model": "gpt-5", "background": True, "tools": [], "output": []}
    return Reply(known | {"status": status} | more)


DONE = response("completed", output=[SAID], usage=USAGE)
STEPS = [response("queued"), response("in_progress"), DONE]


def client_of(url):
    """Return a client that asks there."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def ask(url, create=lambda client: client.responses.create(**ASKED)):
    """Ask, and retrieve until it has ended."""
    with client_of(url) as client:
        found = create(client)
        while found.status in ("queued", "in_progress"):
            found = client.responses.retrieve(found.id)
        return found


def ask_within_an_op(url):
    """Do so in the program's own op."""
    with optree.llm(provider="openai", model="gpt-5"):
        return ask(url)


def ask_decorated(url):
    """Ask in a decorated function, and retrieve behind it."""
    return ask(url, optree.llm(lambda client: client.responses.create(**ASKED)))


@pytest.mark.parametrize("call", [ask, ask_within_an_op, ask_decorated])
def test_what_is_retrieved_is_the_ops(recording, provider, call):
    """The op that asked has the answer and all tokens, once, and nothing warns that there are none."""
    provider.says(*STEPS)
    with optree.session("a"), optree.turn():
        assert "It rains" == call(provider.url).output_text
    [op] = recording.tree.session.turns[0].ops
    told = json.loads(bytes(op.response.payload))
    assert ("ok", "completed", "It rains") == (op.status, told["status"], told["output"][0]["content"][0]["text"])
    assert [(200, 1000, 64, 40)] == [
        (one.tokens.input_tokens, one.tokens.cache_read_input_tokens, one.tokens.output_tokens, one.tokens.reasoning_output_tokens)
        for one in op.accounting
    ]
    assert [] == [line.message for line in op.logs if line.severity == "WRN"]
    assert (1, 64) == (recording.tree.session.totals.llm_requests, recording.tree.session.totals.output_tokens)


def test_one_that_fails_in_the_background(recording, provider):
    """That it failed is said on the op."""
    provider.says(response("queued"), response("failed", error={"code": "server_error", "message": "no luck"}))
    with optree.session("a"), optree.turn():
        assert "failed" == ask(provider.url).status
    [op] = recording.tree.session.turns[0].ops
    assert any("failed in the background" in line.message and "no luck" in line.message for line in op.logs)


def test_one_that_is_never_retrieved(recording, provider):
    """Its tokens are unknown."""
    provider.says(response("queued"))
    with optree.session("a"), optree.turn(), client_of(provider.url) as client:
        client.responses.create(**ASKED)
    [op] = recording.tree.session.turns[0].ops
    assert [None] == [one.tokens for one in op.accounting]


@pytest.mark.parametrize(
    ("end", "more", "expected"), [("cancelled", {"usage": USAGE}, 1264), ("cancelled", {}, None), ("failed", {"usage": USAGE}, 1264)]
)
def test_one_that_brings_no_answer(recording, provider, end, more, expected):
    """The tokens of one that is cancelled, or fails, in the background are those that it tells, or unknown."""
    provider.says(response("queued"), response(end, **more))
    with optree.session("a"), optree.turn():
        assert end == ask(provider.url).status
    [op] = recording.tree.session.turns[0].ops
    assert [expected] == [one.tokens and one.tokens.total_tokens for one in op.accounting]


def test_one_that_fails_counts_as_failed(recording, provider):
    """A response that failed in the background is a call that failed."""
    provider.says(response("queued"), response("failed", error={"code": "server_error", "message": "no luck"}))
    with optree.session("a"), optree.turn():
        ask(provider.url)
    assert (1, 1) == (recording.tree.session.totals.llm_requests, recording.tree.session.totals.llm_failed)


def test_a_budget_counts_what_is_retrieved(hooked, provider):  # noqa: ARG001
    """A call behind one whose tokens passed the budget, as they were retrieved, is refused."""
    provider.says(*STEPS)
    with capture(), optree.session("a"), optree.turn(), optree.budget(tokens=1000):
        ask(provider.url)
        with pytest.raises(BudgetExceeded):
            ask(provider.url)


def test_the_ledger_has_what_is_retrieved_behind_the_session(tmp_path, provider):
    """Where a response is retrieved once its session has ended, tree and ledger agree on its tokens."""
    line = CommandLine(tmp_path)
    line.agent.write_text(BEHIND)
    provider.says(*STEPS)
    line("run", "--auto", "--", sys.executable, "agent.py", provider.url)
    assert "1 of 1 sessions agree" in line.read("ledger", "--check").stdout
    assert 64 == line.json("cost", "--all")["total"]["outputTokens"]


BEHIND = """
import sys
import openai
import optree

with openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none") as client:
    with optree.session("a"), optree.turn():
        found = client.responses.create(model="gpt-5", input="Weather?", background=True)
    while found.status in ("queued", "in_progress"):
        found = client.responses.retrieve(found.id)
"""


def test_a_soft_limit_that_is_passed_in_the_background(recording, provider):
    """That a budget's soft limit is passed by what is retrieved is said on the op that asked."""
    provider.says(*STEPS)
    with optree.session("a"), optree.turn(), optree.budget(tokens=2000, soft=0.5):
        ask(provider.url)
    [op] = recording.tree.session.turns[0].ops
    assert ["budget of 2000 tokens: 1264 used, past its soft limit of 50%"] == [line.message for line in op.logs if line.severity == "WRN"]


OTHER = {"usage": USAGE | {"output_tokens": 7, "total_tokens": 1207}}
OTHERS = [
    Reply(b"<html>", kind="text/html"),
    response("completed", id="resp_2", **OTHER),
    response("completed", object="response.deleted", **OTHER),
    Reply(json.loads(response("completed", **OTHER).pieces[0]), status=404),
]


def test_other_answers_change_nothing(recording, provider):
    """What is none, of another id or kind, refused, or not read as JSON leaves the op as it is; what comes then is taken, once."""
    provider.says(response("queued"), *OTHERS, DONE)
    with optree.session("a"), optree.turn(), client_of(provider.url) as client:
        client.responses.create(**ASKED)
        for reply in (*OTHERS, DONE, DONE):
            with pytest.raises(openai.NotFoundError) if reply.status == 404 else nullcontext():
                client.with_raw_response.responses.retrieve("resp_1")
    [op] = recording.tree.session.turns[0].ops
    assert [64] == [one.tokens.output_tokens for one in op.accounting]


@contextmanager
def many_of_them():
    """Open a client of a provider that has a response for each request, which is whole once it is retrieved."""
    known = {"object": "response", "model": "gpt-5", "background": True, "output": []}

    def answer(request):
        if request.method == "POST":
            return httpx.Response(200, json=known | {"id": f"resp_{json.loads(request.content)['input']}", "status": "queued"})
        name = request.url.path.rpartition("/")[2]
        return httpx.Response(200, json=known | {"id": name, "status": "completed", "output": [SAID], "usage": USAGE})

    with httpx.Client(base_url="https://api.openai.com", transport=httpx.MockTransport(answer)) as client:
        yield client


def asked_one_by_one(monkeypatch, ages):
    """Ask for a response so many hours ago each, and retrieve all now."""
    hours = [0.0]
    monkeypatch.setattr(background, "monotonic", lambda: hours[0] * 3600)
    with many_of_them() as client:
        for number, age in enumerate(ages):
            hours[0] = -age
            client.post("/v1/responses", json=ASKED | {"input": str(number)})
        for number in range(len(ages)):
            client.get(f"/v1/responses/resp_{number}")


@pytest.mark.parametrize(("ages", "expected"), [([2, 0.9, 0], [False, True, True]), ([0] * 258, [False, False, *[True] * 256])])
def test_what_nobody_retrieves_is_forgotten(recording, monkeypatch, ages, expected):
    """256 responses are waited for, for an hour each once another begins: of others the tokens are unknown, and their ops say so."""
    with optree.session("a"), optree.turn():
        asked_one_by_one(monkeypatch, ages)
    ops = recording.tree.session.turns[0].ops
    assert expected == [op.accounting[-1].tokens is not None for op in ops]
    assert expected == [not any(line.message.startswith("not retrieved within an hour") for line in op.logs) for op in ops]


def test_a_budget_holds_what_is_to_come(recording):  # noqa: ARG001
    """What a response in the background may take is held until it is retrieved, as for a call that is under way."""
    with optree.session("a"), optree.turn(), optree.budget(tokens=3000, reserve_tokens=1264) as budget, many_of_them() as client:
        for name in ("1", "2"):
            client.post("/v1/responses", json=ASKED | {"input": name})
        assert (0, 2528, 2) == (budget.used["tokens"], budget.reserved["tokens"], budget.used["calls"])
        with pytest.raises(BudgetExceeded):
            client.post("/v1/responses", json=ASKED | {"input": "3"})
        for name in ("1", "2"):
            client.get(f"/v1/responses/resp_{name}")
        assert (2528, 0) == (budget.used["tokens"], budget.reserved["tokens"])


def test_an_exception_amid_a_retrieval(recording, monkeypatch):
    """A response that an exception out of a signal's handler kept from being taken is taken when it is retrieved once more."""

    def interrupted(*_figures, **_more):
        raise KeyboardInterrupt

    with optree.session("a"), optree.turn(), many_of_them() as client:
        client.post("/v1/responses", json=ASKED | {"input": "1"})
        with monkeypatch.context() as patch:
            patch.setattr(background, "account_late", interrupted)
            with pytest.raises(KeyboardInterrupt):
                client.get("/v1/responses/resp_1")
        client.get("/v1/responses/resp_1")
    [op] = recording.tree.session.turns[0].ops
    assert [64] == [one.tokens.output_tokens for one in op.accounting]


def test_what_a_child_forgets(recording, monkeypatch):
    """A child that waits for too many responses says nothing in the ops of its parent."""
    with optree.session("a"), optree.turn(), many_of_them() as client:
        client.post("/v1/responses", json=ASKED | {"input": "1"})
        monkeypatch.setattr(background, "_MOST", 1)
        monkeypatch.setattr(background.RUNTIME, "forked_at", background.RUNTIME.forked_at + 1)  # as in a child
        client.post("/v1/responses", json=ASKED | {"input": "2"})
    assert [] == [line for op in recording.tree.session.turns[0].ops for line in op.logs]


@pytest.mark.parametrize("way", ["cancel", "delete", "stream"])
def test_a_response_that_is_not_retrieved_as_one(recording, provider, way):  # noqa: ARG001
    """What a budget holds for a response is given back once that is cancelled or deleted, or the program reads it as a stream."""
    ends = {
        "cancel": response("cancelled"),
        "delete": response("completed", object="response.deleted"),
        "stream": events({"type": "response.completed"}),
    }
    provider.says(response("queued"), ends[way])
    with optree.session("a"), optree.turn(), optree.budget(tokens=3000, reserve_tokens=1264) as budget, client_of(provider.url) as client:
        client.responses.create(**ASKED)
        assert 1264 == budget.reserved["tokens"]
        if way == "cancel":
            client.responses.cancel("resp_1")
        elif way == "delete":
            client.responses.delete("resp_1")
        else:
            list(client.responses.retrieve("resp_1", stream=True))
        assert 0 == budget.reserved["tokens"]


def test_a_response_that_is_read_as_a_stream_first(recording, provider):
    """One that the program reads as a stream, and then retrieves as a whole, has its answer and its tokens by that."""
    provider.says(response("queued"), events({"type": "response.completed"}), DONE)
    with optree.session("a"), optree.turn(), client_of(provider.url) as client:
        client.responses.create(**ASKED)
        list(client.responses.retrieve("resp_1", stream=True))
        client.responses.retrieve("resp_1")
    [op] = recording.tree.session.turns[0].ops
    assert [64] == [one.tokens.output_tokens for one in op.accounting]


def test_a_child_that_retrieves_it_too(tmp_path):
    """A response that a forked child and its parent retrieve is the parent's: it is billed once."""
    line = CommandLine(tmp_path)
    line.agent.write_text(FORKED)
    line("run", "--", sys.executable, "agent.py")
    total = line.json("cost", "last")["total"]
    assert (1, 64) == (total["calls"], total["outputTokens"])


FORKED = """
import os
import optree
from tests.capture.calls.test_background import ASKED, many_of_them

optree.instrument()
with optree.session("a"), optree.turn(), many_of_them() as client:
    client.post("/v1/responses", json=ASKED | {"input": "1"})
    if (child := os.fork()) == 0:
        client.get("/v1/responses/resp_1")
        os._exit(0)
    os.waitpid(child, 0)
    client.get("/v1/responses/resp_1")
"""


def test_a_replay_gives_the_end_at_once(recording, provider):
    """In a replay the answer that was retrieved is given when it is asked for: nothing is retrieved, and nothing sent."""
    provider.says(*STEPS)
    with optree.session("a"), optree.turn():
        ask(provider.url)
    count = len(provider.requests)
    with replay(recording.tree), optree.session("a"), optree.turn():
        assert "It rains" == ask(provider.url).output_text
    assert count == len(provider.requests)
