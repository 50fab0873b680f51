"""Responses over websockets are ops, told by their events; what the program gets is what it gets without hooks."""

import asyncio
import json

import openai
import pytest
import websockets.asyncio.client
import websockets.asyncio.server
import websockets.sync.client

import optree
from optree._capture import uninstrument
from optree._nodes import Tokens
from optree._providers.messages import ToolCallPart
from optree._tree import walk_ops
from optree._values import decode
from tests.capture.clients.websocket_model import (
    ACKED,
    ASKED,
    AUDIO,
    CLIENTS,
    CREATE,
    HEARS,
    PCM,
    SAID,
    SESSION,
    TOKENS,
    USAGE,
    answer,
    asked_of,
    call,
    created,
    delta,
    done,
    in_session,
    item,
    of_responses,
    of_threads,
    only_op,
    ops_of,
    parts_of,
    said_by,
)
from tests.capture.conftest import outcome


@pytest.mark.captured("openai", "realtime, over a websocket", "streamed", added="one line", checks=("requests", "answers", "tokens"))
@pytest.mark.parametrize("client", CLIENTS)
def test_a_response_is_an_op(model, recording, client):
    """A response that is asked for is an op, with the session's parameters, the conversation, its text and its tokens."""
    model.says(SESSION, HEARS, ACKED, HEARS, *answer("r-1", "It ", "rains"))
    hooked = in_session(client, model.url, [ASKED, CREATE])
    op = only_op(recording)
    assert ("openai-compatible:gpt-realtime", "ok", TOKENS) == (op.name, op.status, op.accounting[0].tokens)
    asked = asked_of(recording, op)
    assert [item("user", "Weather?")] == asked["messages"]
    assert ("Be brief.", ["audio"], False) == (asked.get("instructions"), asked.get("output_modalities"), "client_secret" in asked)
    assert "It rains" == said_by(op)
    heard = list(model.heard)
    model.heard.clear()
    uninstrument()
    assert outcome(lambda: client(model.url, [ASKED, CREATE])) == hooked
    assert model.heard == heard


@pytest.mark.captured(
    "openai", "responses, over a websocket", "streamed", "thinking", added="one line", checks=("requests", "answers", "tokens")
)
@pytest.mark.parametrize("client", CLIENTS)
def test_the_responses_interface(model, recording, client):
    """A response in its WebSocket mode is an op, with model, input, parameters, reasoning and tokens as those over HTTP have them."""
    asks = {"type": "response.create", "model": "gpt-5", "input": "Weather?", "instructions": "Be brief.", "store": False}
    model.says(HEARS, *of_responses(SAID))
    hooked = in_session(client, model.url, [asks], opened="responses")
    op = only_op(recording)
    assert "websocket" == op.attributes["network.protocol.name"]
    assert ("openai-compatible:gpt-5", "ok", Tokens(8, 5, 4, 0, 17, 3)) == (op.name, op.status, op.accounting[0].tokens)
    asked = asked_of(recording, op)
    assert [{"role": "user", "content": "Weather?"}] == asked.pop("messages")
    assert {"instructions": "Be brief.", "store": False} == asked
    assert ("It rains", "I look out.", "gpt-5-2026") == (said_by(op), op.reasoning.text, op.accounting[0].actual_model)
    uninstrument()
    assert outcome(lambda: client(model.url, [asks], opened="responses")) == hooked


