"""Models of clouds, asked through httpx: by Anthropic's clients for Bedrock and Vertex, and by what sends the same."""

import base64
import json

import anthropic
import pytest

import optree
from optree._capture.calls.aws_events import AWS_EVENTS
from optree._capture.calls.bodies import Body
from optree._capture.calls.requests import provider_of_host
from optree._capture.calls.requests import read as read_request
from optree._nodes import Tokens
from optree._tracing.results import ENDED_EARLY
from optree._tree import walk_ops
from optree._values import decode
from tests.capture.conftest import outcome, twice, with_hooks
from tests.capture.provider import Reply, aws_event, events
from tests.capture.sdk_calls import message_events

USAGE = {"input_tokens": 200, "cache_creation_input_tokens": 100, "cache_read_input_tokens": 900, "output_tokens": 64}
MESSAGE = {"id": "m-1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5-20250929",
           "content": [{"type": "text", "text": "It rains"}], "stop_reason": "end_turn", "stop_sequence": None, "usage": USAGE}  # fmt: skip
EVENTS = message_events(MESSAGE, USAGE)
FRAMES = [aws_event("chunk", {"bytes": base64.b64encode(json.dumps(one).encode()).decode()}) for one in EVENTS]
MODEL = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
ARN = f"arn:aws:bedrock:us-east-1:123456789012:inference-profile/{MODEL}"
CLIENTS = {
    "bedrock": (
        lambda url: anthropic.AnthropicBedrock(base_url=url, aws_region="us-east-1", api_key="k", max_retries=0),
        ARN,
        Reply(*FRAMES, kind=AWS_EVENTS),
        f"bedrock-compatible:{MODEL}",
    ),
    "vertex": (
        lambda url: anthropic.AnthropicVertex(base_url=url, region="us-east5", project_id="p", access_token="t", max_retries=0),
        "claude-sonnet-4-5@20250929",
        events(*EVENTS, done=False, names=True),
        "anthropic-compatible:claude-sonnet-4-5@20250929",
    ),
}


def ask(make, url, model, *, stream):
    """Return what a program makes of a client's answer."""
    asked = {"model": model, "max_tokens": 9, "messages": [{"role": "user", "content": "Weather?"}]}
    with make(url) as asking:
        if not stream:
            return asking.messages.create(**asked).model_dump_json()
        with asking.messages.stream(**asked) as answer:
            return [*answer.text_stream], answer.get_final_message().model_dump_json()


@pytest.mark.captured("anthropic", "AnthropicBedrock and AnthropicVertex", "plain", "streamed", "cached", added="one line",
                      checks=("calls", "answers", "tokens"))  # fmt: skip
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("cloud", CLIENTS)
@pytest.mark.usefixtures("hooked")
def test_anthropics_clients_for_clouds(provider, cloud, stream):
    """A call by them is an op, by the model that the address names, and a replay gives its answer, a stream in the cloud's form."""
    make, model, reply, name = CLIENTS[cloud]

    def run():
        with optree.session("asker"), optree.turn():
            return ask(make, provider.url, model, stream=stream)

    expected, found, recorded, _ = twice(provider, [reply if stream else Reply(MESSAGE)], run)
    assert "It rains" in str(expected)
    assert "".join(expected[0]) == "".join(found[0]) if stream else expected == found
    [(_, _, op)] = walk_ops(recorded.tree)
    assert ("ok", name, Tokens(200, 64, 900, 100, 1264, 0)) == (op.status, op.name, op.accounting[0].tokens)
    assert MESSAGE["content"] == decode(op.response.payload)["content"]


@pytest.mark.parametrize(
    ("pieces", "ends"),
    [
        pytest.param([b"".join(FRAMES)[at : at + 7] for at in range(0, 4000, 7)], ("ok", None), id="in small pieces"),
        pytest.param([b"".join(FRAMES)[:900]], ("failed", "the answer cannot be read: the answer ends within a frame"), id="cut off"),
        pytest.param(
            [b"x" * 500],
            ("failed", "the answer cannot be read: a frame of the answer cannot be read: it and the rest are not recorded"),
            id="no frames",
        ),
        pytest.param(
            [*FRAMES[:4], aws_event("throttlingException", {"message": "Slow down"}, "exception")], ("failed", "Slow down"), id="refused"
        ),
        pytest.param(FRAMES[:4], ("ok", None), id="ended early"),
    ],
)
def test_frames_that_break(provider, pieces, ends):
    """The program gets what it gets without hooks, whatever becomes of the frames."""
    make, model, _, _ = CLIENTS["bedrock"]
    provider.says(Reply(*[piece for piece in pieces if piece], kind=AWS_EVENTS))

    def run():
        return outcome(lambda: ask(make, provider.url, model, stream=True))

    expected, sessions = run(), []

    def recorded():
        with optree.session("asker") as session, optree.turn():
            result = run()
        sessions.append(session)
        return result

    assert expected == with_hooks(recorded)
    [(_, _, op)] = walk_ops(sessions[0].builder.tree)
    assert ends == (op.status, op.error)
    assert (pieces == FRAMES[:4]) == (ENDED_EARLY in [line.message for line in op.logs])


def test_frames_of_converse():
    """An event of Converse stands under its name."""
    body = Body(AWS_EVENTS, "")
    data = b"".join(aws_event(kind, value) for kind, value in (("messageStart", {"role": "assistant"}), ("metadata", {"usage": {}})))
    assert [{"messageStart": {"role": "assistant"}}, {"metadata": {"usage": {}}}] == list(body.feed(data, last=True))
    assert body.flaw is None


@pytest.mark.parametrize(
    ("host", "provider"),
    [
        ("us-central1-aiplatform.googleapis.com", "vertex"),
        ("aiplatform.eu.rep.googleapis.com", "vertex"),
        ("aiplatform.googleapis.com", "vertex"),
        ("aiplatform.googleapis.com.example.com", "google-compatible"),
        ("bedrock-runtime.us-east-1.amazonaws.com", "bedrock"),
        ("bedrock-mantle.us-east-1.api.aws", "bedrock"),
        ("execute-api.us-east-1.amazonaws.com", "google-compatible"),
    ],
)
def test_hosts_of_clouds(host, provider):
    """A region's host bills as the cloud does."""
    assert provider == provider_of_host(host, "google")


@pytest.mark.parametrize(
    ("path", "told", "model"),
    [
        ("/model/meta.llama3-70b-instruct-v1:0/invoke", {"prompt": "Weather?"}, "meta.llama3-70b-instruct-v1:0"),
        (f"/model/{ARN}/converse", {"messages": [{"role": "user", "content": [{"text": "Weather?"}]}]}, MODEL),
        ("/model/amazon.titan-embed-text-v2:0/invoke", {"inputText": "Weather?"}, None),
        ("/v1/projects/p/locations/l/publishers/anthropic/models/count-tokens:rawPredict", {"model": "m", "messages": []}, None),
        ("/v1/projects/p/locations/l/publishers/mistralai/models/m@1:rawPredict", {"model": "m", "messages": []}, "m"),
    ],
)
def test_what_addresses_of_clouds_ask(path, told, model):
    """The model stands in the address; embeddings and counts of tokens ask none."""
    asked = read_request("bedrock-runtime.us-east-1.amazonaws.com", path, json.dumps(told).encode())
    assert model == (None if asked is None else asked.model)
