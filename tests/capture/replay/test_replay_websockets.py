"""Recorded answers over websockets: a replay connects to a stand-in for the model, and the program gets the events that its answers are."""

import asyncio
import json
import sys

import openai
import pytest
import websockets.exceptions
import websockets.sync.client

import optree
from optree.testing import capture, replay
from tests.capture.clients.websocket_model import (
    ACKED,
    ASKED,
    CLIENTS,
    CREATE,
    CUT,
    HEARS,
    PCM,
    RESPONSE,
    SAID,
    SESSION,
    answer,
    asked_of,
    call,
    created,
    done,
    item,
    of_responses,
    of_threads,
    only_op,
    ops_of,
)
from tests.capture.conftest import outcome, record
from tests.capture.replay.test_replay import told
from tests.capture.sdk_calls import CHAT
from tests.cli.conftest import CommandLine

pytestmark = pytest.mark.usefixtures("hooked")
ASKS = {"type": "response.create", "model": "gpt-5", "input": [{"role": "user", "content": "Weather?"}], "stream": True}


def said_in(events):
    """Return what a program hears of answers: their texts and calls of tools, and how they ended."""
    ends = [event for event in events if event["type"] in ("response.done", "response.completed", "error")]
    return [(event["type"], (event.get("response") or {}).get("output"), (event.get("error") or {}).get("message")) for event in ends]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("opened", ["responses", "realtime"])
def test_an_answer_is_given_again(model, client, opened):
    """The program gets the recorded answer, as the client that it uses has it; nothing is sent, and nothing is paid."""
    sends = [ASKED, CREATE] if opened == "realtime" else [ASKS]
    steps = [SESSION, HEARS, ACKED, HEARS, *answer("r-1", "It ", "rains")] if opened == "realtime" else [HEARS, *of_responses(SAID)]
    model.says(*steps)
    expected, recorded = record(lambda: client(model.url, sends, opened=opened))
    heard = list(model.heard)
    model.says()
    with replay(recorded.tree):
        found, again = record(lambda: client(model.url, sends, opened=opened))
    assert said_in(expected) == said_in(found)
    assert (heard, told(recorded)) == (model.heard, told(again))
    assert 1 == len(said_in(found))


@pytest.mark.parametrize("client", CLIENTS)
def test_a_refusal_is_given_again(model, client):
    """A request that was refused is refused again, with its status and class."""
    error = {"type": "requests", "code": "rate_limit_exceeded", "message": "Slow down"}
    model.says(HEARS, {"type": "error", "status": 429, "error": error})
    _, recorded = record(lambda: client(model.url, [ASKS], opened="responses"))
    model.says()
    with replay(recorded.tree):
        found, again = record(lambda: client(model.url, [ASKS], opened="responses"))
    [(kind, _, message)] = said_in(found)
    assert ("error", True) == (kind, "Slow down" in message)
    after = only_op(again)
    assert "rate_limit_exceeded" == after.attributes["error.type"]
    assert ("failed", "rate_limit", 429) == (after.status, after.attributes["error.class"], after.attributes["http.response.status_code"])
    assert told(recorded) == told(again)


@pytest.mark.parametrize("opened", ["responses", "realtime"])
def test_a_response_that_failed_fails_again(model, opened):
    """One that the server began, and that failed before it said anything, ends by the same event, with its code."""
    error = {"code": "server_error", "message": "Broke"}
    if opened == "realtime":
        sends, steps = [CREATE], [created("r-1"), done("r-1", status="failed", status_details={"type": "failed", "error": error})]
    else:
        last = {"type": "response.failed", "response": RESPONSE | {"status": "failed", "error": error}}
        sends, steps = [ASKS], [{"type": "response.created", "response": RESPONSE}, last]
    model.says(*([SESSION] if opened == "realtime" else []), HEARS, *steps)
    expected, recorded = record(lambda: of_threads(model.url, sends, opened=opened))
    model.says()
    with replay(recorded.tree):
        found, again = record(lambda: of_threads(model.url, sends, opened=opened))
    assert (["response.created", expected[-1]], "server_error") == (
        [event["type"] if event["type"] == "response.created" else event for event in found[-2:]],
        only_op(again).attributes["error.type"],
    )