@pytest.mark.captured("openai", "realtime, over a websocket", "tools", added="one line", checks=("calls", "answers"))
def test_tools_outside_of_a_session(model, recording):
    """Calls of tools are in the answer; the response to their results belongs to the same turn, with all that was said so far."""
    asked = call("weather", '{"city": "Athens"}')
    result = {"type": "function_call_output", "call_id": "call-1", "output": "rain"}
    arguments = {"type": "response.function_call_arguments.delta", "response_id": "r-1", "item_id": "item-f", "output_index": 0,
                 "call_id": "call-1", "delta": '{"city"'}  # fmt: skip
    model.says(
        SESSION, HEARS, HEARS, ACKED, created("r-1"), arguments, {"type": "conversation.item.done", "item": asked}, done("r-1", asked),
        HEARS, HEARS, {"type": "conversation.item.added", "item": {"id": "item-o"} | result}, *answer("r-2", "It rains"),
    )  # fmt: skip
    client = openai.OpenAI(api_key="none", base_url=f"http://{model.url}", websocket_base_url=f"ws://{model.url}")
    with client, client.realtime.connect(model="gpt-realtime") as connection:
        connection.conversation.item.create(item=item("user", "Weather?"))
        connection.response.create()
        while connection.recv().type != "response.done":
            continue
        connection.conversation.item.create(item=result)
        connection.response.create()
        while connection.recv().type != "response.done":
            continue
    first, second = ops_of(recording)
    [found] = parts_of(first)
    assert isinstance(found, ToolCallPart)
    assert ("call-1", "weather", {"city": "Athens"}) == (found.id, found.name, found.decoded())
    messages = asked_of(recording, second)["messages"]
    assert [None, "call-1", "call-1"] == [one.get("call_id") for one in messages]
    assert item("user", "Weather?") == messages[0]
    [turn] = recording.tree.session.turns
    assert ("Weather?", "ok", 2) == (turn.prompts["user"], turn.status, len(turn.ops))


@pytest.mark.parametrize("client", CLIENTS)
def test_audio(model, recording, client):
    """Of audio the size and the format are recorded, and never the bytes; a response that the server begins itself is an op."""
    usage = {"total_tokens": 30, "input_tokens": 20, "output_tokens": 10,
             "input_token_details": {"text_tokens": 5, "audio_tokens": 15, "cached_tokens": 4},
             "output_token_details": {"text_tokens": 4, "audio_tokens": 6}}  # fmt: skip
    heard = {"type": "message", "role": "user", "id": "item-q", "status": "completed", "content": [{"type": "input_audio"}]}
    spoken = item("assistant", "It rains", "item-r-1", "output_audio")
    model.says(
        SESSION, HEARS, HEARS,
        {"type": "input_audio_buffer.committed", "event_id": "ev-c", "item_id": "item-q", "previous_item_id": None},
        {"type": "conversation.item.added", "event_id": "ev-i", "item": heard},
        {"type": "conversation.item.input_audio_transcription.completed", "event_id": "ev-t", "item_id": "item-q", "content_index": 0,
         "transcript": "Weather?"},
        created("r-1"), delta("r-1", "It ", "output_audio_transcript"), delta("r-1", AUDIO, "output_audio"),
        delta("r-1", "rains", "output_audio_transcript"), delta("r-1", AUDIO, "output_audio"), done("r-1", spoken, usage=usage),
    )  # fmt: skip
    sends = [{"type": "input_audio_buffer.append", "audio": AUDIO}] * 2
    hooked = in_session(client, model.url, sends)
    op = only_op(recording)
    assert ("ok", Tokens(16, 10, 4, 0, 30)) == (op.status, op.accounting[0].tokens)
    [asked] = asked_of(recording, op)["messages"]
    assert [{"type": "input_audio", "audio": {"bytes": 960, "format": PCM}, "transcript": "Weather?"}] == asked["content"]
    [said] = decode(op.response.payload)["output"]
    assert {"type": "output_audio", "transcript": "It rains", "audio": {"bytes": 960, "format": PCM}} == said["content"][0]
    assert "It rains" == said_by(op)
    assert AUDIO not in json.dumps([asked_of(recording, op), decode(op.response.payload)])
    assert 15 == decode(op.accounting[0].details)["input_token_details"]["audio_tokens"]
    uninstrument()
    assert outcome(lambda: client(model.url, sends)) == hooked


