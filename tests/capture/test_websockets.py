"""Responses over websockets are ops, told by their events; what the program gets, and how it ends, is what it is without hooks."""

import asyncio
import gc
import json
import threading

import openai
import pytest
import websockets.asyncio.client
import websockets.asyncio.server
import websockets.sync.client

import optree
from optree.capture import instrument, uninstrument
from optree.messages import TextPart, ToolCallPart, answers, message
from optree.nodes import Tokens
from optree.testing import capture, replay
from optree.tree import walk_ops
from optree.values import decode
from tests.capture.conftest import outcome
from tests.capture.websocket_model import (
    AUDIO,
    CLIENTS,
    CLOSES,
    CUT,
    HEARS,
    PCM,
    SESSION,
    USAGE,
    WebsocketModel,
    answer,
    call,
    created,
    delta,
    done,
    item,
    of_asyncio,
    of_threads,
)

ASKED = {"type": "conversation.item.create", "item": item("user", "Weather?")}
ACKED = {"type": "conversation.item.added", "event_id": "ev-a", "previous_item_id": None, "item": item("user", "Weather?", "item-q")}
CREATE = {"type": "response.create"}
TOKENS = Tokens(56, 40, 64, 0, 160)


@pytest.fixture(scope="module")
def listening():
    """Return a model behind a websocket."""
    model = WebsocketModel()
    yield model
    model.close()
    gc.collect()


@pytest.fixture
def model(listening):
    """Return the same, which heard nothing yet."""
    listening.heard.clear()
    return listening


def ops_of(recording):
    """Return the ops with their requests and responses."""
    return [op for _, _, op in walk_ops(recording.tree)]


def only_op(recording):
    """Return the only op."""
    [op] = ops_of(recording)
    return op


def asked_of(recording, op):
    """Return what an op asked: its parameters, with the messages."""
    from optree.console import resolved

    return resolved(op.request.payload, recording.tree.pool)


def said_by(op):
    """Return the text of an op's answer."""
    return "".join(part.text for part in parts_of(op) if isinstance(part, TextPart))


def parts_of(op):
    """Return the parts of an op's answer."""
    found = answers(decode(op.response.payload))
    return [part for one in found for said in one.messages for part in message(said, "assistant").parts]


def in_session(function, *args, **kwargs):
    """Return what a program comes to, within a turn."""
    with optree.session("agent"), optree.turn():
        return outcome(lambda: function(*args, **kwargs))


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