@pytest.mark.parametrize("opened", ["responses", "realtime"])
def test_a_request_that_differs_is_refused(model, opened):
    """The program gets an error that says where, and the test fails by it; nothing is sent."""
    if opened == "realtime":
        model.says(SESSION, HEARS, ACKED, HEARS, *answer("r-1", "It rains"))
        sends, other = [ASKED, CREATE], [ASKED | {"item": item("user", "Snow?")}, CREATE | {"event_id": "mine"}]
    else:
        model.says(HEARS, *of_responses(SAID))
        sends, other = [ASKS], [ASKS | {"model": "gpt-6"}]
    _, recorded = record(lambda: of_threads(model.url, sends, opened=opened))
    heard = list(model.heard)
    model.says()
    with pytest.raises(AssertionError, match=r"not as recorded at 1\.1"), replay(recorded.tree):
        found, _ = record(lambda: of_threads(model.url, other, opened=opened))
    assert [("error", None, True)] == [(kind, output, "not as recorded at 1.1" in message) for kind, output, message in said_in(found)]
    assert heard == model.heard


def test_calls_of_tools_and_their_results(model):
    """A conversation of several responses on one connection goes on as it did: each is asked for with what was said before."""
    asked = call("weather", '{"city": "Athens"}')
    result = {"type": "function_call_output", "call_id": "call-1", "output": "rain"}
    model.says(
        SESSION, HEARS, HEARS, ACKED, created("r-1"), {"type": "conversation.item.done", "item": asked}, done("r-1", asked),
        HEARS, HEARS, {"type": "conversation.item.added", "item": {"id": "item-o"} | result}, *answer("r-2", "It rains"),
    )  # fmt: skip

    def talk():
        with client, client.realtime.connect(model="gpt-realtime") as connection:
            return [turn(connection, item("user", "Weather?")), turn(connection, result)]

    def turn(connection, sent):
        connection.conversation.item.create(item=sent)
        connection.response.create()
        while (event := connection.recv()).type != "response.done":
            continue
        return event.response.output[0].to_dict()

    client = openai.OpenAI(api_key="none", base_url=f"http://{model.url}", websocket_base_url=f"ws://{model.url}")
    expected, recorded = record(talk)
    heard = list(model.heard)
    model.says()
    client = openai.OpenAI(api_key="none", base_url="http://nowhere.invalid", websocket_base_url="wss://nowhere.invalid/v1")
    with replay(recorded.tree):
        found, again = record(talk)
    assert (expected, heard) == (found, model.heard)
    assert [op.response.payload for op in ops_of(recorded)] == [op.response.payload for op in ops_of(again)]


@pytest.mark.parametrize("streamed", [False, True])
def test_an_agent_of_the_agents_sdk(model, streamed):
    """An agent whose model is behind a websocket runs again without it."""
    agents = pytest.importorskip("agents", reason="the SDK is not there for this Python")
    from agents.models.openai_responses import OpenAIResponsesWSModel

    async def running():
        async with openai.AsyncOpenAI(api_key="none", base_url=f"http://{model.url}", websocket_base_url=f"ws://{model.url}") as client:
            asked = OpenAIResponsesWSModel("gpt-5", openai_client=client)
            agent = agents.Agent("weather", instructions="Be brief.", model=asked)
            options = {"run_config": agents.RunConfig(tracing_disabled=True)}
            if streamed:
                found = agents.Runner.run_streamed(agent, "Weather?", **options)
                async for _ in found.stream_events():
                    continue
            else:
                found = await agents.Runner.run(agent, "Weather?", **options)
            await asked.close()
            return found.final_output

    model.says(HEARS, *of_responses(SAID))
    expected, recorded = record(lambda: asyncio.run(running()))
    model.says()
    with replay(recorded.tree):
        found, again = record(lambda: asyncio.run(running()))
    assert ("It rains", expected) == (found, found)
    assert told(recorded) == told(again)


PROGRAM = """
import json
import sys

from websockets.sync.client import connect

with connect(sys.argv[1] + "/responses") as model:
    for question in ("Weather?", "Snow?"):
        model.send(json.dumps({"type": "response.create", "model": "gpt-5", "input": question}))
        while (event := json.loads(model.recv()))["type"] not in ("response.completed", "error"):
            continue
        print(event["type"], event.get("response", event.get("error")).get("id"))
"""


ASKING = """
import json
import sys

import httpx
from websockets.sync.client import connect

model = connect("ws://" + sys.argv[1] + "/responses")


def ask(question):
    model.send(json.dumps({{"type": "response.create", "model": "gpt-5", "input": question}}))
    while json.loads(model.recv())["type"] not in ("response.completed", "error"):
        continue


def post(question):
    httpx.post(sys.argv[2] + "/v1/chat/completions", json={{"model": "gpt-5", "messages": [{{"role": "user", "content": question}}]}})


{asks}
ask("{last}")
model.close()
"""


