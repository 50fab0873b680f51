"""A model behind a websocket on this machine that says what it is told to, and programs that talk to it by several clients."""

import asyncio
import base64
import json
import socket
import threading

import aiohttp
import openai
from websockets.sync.server import serve

import optree
from optree._console import resolved
from optree._nodes import Tokens
from optree._providers.messages import TextPart, answers, message
from optree._tree import walk_ops
from optree._values import decode
from tests.capture.conftest import outcome

HEARS = "hears"
"""One event of the program's is waited for."""
CLOSES = "closes"
CUT = "cut"
"""The connection breaks, without a word."""
AUDIO = base64.b64encode(b"\0" * 480).decode()
PCM = {"type": "audio/pcm", "rate": 24000}
SESSION = {
    "type": "session.created", "event_id": "ev-0",
    "session": {
        "type": "realtime", "object": "realtime.session", "id": "sess-1", "model": "gpt-realtime", "instructions": "Be brief.",
        "output_modalities": ["audio"], "tools": [], "client_secret": {"value": "ek-none"},
        "audio": {"input": {"format": PCM, "turn_detection": {"type": "server_vad"}}, "output": {"format": PCM, "voice": "marin"}},
    },
}  # fmt: skip
USAGE = {
    "total_tokens": 160, "input_tokens": 120, "output_tokens": 40,
    "input_token_details": {"text_tokens": 120, "audio_tokens": 0, "cached_tokens": 64,
                            "cached_tokens_details": {"text_tokens": 64, "audio_tokens": 0}},
    "output_token_details": {"text_tokens": 40, "audio_tokens": 0},
}  # fmt: skip


def item(role, text, name=None, kind=None):
    """Return an item of a conversation as its server has it."""
    part = {"type": kind or ("output_text" if role == "assistant" else "input_text"), "text": text}
    if kind in ("output_audio", "input_audio"):
        part = {"type": kind, "transcript": text}
    value = {"type": "message", "role": role, "content": [part]}
    return value if name is None else value | {"id": name, "object": "realtime.item", "status": "completed"}


def call(name, arguments, call_id="call-1"):
    """Return the item by which a model calls a tool."""
    return {"type": "function_call", "id": "item-f", "object": "realtime.item", "status": "completed", "name": name,
            "call_id": call_id, "arguments": arguments}  # fmt: skip


def created(name, **more):
    """Return the event by which a response begins."""
    told = {"object": "realtime.response", "id": name, "status": "in_progress", "status_details": None, "output": [],
            "conversation_id": "conv-1", "metadata": None, "usage": None} | more  # fmt: skip
    return {"type": "response.created", "event_id": f"ev-{name}", "response": told}


def delta(name, text, kind="output_text"):
    """Return an event that brings a piece of a response."""
    return {"type": f"response.{kind}.delta", "response_id": name, "item_id": f"item-{name}", "output_index": 0, "content_index": 0,
            "delta": text}  # fmt: skip


def done(name, *output, status="completed", usage=USAGE, **more):
    """Return the event by which a response ends."""
    told = created(name, status=status, output=list(output), usage=usage, **more)["response"]
    return {"type": "response.done", "event_id": f"ev-{name}-done", "response": told}


def answer(name, *pieces):
    """Return all events of a response of text."""
    return [created(name), *[delta(name, one) for one in pieces], done(name, item("assistant", "".join(pieces), f"item-{name}"))]


class WebsocketModel:
    """Does the steps of a script with each client: events are said, others are `HEARS`, `CLOSES` and `CUT`; keeps what it heard."""

    def __init__(self):
        self.steps, self.heard, self.refusals = [], [], []
        self.server = serve(self._talk, "127.0.0.1", 0, compression=None, process_request=self._open)
        self.url = f"127.0.0.1:{self.server.socket.getsockname()[1]}/v1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def says(self, *steps):
        """Set the script."""
        self.steps = steps

    def refuses(self, *refusals):
        """Set which connections are refused first: status and body of each."""
        self.refusals = list(refusals)

    def _open(self, connection, _request):
        if not self.refusals:
            return None
        status, body = self.refusals.pop(0)
        response = connection.respond(status, json.dumps(body))
        del response.headers["content-type"]
        response.headers["content-type"] = "application/json"
        response.headers["x-request-id"] = "req-1"
        return response

    def _talk(self, connection):
        for step in self.steps:
            if step == HEARS:
                self.heard.append(connection.recv())
            elif step == CUT:
                connection.socket.shutdown(socket.SHUT_RDWR)
                return
            elif step == CLOSES:
                return
            else:
                connection.send(step if isinstance(step, (str, bytes)) else json.dumps(step))
        self.heard.extend(connection)  # until the program closes it

    def close(self):
        """End it."""
        self.server.shutdown()


def _is_end(event, left):
    return left[0] == 0 or (event["type"] in ("response.done", "response.completed", "response.failed", "error") and _counted(left))


def _counted(left):
    left[0] -= 1
    return left[0] == 0


def of_threads(url, sends, ends=1, opened="realtime", **options):
    """Send events by OpenAI's client, and return what comes until as many responses have ended, or the connection has."""
    got, left = [], [ends]
    with openai.OpenAI(api_key="none", base_url=f"http://{url}", websocket_base_url=f"ws://{url}") as client:
        place = client.realtime.connect(model="gpt-realtime", **options) if opened == "realtime" else client.responses.connect(**options)
        with place as connection:
            for event in sends:
                connection.send(event)
            for event in connection:
                got.append(event.to_dict(exclude_unset=True))
                if _is_end(got[-1], left):
                    break
    return got


def of_asyncio(url, sends, ends=1, opened="realtime", **options):
    """Do it by its asynchronous client."""

    async def talking():
        got, left = [], [ends]
        async with openai.AsyncOpenAI(api_key="none", base_url=f"http://{url}", websocket_base_url=f"ws://{url}") as client:
            realtime = opened == "realtime"
            place = client.realtime.connect(model="gpt-realtime", **options) if realtime else client.responses.connect(**options)
            async with place as connection:
                for event in sends:
                    await connection.send(event)
                async for event in connection:
                    got.append(event.to_dict(exclude_unset=True))
                    if _is_end(got[-1], left):
                        break
        return got

    return asyncio.run(talking())


def of_aiohttp(url, sends, ends=1, opened="realtime"):
    """Do it by aiohttp."""

    async def talking():
        got, left = [], [ends]
        path = "realtime?model=gpt-realtime" if opened == "realtime" else "responses"
        async with aiohttp.ClientSession() as session, session.ws_connect(f"http://{url}/{path}") as connection:
            for event in sends:
                await connection.send_json(event)
            async for message in connection:
                got.append(json.loads(message.data))
                if _is_end(got[-1], left):
                    break
            else:
                raise ConnectionError(connection.close_code)
        return got

    return asyncio.run(talking())


CLIENTS = [of_threads, of_asyncio, of_aiohttp]


ASKED = {"type": "conversation.item.create", "item": item("user", "Weather?")}
ACKED = {"type": "conversation.item.added", "event_id": "ev-a", "previous_item_id": None, "item": item("user", "Weather?", "item-q")}
CREATE = {"type": "response.create"}
TOKENS = Tokens(56, 40, 64, 0, 160)
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


def ops_of(recording):
    """Return the ops with their requests and responses."""
    return [op for _, _, op in walk_ops(recording.tree)]


def only_op(recording):
    """Return the only op."""
    [op] = ops_of(recording)
    return op


def asked_of(recording, op):
    """Return what an op asked: its parameters, with the messages."""
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