def test_audio_within_an_item(model, recording):
    """Audio that the program puts into an item itself is recorded by its size."""
    spoken = {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": AUDIO}]}
    model.says(SESSION, HEARS, HEARS, *answer("r-1", "It rains"))
    in_session(of_threads, model.url, [{"type": "conversation.item.create", "item": spoken}, CREATE])
    [asked] = asked_of(recording, only_op(recording))["messages"]
    assert [{"type": "input_audio", "audio": {"bytes": 480}}] == asked["content"]


def test_two_responses_at_once(model, recording):
    """Events of responses under way at once are told apart by the response's id; each belongs to the request with its metadata."""
    model.says(
        SESSION, HEARS, HEARS, created("r-2", metadata={"topic": "2"}, conversation_id=None), created("r-1"), delta("r-1", "It "),
        delta("r-2", "wea"), delta("r-1", "rains"), delta("r-2", "ther"),
        done("r-1", item("assistant", "It rains", "i-1")),
        done("r-2", item("assistant", "weather", "i-2"), conversation_id=None, metadata={"topic": "2"}),
    )  # fmt: skip
    beside = {"conversation": "none", "metadata": {"topic": "2"}, "input": [item("user", "Classify")], "instructions": "One word."}
    in_session(of_threads, model.url, [CREATE, {"type": "response.create", "response": beside}], ends=2)
    first, second = ops_of(recording)
    assert ("It rains", "weather") == (said_by(first), said_by(second))
    asked = asked_of(recording, second)
    assert ([item("user", "Classify")], "One word.") == (asked["messages"], asked["instructions"])
    assert "Be brief." == asked_of(recording, first)["instructions"]


def test_lanes(model, recording):
    """Responses of several sequences on one connection are told apart by these."""
    asks = [{"type": "response.create", "model": "gpt-5", "input": one, "stream_id": one} for one in ("a", "b")]
    first, second = of_responses(SAID, lane="a"), of_responses(SAID | {"content": []}, lane="b", name="resp-2")
    model.says(HEARS, HEARS, *[event for both in zip(second, first, strict=True) for event in both])
    in_session(of_threads, model.url, asks, ends=2, opened="responses")
    assert ["It rains", ""] == [said_by(op) for op in ops_of(recording)]


def test_a_steered_response(model, recording):
    """The response that a server begins for what was sent meanwhile is an op of its own, with that as its input."""
    steers = {"type": "response.steer", "previous_response_id": "resp-1", "input": "In Athens."}
    model.says(HEARS, HEARS, *of_responses(SAID), *of_responses(SAID, name="resp-2"))
    asks = {"type": "response.create", "model": "gpt-5", "input": "Weather?"}
    in_session(of_threads, model.url, [asks, steers], ends=2, opened="responses")
    first, second = ops_of(recording)
    assert ["It rains", "It rains"] == [said_by(first), said_by(second)]
    assert [{"role": "user", "content": "In Athens."}] == asked_of(recording, second)["messages"]


def test_within_an_op_of_the_programs(model, recording):
    """A response within an open llm op is that op."""
    model.says(SESSION, HEARS, *answer("r-1", "It rains"))
    with optree.session("agent"), optree.turn(), optree.llm(model="mine"):
        of_threads(model.url, [CREATE])
    op = only_op(recording)
    assert ("mine", "mine", TOKENS, "It rains") == (op.name, op.attributes["model"], op.accounting[0].tokens, said_by(op))


def test_items_as_they_change(model, recording):
    """The messages are the conversation as it was when the response began: in its order, without what was taken out of it."""
    one, two, three = (item("user", text, text) for text in ("one", "two", "three"))
    model.says(
        SESSION, {"type": "conversation.item.added", "previous_item_id": None, "item": three},
        {"type": "conversation.item.added", "previous_item_id": "root", "item": one},
        {"type": "conversation.item.added", "previous_item_id": "one", "item": two},
        {"type": "conversation.item.deleted", "item_id": "three"}, *answer("r-1", "yes"),
    )  # fmt: skip
    in_session(of_threads, model.url, [])
    assert [item("user", "one"), item("user", "two")] == asked_of(recording, only_op(recording))["messages"]


def test_a_text_is_there_as_it_comes(model, recording):
    """Text of a response under way is on the op before the response has ended, with the conversation that it answers."""
    model.says(
        SESSION, HEARS, created("r-1"), delta("r-1", "It "), HEARS, delta("r-1", "rains"), done("r-1", item("assistant", "It rains"))
    )
    url = f"ws://{model.url}/realtime?model=m"
    with optree.session("agent") as session, optree.turn(), websockets.sync.client.connect(url) as connection:
        connection.send(json.dumps(CREATE))
        for _ in range(3):
            connection.recv()
        optree.flush()
        [op] = [op for _, _, op in walk_ops(session.tree)]
        assert (None, "It ") == (op.ended_at, decode(op.response.payload))
        assert op.attributes["time_to_first_chunk"] > 0
        connection.send("go on")
        for _ in range(2):
            connection.recv()
    assert "It rains" == said_by(only_op(recording))
    assert USAGE["output_tokens"] == only_op(recording).accounting[0].tokens.output_tokens


@pytest.mark.captured(
    "openai-agents", "Runner, over a websocket", "plain", "streamed", added="one line", checks=("calls", "answers", "tokens")
)
@pytest.mark.parametrize("streamed", [True, False])
def test_the_agents_sdk(model, recording, streamed):
    """A call of a model that OpenAI's Agents SDK makes over a websocket is one op, in the agent that made it."""
    agents = pytest.importorskip("agents", reason="the SDK is not there for this Python")
    from agents.models.openai_responses import OpenAIResponsesWSModel

    model.says(HEARS, *of_responses(SAID))
    untraced = agents.RunConfig(tracing_disabled=True)

    async def running():
        async with openai.AsyncOpenAI(api_key="none", base_url=f"http://{model.url}", websocket_base_url=f"ws://{model.url}") as client:
            asked = OpenAIResponsesWSModel("gpt-5", openai_client=client)
            agent = agents.Agent("weather", instructions="Be brief.", model=asked)
            if streamed:
                found = agents.Runner.run_streamed(agent, "Weather?", run_config=untraced)
                async for _ in found.stream_events():
                    continue
            else:
                found = await agents.Runner.run(agent, "Weather?", run_config=untraced)
            await asked.close()
            return found.final_output

    assert "It rains" == asyncio.run(running())
    [(session, op)] = [(session, op) for session, _, op in walk_ops(recording.tree) if op.kind == "llm"]
    assert ("weather", "ok", "It rains", Tokens(8, 5, 4, 0, 17, 3)) == (session.agent_id, op.status, said_by(op), op.accounting[0].tokens)
    assert "Be brief." == asked_of(recording, op)["instructions"]


def test_a_realtime_agent_of_the_agents_sdk(model, recording):
    """Responses in a realtime session of OpenAI's Agents SDK are ops where it was begun, with its instructions, tools and results."""
    agents = pytest.importorskip("agents", reason="the SDK is not there for this Python")
    from agents.realtime import RealtimeAgent, RealtimeRunner

    asked = call("weather", '{"city": "Athens"}')
    model.says(
        SESSION, HEARS, HEARS, HEARS, created("r-1"), {"type": "response.output_item.done", "response_id": "r-1", "output_index": 0,
                                                       "event_id": "ev-f", "item": asked},
        done("r-1", asked), HEARS, HEARS, *answer("r-2", "It rains"),
    )  # fmt: skip

    @agents.function_tool
    def weather(city: str) -> str:
        return f"rain in {city}"

    async def running():
        agent = RealtimeAgent("weather", instructions="Be brief.", tools=[weather])
        options = {"url": f"ws://{model.url}/realtime?model=gpt-realtime", "api_key": "none"}
        async with await RealtimeRunner(agent, config={"tracing_disabled": True}).run(model_config=options) as session:
            await session.send_message("Weather?")
            ends = 0
            async for event in session:
                ends += event.type == "agent_end"
                if ends == 2:
                    break

    with optree.session("agent"), optree.turn():
        asyncio.run(running())
    first, second = [op for op in ops_of(recording) if op.kind == "llm"]
    assert ("ok", "ok", "It rains", TOKENS) == (first.status, second.status, said_by(second), first.accounting[0].tokens)
    known = asked_of(recording, second)
    assert ["weather"] == [tool["name"] for tool in known["tools"]]
    assert ["message", "function_call", "function_call_output"] == [one["type"] for one in known["messages"]]