def test_a_program(tmp_path, model):
    """`optree replay` runs a program without its model; `optree fork` refuses what was recorded over a websocket, and says why."""
    line = CommandLine(tmp_path)
    line.agent.write_text(PROGRAM)
    model.says(HEARS, *of_responses(SAID), HEARS, *of_responses(SAID, name="resp-2"))
    line("run", "--auto", "--", sys.executable, "agent.py", f"ws://{model.url}")
    [txn] = line.txns()
    run = line("replay", txn, "--", sys.executable, "agent.py", "wss://nowhere.invalid/v1")
    assert "response.completed resp-1\nresponse.completed resp-2\n" in run.stdout, run.stdout + run.stderr
    assert f"optree: 2 of 2 calls of models were answered as in {txn}\n" in run.stderr
    model.says(HEARS, HEARS)
    run = line("fork", txn, "--at", "2", "--", sys.executable, "agent.py", f"ws://{model.url}", code=1)
    assert "recorded answers cannot be given through websockets" in run.stderr
    assert "cost unknown" not in run.stderr


@pytest.mark.parametrize(("ahead", "expected"), [("socket", False), ("http", True), ("nothing", True)])
def test_no_fork_is_proposed_that_cannot_be(tmp_path, model, provider, ahead, expected):
    """Behind a replay that differs a fork is proposed only if all that was recorded ahead of it can be given in one."""
    line = CommandLine(tmp_path)
    model.says(HEARS, *of_responses(SAID), HEARS, *of_responses(SAID, name="resp-2"))
    provider.says(CHAT)
    asks = {"socket": 'ask("Weather?")', "http": 'post("Weather?")', "nothing": ""}[ahead]
    line.agent.write_text(ASKING.format(asks=asks, last="Snow?"))
    line("run", "--auto", "--", sys.executable, "agent.py", model.url, provider.url)
    [txn] = line.txns()
    line.agent.write_text(ASKING.format(asks=asks, last="Sun?"))
    run = line("replay", txn, "--", sys.executable, "agent.py", model.url, provider.url, code=1)
    assert "1 differ" in run.stderr
    assert expected == (f"optree fork {txn} --at" in run.stderr), run.stderr


def test_a_program_that_waits_for_more_comes_to_its_end(model):
    """One that looks at no error is not left waiting: behind a request that is not given an answer the connection is closed."""
    model.says(HEARS, *of_responses(SAID))

    def waits(question):
        with websockets.sync.client.connect(f"ws://{model.url}/responses") as connection:
            connection.send(json.dumps(ASKS | {"input": question}))
            while json.loads(connection.recv())["type"] != "response.completed":
                continue

    _, recorded = record(lambda: waits("Weather?"))
    model.says()
    with pytest.raises(websockets.exceptions.ConnectionClosedError), pytest.raises(AssertionError), replay(recorded.tree):
        record(lambda: waits("Snow?"))


@pytest.mark.parametrize("client", CLIENTS)
def test_a_connection_that_broke_breaks_again(model, client):
    """A response under which the connection was lost is not given, and the program's connection ends as well."""
    model.says(HEARS, CUT)
    before = outcome(lambda: client(model.url, [ASKS], opened="responses"))
    with capture() as recorded, optree.session("agent"), optree.turn():
        assert before == outcome(lambda: client(model.url, [ASKS], opened="responses"))
    model.says()
    with replay(recorded.tree), capture() as again, optree.session("agent"), optree.turn():
        after = outcome(lambda: client(model.url, [ASKS], opened="responses"))
    assert issubclass(after[0], Exception)
    assert ("failed", "network") == (only_op(again).status, only_op(again).attributes["error.type"])


def test_a_conversation_that_is_changed(model):
    """An update leaves the parts of an object that it does not name, an item that is deleted is not sent, and what a model said is told."""
    update = {"type": "session.update", "session": {"audio": {"output": {"voice": "marin"}}}}
    drops = {"type": "conversation.item.delete", "item_id": "item-old"}
    old = {"type": "conversation.item.create", "item": item("user", "Snow?") | {"id": "item-old"}}
    model.says(SESSION, HEARS, HEARS, HEARS, HEARS, HEARS, *answer("r-1", "It rains"))
    sends = [update, old, drops, ASKED, CREATE]
    _, recorded = record(lambda: of_threads(model.url, sends))
    asked = asked_of(recorded, only_op(recorded))
    assert [item("user", "Weather?")] == asked["messages"]
    assert (PCM, "marin") == (asked["audio"]["input"]["format"], asked["audio"]["output"]["voice"])
    model.says()
    with replay(recorded.tree):
        found, again = record(lambda: of_threads(model.url, sends))
    assert told(recorded) == told(again)
    kinds = [event["type"] for event in found]
    assert {"session.updated", "conversation.item.deleted", "conversation.item.done"} <= set(kinds)