RESPONSE = {
    "id": "resp-1", "object": "response", "created_at": 1, "model": "gpt-5-2026", "status": "in_progress", "output": [], "usage": None,
    "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
}  # fmt: skip
SAID = {"type": "message", "id": "m", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": "It rains", "annotations": []}]}  # fmt: skip
COUNTED = {"input_tokens": 12, "output_tokens": 5, "total_tokens": 17, "input_tokens_details": {"cached_tokens": 4},
           "output_tokens_details": {"reasoning_tokens": 3}}  # fmt: skip


def of_responses(*output, lane=None, name="resp-1"):
    """Return the events of a response of OpenAI's responses interface, with reasoning ahead of what it says."""
    told = RESPONSE | {"id": name}
    values = [
        {"type": "response.created", "response": told},
        {"type": "response.reasoning_summary_text.delta", "item_id": "rs", "output_index": 0, "summary_index": 0, "delta": "I look out."},
        {"type": "response.output_text.delta", "item_id": "m", "output_index": 1, "content_index": 0, "delta": "It ", "logprobs": []},
        {"type": "response.completed", "response": told | {"status": "completed", "output": list(output), "usage": COUNTED}},
    ]
    return [value | {"sequence_number": at} | ({"stream_id": lane} if lane else {}) for at, value in enumerate(values)]


@pytest.mark.parametrize("client", CLIENTS)
def test_the_responses_interface(model, recording, client):
    """A response in its WebSocket mode is an op, with model, input, parameters, reasoning and tokens as those over HTTP have them."""
    asks = {"type": "response.create", "model": "gpt-5", "input": "Weather?", "instructions": "Be brief.", "store": False}
    model.says(HEARS, *of_responses(SAID))
    hooked = in_session(client, model.url, [asks], opened="responses")
    op = only_op(recording)
    assert ("openai-compatible:gpt-5", "ok", Tokens(8, 5, 4, 0, 17, 3)) == (op.name, op.status, op.accounting[0].tokens)
    asked = asked_of(recording, op)
    assert [{"role": "user", "content": "Weather?"}] == asked.pop("messages")
    assert {"instructions": "Be brief.", "store": False} == asked
    assert ("It rains", "I look out.", "gpt-5-2026") == (said_by(op), op.reasoning.text, op.accounting[0].actual_model)
    uninstrument()
    assert outcome(lambda: client(model.url, [asks], opened="responses")) == hooked


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
    with openai.OpenAI(api_key="none", base_url=f"http://{model.url}", websocket_base_url=f"ws://{model.url}") as client:
        with client.realtime.connect(model="gpt-realtime") as connection:
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


def test_how_a_response_ends(model, recording):
    """One that failed has its class and its tokens, one that was cancelled too; an incomplete one is an answer that says why."""
    wrong = {"type": "failed", "error": {"type": "server_error", "code": "rate_limit_exceeded", "message": "Rate limit reached"}}
    model.says(
        SESSION, HEARS, created("r-1"), delta("r-1", "It"), done("r-1", status="failed", status_details=wrong),
        HEARS, created("r-2"), delta("r-2", "It "),
        done("r-2", status="cancelled", status_details={"type": "cancelled", "reason": "turn_detected"}),
        HEARS, created("r-3"),
        done("r-3", item("assistant", "It", "i"), status="incomplete", status_details={"type": "incomplete", "reason": "max_output_tokens"}),
    )  # fmt: skip
    in_session(of_asyncio, model.url, [CREATE] * 3, ends=3)
    failed, cancelled, incomplete = ops_of(recording)
    assert ("failed", "Rate limit reached", "rate_limit") == (failed.status, failed.error, failed.attributes["error.type"])
    assert ("cancelled", "incomplete") == (cancelled.status, decode(incomplete.response.payload)["status"])
    assert "the response was cancelled: turn_detected" == cancelled.logs[-1].message
    assert [TOKENS] * 3 == [op.accounting[0].tokens for op in (failed, cancelled, incomplete)]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("ends", [CUT, CLOSES])
def test_a_connection_that_breaks(model, recording, client, ends):
    """What had come until then stays, and the program gets the exception that it would have got."""
    model.says(SESSION, HEARS, created("r-1"), delta("r-1", "It "), ends)
    hooked = in_session(client, model.url, [CREATE])
    op = only_op(recording)
    assert ("failed", "network", "It ") == (op.status, op.attributes["error.type"], decode(op.response.payload))
    assert op.response.partial
    uninstrument()
    assert outcome(lambda: client(model.url, [CREATE])) == hooked


@pytest.mark.parametrize("client", CLIENTS)
def test_a_connection_that_the_program_closes(model, recording, client):
    """A response under way is cancelled by that, and one that had not begun too."""
    model.says(SESSION, HEARS, HEARS, created("r-1"), delta("r-1", "It "), {"type": "error", "error": {"param": "session.x"}})
    in_session(client, model.url, [CREATE, CREATE])
    assert ["cancelled", "cancelled"] == [op.status for op in ops_of(recording)]
    assert "It " == decode(ops_of(recording)[0].response.payload)


def test_a_connection_that_is_forgotten(model, recording):
    """A connection that nobody closes ends what is under way when it is gone."""
    model.says(SESSION, HEARS, created("r-1"), delta("r-1", "It "))

    async def talking():
        connection = await websockets.asyncio.client.connect(f"ws://{model.url}/realtime?model=gpt-realtime")
        await connection.send(json.dumps(CREATE))
        for _ in range(3):
            await connection.recv()
        connection.transport.abort()
        await connection.wait_closed()

    with optree.session("agent"), optree.turn():
        asyncio.run(talking())
        gc.collect()
    assert "cancelled" == only_op(recording).status


def test_errors(model, recording):
    """An error belongs to the request with its event's id, or to the one that waits; errors of other events belong to none."""
    limit = {"type": "invalid_request_error", "code": "rate_limit_exceeded", "message": "Slow down", "event_id": "mine", "param": None}
    beside = {"type": "invalid_request_error", "code": "invalid_value", "message": "No such voice", "param": "session.audio.output.voice"}
    busy = {"type": "invalid_request_error", "code": "conversation_already_has_active_response", "message": "Busy", "event_id": None}
    model.says(
        SESSION, HEARS, HEARS, HEARS, {"type": "error", "error": beside}, {"type": "error", "error": limit}, {"type": "error", "error": busy},
        *answer("r-1", "It rains"),
    )  # fmt: skip
    in_session(of_asyncio, model.url, [CREATE, CREATE | {"event_id": "mine"}, CREATE], ends=4)
    answered, limited, refused = ops_of(recording)
    assert ("ok", "failed", "failed") == (answered.status, limited.status, refused.status)
    assert ("rate_limit", "invalid") == (limited.attributes["error.type"], refused.attributes["error.type"])
    assert 0.0 == limited.accounting[0].cost_usd


@pytest.mark.parametrize("begun", [True, False])
def test_errors_of_the_responses_interface(model, recording, begun):
    """An error ends the response under way, or the request that waits, with its status."""
    error = {"type": "error", "status": 429, "error": {"type": "requests", "code": "rate_limit_exceeded", "message": "Rate limit reached"}}
    model.says(HEARS, *of_responses()[: 3 if begun else 0], error)
    in_session(of_asyncio, model.url, [{"type": "response.create", "model": "gpt-5", "input": "Weather?"}], opened="responses")
    op = only_op(recording)
    assert ("failed", "rate_limit", begun) == (op.status, op.attributes["error.type"], op.response is not None)


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


@pytest.mark.parametrize("sent", ["text", b"\0bytes", '{"type": "subscribe", "channel": "response.create"}', "{", '{"type": "error"}',
                                  '["response.create"]', '{"type": "error", "x": ' + "[" * 5000])  # fmt: skip
def test_other_messages_pass(model, recording, sent):
    """What is no event of a model's passes as it is, both ways, and makes no op."""
    model.says(HEARS, sent, sent)
    with websockets.sync.client.connect(f"ws://{model.url}/x") as connection:
        connection.send(sent)
        assert [sent, sent] == [connection.recv(), connection.recv()]

    async def talking():
        async with websockets.asyncio.client.connect(f"ws://{model.url}/x") as awaited:
            await awaited.send(sent)
            return [await awaited.recv(), await awaited.recv()]

    assert [sent, sent] == asyncio.run(talking())
    assert [] == recording.sessions


def test_a_server_of_the_programs(recording):
    """A server that speaks the protocol is no client: what it hears and says makes no op."""

    async def serving():
        async def talk(connection):
            await connection.recv()
            for event in [SESSION, *answer("r-1", "It rains")]:
                await connection.send(json.dumps(event))

        async with websockets.asyncio.server.serve(talk, "127.0.0.1", 0) as server:
            url = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with websockets.asyncio.client.connect(f"ws://{url}/realtime") as connection:
                await connection.send(json.dumps(CREATE))
                return [json.loads(event)["type"] async for event in connection]

    assert "response.done" == asyncio.run(serving())[-1]
    [op] = ops_of(recording)
    assert "It rains" == said_by(op)


def test_a_call_that_waits_for_nothing(model, recording):
    """An event that the program does not wait for any longer is got by the next that does, and is recorded once."""
    go_on = threading.Event()
    model.says(SESSION, HEARS, HEARS, *answer("r-1", "It rains"))
    with optree.session("agent"), optree.turn(), websockets.sync.client.connect(f"ws://{model.url}/realtime?model=m") as connection:
        connection.send(json.dumps(CREATE))
        connection.recv()
        with pytest.raises(TimeoutError):
            connection.recv(timeout=0.01)
        connection.send("go on")
        while json.loads(connection.recv(decode=False))["type"] != "response.done":
            go_on.set()
    assert go_on.is_set()
    assert ("ok", "It rains") == (only_op(recording).status, said_by(only_op(recording)))


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("method", ["sends", "came", "ended"])
def test_a_fault_of_ours(model, recording, client, method, monkeypatch):  # noqa: ARG001 - the hooks are in
    """A hook that raises changes nothing for the program."""
    model.says(SESSION, HEARS, *answer("r-1", "It rains"))

    def fails(*_args, **_kwargs):
        raise ValueError(method)

    monkeypatch.setattr(f"optree.capture.realtime.ModelSocket.{method}", fails)
    hooked = outcome(lambda: client(model.url, [CREATE]))
    uninstrument()
    assert outcome(lambda: client(model.url, [CREATE])) == hooked
    assert "response.done" == hooked[-1]["type"]


@pytest.mark.parametrize("client", CLIENTS)
def test_budgets(model, recording, client):
    """A response beyond a budget is refused before it is asked for; one that the server begins itself is recorded all the same."""
    model.says(SESSION, *answer("r-1", "It rains"))
    with optree.session("agent"), optree.turn(), optree.budget(calls=0):
        with pytest.raises(optree.BudgetExceeded):
            client(model.url, [CREATE])
        assert [] == model.heard
        client(model.url, [])
    assert ("ok", "It rains", TOKENS) == (only_op(recording).status, said_by(only_op(recording)), only_op(recording).accounting[0].tokens)


def test_a_text_is_there_as_it_comes(model, recording):
    """Text of a response under way is on the op before the response has ended, with the conversation that it answers."""
    model.says(
        SESSION, HEARS, created("r-1"), delta("r-1", "It "), HEARS, delta("r-1", "rains"), done("r-1", item("assistant", "It rains"))
    )
    with optree.session("agent") as session, optree.turn():
        with websockets.sync.client.connect(f"ws://{model.url}/realtime?model=m") as connection:
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


def test_a_replay(model):
    """In a replay nothing is asked for: no recorded answer can be given through a websocket."""
    model.says(SESSION, HEARS, *answer("r-1", "It rains"))

    def asks():
        with optree.session("agent"), optree.turn(), websockets.sync.client.connect(f"ws://{model.url}/realtime?model=m") as connection:
            connection.recv()
            connection.send(json.dumps(CREATE))
            while json.loads(connection.recv())["type"] != "response.done":
                continue

    instrument()
    try:
        with capture() as recorded:
            asks()
        model.heard.clear()
        with replay(recorded.tree), capture(), pytest.raises(ConnectionError, match="cannot be given through websockets"):
            asks()
    finally:
        uninstrument()
    assert [] == model.heard


def test_hooks_that_are_taken_out(model, recording):
    """A response that is under way when the hooks are taken out ends with its connection, and keeps what had come."""
    model.says(SESSION, HEARS, *answer("r-1", "It ", "rains"))
    with optree.session("agent"), optree.turn():
        with websockets.sync.client.connect(f"ws://{model.url}/realtime?model=m") as connection:
            connection.send(json.dumps(CREATE))
            for _ in range(3):
                connection.recv()
            uninstrument()
            events = [json.loads(connection.recv())["type"] for _ in range(2)]
        del connection
        gc.collect()
    assert ["response.output_text.delta", "response.done"] == events
    assert ("cancelled", "It ") == (only_op(recording).status, decode(only_op(recording).response.payload))


@pytest.mark.parametrize("streamed", [True, False])
def test_the_agents_sdk(model, recording, streamed):
    """A call of a model that OpenAI's Agents SDK makes over a websocket is one op, in the agent that made it."""
    agents = pytest.importorskip("agents", reason="the SDK is not there for this Python")
    from agents.models.openai_responses import OpenAIResponsesWSModel

    model.says(HEARS, *of_responses(SAID))

    async def running():
        async with openai.AsyncOpenAI(api_key="none", base_url=f"http://{model.url}", websocket_base_url=f"ws://{model.url}") as client:
            asked = OpenAIResponsesWSModel("gpt-5", openai_client=client)
            agent = agents.Agent("weather", instructions="Be brief.", model=asked)
            if streamed:
                found = agents.Runner.run_streamed(agent, "Weather?")
                async for _ in found.stream_events():
                    continue
            else:
                found = await agents.Runner.run(agent, "Weather?")
            await asked.close()
            return found.final_output

    assert "It rains" == asyncio.run(running())
    [(session, op)] = [(session, op) for session, _, op in walk_ops(recording.tree) if op.kind == "llm"]
    assert ("weather", "ok", "It rains", Tokens(8, 5, 4, 0, 17, 3)) == (session.agent_id, op.status, said_by(op), op.accounting[0].tokens)
    assert "Be brief." == asked_of(recording, op)["instructions"]
