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
from optree.capture import uninstrument
from optree.messages import TextPart, ToolCallPart, answers, message
from optree.nodes import Tokens
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
    of_aiohttp,
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
