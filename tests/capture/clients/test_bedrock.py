"""Calls of Bedrock's models through botocore, which boto3 is on, are ops; the program gets what it gets without hooks."""

import base64
import contextlib
import json
import threading
from collections import Counter
from pathlib import Path

import botocore.session
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, EventStreamError

import optree
from optree._capture import uninstrument
from optree._nodes import Tokens
from optree._providers.messages import ReasoningPart, TextPart, ToolCallPart, ToolResultPart, answers, message
from optree._tree import walk_ops
from optree._values import decode
from tests.capture.calls.test_broken import CHATS, outcome
from tests.capture.provider import AWS_EVENTS, Reply
from tests.capture.provider import aws_event as event

MODEL = "us.anthropic.claude-5-v1:0"
QUESTION = [{"role": "user", "content": [{"text": "Weather?"}]}]
USAGE = {
    "inputTokens": 8, "outputTokens": 5, "totalTokens": 19, "cacheReadInputTokens": 4, "cacheWriteInputTokens": 2,
    "cacheDetails": [{"ttl": "1h", "inputTokens": 2}],
}  # fmt: skip
TOKENS = Tokens(8, 5, 4, 2, 19)
CALL = {"toolUseId": "call-1", "name": "weather", "input": {"city": "Athens"}}
CONTENT = [{"reasoningContent": {"reasoningText": {"text": "Look outside.", "signature": "s"}}}, {"text": "It rains"}, {"toolUse": CALL}]
CONVERSE = {
    "output": {"message": {"role": "assistant", "content": CONTENT}}, "stopReason": "tool_use", "usage": USAGE,
    "metrics": {"latencyMs": 7}, "serviceTier": {"type": "flex"},
}  # fmt: skip
BLOCKS = [{"reasoningContent": {"text": "Look "}}, {"reasoningContent": {"text": "outside."}}, {"reasoningContent": {"signature": "s"}}]
CONVERSED = [
    ("messageStart", {"role": "assistant"}),
    *[("contentBlockDelta", {"contentBlockIndex": 0, "delta": block}) for block in BLOCKS],
    ("contentBlockStop", {"contentBlockIndex": 0}),
    *[("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"text": text}}) for text in ("It ", "rains")],
    ("contentBlockStop", {"contentBlockIndex": 1}),
    ("contentBlockStart", {"contentBlockIndex": 2, "start": {"toolUse": {"toolUseId": "call-1", "name": "weather"}}}),
    *[("contentBlockDelta", {"contentBlockIndex": 2, "delta": {"toolUse": {"input": text}}}) for text in ('{"city": ', '"Athens"}')],
    ("contentBlockStop", {"contentBlockIndex": 2}),
    ("messageStop", {"stopReason": "tool_use"}),
    ("metadata", {"usage": USAGE, "metrics": {"latencyMs": 7}, "serviceTier": {"type": "flex"}}),
]
MESSAGE = {
    "id": "msg-1", "type": "message", "role": "assistant", "model": "claude-5", "content": [{"type": "text", "text": "It rains"}],
    "stop_reason": "end_turn", "stop_sequence": None,
    "usage": {"input_tokens": 8, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 2, "output_tokens": 5},
}  # fmt: skip
MESSAGED = [
    {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "It rains"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 5}},
    {"type": "message_stop", "amazon-bedrock-invocationMetrics": {"inputTokenCount": 8}},
]
ASKED = json.dumps({"anthropic_version": "bedrock-2023-05-31", "max_tokens": 9, "messages": [{"role": "user", "content": "Weather?"}]})


def invoked(chunk):
    """Return an event of InvokeModelWithResponseStream."""
    return event("chunk", {"bytes": base64.b64encode(json.dumps(chunk).encode()).decode()})


def streamed(*pieces, **options):
    """Return a reply that is an event stream."""
    return Reply(*pieces, kind=AWS_EVENTS, **options)


EVENTS = [event(*one) for one in CONVERSED]
SESSION = botocore.session.Session()


def client(url, **config):
    """Return Bedrock's client."""
    return SESSION.create_client(
        "bedrock-runtime", region_name="us-east-1", endpoint_url=url, aws_access_key_id="none", aws_secret_access_key="none",
        config=Config(**{"retries": {"max_attempts": 0}} | config),
    )  # fmt: skip


def without_metadata(answer):
    """Return an answer without what differs from one request to the next."""
    return {name: value for name, value in answer.items() if name != "ResponseMetadata"}


def converse(url):
    """Ask by Converse."""
    return without_metadata(
        client(url).converse(modelId=MODEL, messages=QUESTION, system=[{"text": "Be brief."}], inferenceConfig={"maxTokens": 9})
    )


def converse_stream(url):
    """Ask by ConverseStream."""
    return list(client(url).converse_stream(modelId=MODEL, messages=QUESTION)["stream"])


def invoke(url):
    """Ask by InvokeModel."""
    return json.loads(client(url).invoke_model(modelId=MODEL, body=ASKED)["body"].read())


def invoke_within(url):
    """Ask so, and read within a block."""
    with client(url).invoke_model(modelId=MODEL, body=ASKED.encode())["body"] as body:
        return body.read()


def invoke_chunks(url):
    """Ask so, and read in pieces."""
    return list(client(url).invoke_model(modelId=MODEL, body=ASKED)["body"].iter_chunks(10))


def invoke_lines(url):
    """Ask so, and read in lines."""
    return list(client(url).invoke_model(modelId=MODEL, body=ASKED)["body"].iter_lines())


def invoke_all_lines(url):
    """Ask so, and read all lines."""
    return client(url).invoke_model(modelId=MODEL, body=ASKED)["body"].readlines()


def invoke_into(url):
    """Ask so, and read into a buffer."""
    body, buffer, found = client(url).invoke_model(modelId=MODEL, body=ASKED)["body"], bytearray(16), b""
    while size := body.readinto(buffer):
        found += buffer[:size]
    return found


def invoke_stream(url):
    """Ask by InvokeModelWithResponseStream."""
    return list(client(url).invoke_model_with_response_stream(modelId=MODEL, body=ASKED)["body"])


CALLS = [
    (converse, Reply(CONVERSE)),
    (converse_stream, streamed(*EVENTS)),
    *[(call, Reply(MESSAGE)) for call in (invoke, invoke_within, invoke_chunks, invoke_lines, invoke_all_lines, invoke_into)],
    (invoke_stream, streamed(*map(invoked, MESSAGED))),
]
STREAMS = {
    "empty": streamed(b""),
    "half of an event": streamed(EVENTS[0][:20]),
    "cut": streamed(*EVENTS[:5], EVENTS[5][:9], short=10),
    "a sum that is wrong": streamed(EVENTS[0], EVENTS[1][:-1] + b"\xff"),
    "in single bytes": streamed(*[bytes([one]) for one in b"".join(EVENTS)]),
    "no end": streamed(*EVENTS[:-2]),
    "an exception": streamed(*EVENTS[:6], event("throttlingException", {"message": "slow down"}, "exception")),
    "unknown events": streamed(event("hologram", {"x": 1}), *EVENTS),
    "indices far away": streamed(*[event(kind, {**told, "contentBlockIndex": 9999}) for kind, told in CONVERSED]),
    "members of other kinds": streamed(
        EVENTS[0], event("contentBlockDelta", {"contentBlockIndex": "x", "delta": 5}), event("contentBlockDelta", {}), *EVENTS[1:]
    ),
    "usage of text": streamed(*EVENTS[:-1], event("metadata", {"usage": {"inputTokens": "many"}})),
    "a document": Reply(CONVERSE),
    "refused": Reply({"message": "slow down"}, status=429, headers={"x-amzn-errortype": "ThrottlingException"}),
}
ALL = [
    *[(converse, reply, f"converse: {name}") for name, reply in CHATS.items()],
    *[(invoke, reply, f"invoke: {name}") for name, reply in CHATS.items()],
    *[(invoke_within, reply, f"invoke, within: {name}") for name, reply in CHATS.items()],
    *[(converse_stream, reply, f"stream: {name}") for name, reply in STREAMS.items()],
    *[(invoke_stream, reply, f"invoke, stream: {name}") for name, reply in STREAMS.items()],
]


def only_op(recording):
    """Return the only op."""
    [op] = [op for _, _, op in walk_ops(recording.tree)]
    return op


@pytest.mark.captured(
    "botocore",
    "converse, converse_stream, invoke_model, invoke_model_with_response_stream",
    "plain",
    "streamed",
    "cached",
    added="one line",
    checks=("calls", "answers", "tokens"),
)
@pytest.mark.parametrize(("call", "reply"), CALLS, ids=[call.__name__ for call, _ in CALLS])
def test_a_call_is_an_op(provider, recording, call, reply):
    """Each way to ask is one op with its answer and its tokens, those from and to the cache beside; the program gets what it would get."""
    provider.says(reply)
    with optree.session("agent"), optree.turn():
        hooked = outcome(call, provider)
    uninstrument()
    assert outcome(call, provider) == hooked
    op = only_op(recording)
    assert ("llm", f"bedrock-compatible:{MODEL}", "ok") == (op.kind, op.name, op.status)
    assert [TOKENS] == [entry.tokens for entry in op.accounting]
    assert b"It rains" in bytes(op.response.payload)


@pytest.mark.captured("botocore", "converse, converse_stream", "plain", "streamed", "thinking", "tools", added="one line", checks="answers")
@pytest.mark.parametrize(("call", "reply"), CALLS[:2], ids=["whole", "stream"])
def test_what_converse_says(provider, recording, call, reply):
    """Converse's text, reasoning and tool calls are read as such, whole or streamed; writes for an hour and the tier are kept."""
    provider.says(reply)
    with optree.session("agent"), optree.turn():
        call(provider.url)
    op = only_op(recording)
    [answer] = answers(decode(op.response.payload))
    [said] = answer.messages
    assert ("assistant", CONTENT, "tool_use") == (said["role"], said["content"], answer.finish)
    kinds = [(type(part), getattr(part, "text", None) or part.arguments) for part in message(said).parts]
    assert [(ReasoningPart, "Look outside."), (TextPart, "It rains"), (ToolCallPart, {"city": "Athens"})] == kinds
    assert {"cache_write_1h_tokens": 2, "service_tier": "flex"} == decode(op.accounting[0].details)
    if call is converse_stream:
        assert ["Look ", "outside."] == [chunk.text for chunk in op.reasoning.chunks]


def test_the_request_is_recorded(provider, recording):
    """An op has the messages and parameters of its request, the server, and Amazon's id of the answer."""
    provider.says(Reply(CONVERSE, headers={"x-amzn-requestid": "req-1"}))
    with optree.session("agent"), optree.turn():
        converse(provider.url)
    op = only_op(recording)
    asked = {"messages": QUESTION, "system": [{"text": "Be brief."}], "inferenceConfig": {"maxTokens": 9}}
    assert asked == recording.tree.pool.resolve(decode(op.request.payload))
    assert ("req-1", "127.0.0.1", MODEL) == tuple(op.attributes[name] for name in ("request_id", "server.address", "model"))


def test_a_result_of_a_tool_belongs_to_the_call():
    """Converse's results of tools name the call that they are of."""
    sent = {"role": "user", "content": [{"toolResult": {"toolUseId": "call-1", "content": [{"text": "22"}], "status": "success"}}]}
    [part] = message(sent).parts
    assert (ToolResultPart, "call-1", [{"text": "22"}]) == (type(part), part.id, part.content)
    [called] = message({"role": "assistant", "content": [{"toolUse": CALL}]}).parts
    assert ("call-1", "weather") == (called.id, called.name)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # clients leave sockets of broken answers open
@pytest.mark.parametrize(("call", "reply", "name"), ALL, ids=[name for *_, name in ALL])
def test_a_broken_answer_is_what_it_is_without_hooks(provider, recording, call, reply, name):  # noqa: ARG001 - for pytest alone
    """Result, exception and requests are what they are without hooks; the call is an op that has ended, and optree reports no fault."""
    provider.says(reply)
    before = optree.health()["failures"]
    with optree.session("agent"), optree.turn():
        hooked = outcome(call, provider)
    uninstrument()
    assert outcome(call, provider) == hooked
    assert only_op(recording).status in ("ok", "failed", "cancelled")
    assert before == optree.health()["failures"]


def test_a_refusal(provider, recording):
    """A call that is refused is failed, by the exception that the program gets."""
    provider.says(STREAMS["refused"])
    with optree.session("agent"), optree.turn(), pytest.raises(ClientError):
        converse(provider.url)
    op = only_op(recording)
    assert ("failed", ["failed"]) == (op.status, [entry.status for entry in op.accounting])
    assert op.error.startswith("ThrottlingException: ")


def test_what_is_traced(provider, recording):
    """With `trace_llm` the op has lines of what was asked, of the answer's headers, and of the events of its stream (S4-120)."""
    optree.configure(trace_llm=True)
    provider.says(streamed(*EVENTS, headers={"x-amzn-requestid": "r-1"}))
    converse_stream(provider.url)
    op = only_op(recording)
    asked, head, over = [one for one in op.logs if one.severity == "TRC"]
    assert (f"ConverseStream of {MODEL}", "r-1") == (asked.message, decode(head.details)["headers"]["x-amzn-requestid"])
    kinds = Counter(kind for kind, _ in CONVERSED)
    assert f"stream of {len(CONVERSED)} events" == over.message.partition(", ")[0]
    assert [] == [kind for kind, count in kinds.items() if f"{count} {kind}" not in over.message]


@pytest.mark.captured("botocore", "converse", "retries", added="one line", checks=("calls", "tokens"))
def test_attempts_are_one_op(provider, recording):
    """What botocore sends again after a refusal is one op, which says how often that was."""
    provider.says(Reply({"message": "wait"}, status=503), Reply(CONVERSE))
    with optree.session("agent"), optree.turn():
        client(provider.url, retries={"max_attempts": 1, "mode": "standard", "total_max_attempts": 2}).converse(
            modelId=MODEL, messages=QUESTION
        )
    op = only_op(recording)
    assert ("ok", [TOKENS]) == (op.status, [entry.tokens for entry in op.accounting])
    assert [("WRN", "1 attempt before failed")] == [(log.severity, log.message) for log in op.logs]


def test_a_stream_that_breaks_off(provider, recording):
    """A stream with an exception in it is failed, with what had come."""
    provider.says(STREAMS["an exception"])
    with optree.session("agent"), optree.turn(), pytest.raises(EventStreamError):
        converse_stream(provider.url)
    op = only_op(recording)
    assert ("failed", "It ") == (op.status, decode(op.response.payload))


@pytest.mark.parametrize("way", ["closed", "left"])
def test_a_stream_that_the_program_leaves(provider, recording, way):
    """A stream that the program closes, or reads no more of, is cancelled, with what had come."""
    hold = threading.Event()
    padded = event("contentBlockDelta", CONVERSED[6][1] | {"p": "x" * 65536})  # botocore reads as many bytes at a time
    provider.says(streamed(*EVENTS[:6], padded, b"".join(EVENTS[7:]), hold=hold))
    with optree.session("agent"), optree.turn():
        stream = client(provider.url).converse_stream(modelId=MODEL, messages=QUESTION)["stream"]
        events = iter(stream)
        for _ in range(6):
            next(events)
        if way == "closed":
            stream.close()
        else:
            events.close()
        hold.set()
        stream.close()
    op = only_op(recording)
    assert ("cancelled", "It ") == (op.status, decode(op.response.payload))


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (json.dumps({"inputText": "x"}), "amazon.titan-embed-text-v2:0"),
        (json.dumps({"texts": ["x"], "input_type": "search_query"}), "cohere.embed-v4"),
        ("no JSON", "any"),
        ("[1]", "any"),
        (b"\xff", "any"),
    ],
)
def test_other_calls_pass(provider, recording, body, model):
    """Embeddings, and bodies that ask for nothing known, are not recorded."""
    provider.says(Reply({"embedding": [1]}))
    with optree.session("agent"):
        assert b'{"embedding": [1]}' == client(provider.url).invoke_model(modelId=model, body=body)["body"].read()
    assert [] == list(walk_ops(recording.tree))


@pytest.mark.parametrize(
    ("told", "sent"),
    [
        ({"prompt": "Weather?", "max_gen_len": 9}, "Weather?"),
        ({"inputText": "Weather?", "textGenerationConfig": {}}, "Weather?"),
        ({"message": "Weather?", "chat_history": []}, "Weather?"),
    ],
)
def test_models_with_interfaces_of_their_own(provider, recording, told, sent):
    """What a model is asked by its own interface is the request, and its answer is the response as it is."""
    provider.says(Reply({"generation": "It rains"}))
    with optree.session("agent"), optree.turn():
        client(provider.url).invoke_model(modelId="meta.llama4-v1:0", body=json.dumps(told))["body"].read()
    op = only_op(recording)
    assert [{"role": "user", "content": sent}] == recording.tree.pool.resolve(decode(op.request.payload))["messages"]
    assert {"generation": "It rains"} == decode(op.response.payload)


COUNTS = {"x-amzn-bedrock-input-token-count": "8", "x-amzn-bedrock-output-token-count": "5"}


@pytest.mark.parametrize("joined", [False, True], ids=["alone", "joined"])
@pytest.mark.parametrize(
    ("operation", "reply"),
    [
        ("invoke_model", Reply({"generation": "It rains", "prompt_token_count": 8, "generation_token_count": 5}, headers=COUNTS)),
        ("invoke_model", Reply({"outputs": [{"text": "It rains"}]}, headers=COUNTS)),
        (
            "invoke_model_with_response_stream",
            streamed(
                invoked({"generation": "It rains", "generation_token_count": 2}),
                invoked({"generation": "", "amazon-bedrock-invocationMetrics": {"inputTokenCount": 8, "outputTokenCount": 5}}),
            ),
        ),
    ],
    ids=["Llama", "Mistral", "streamed"],
)
def test_what_bedrock_counts_itself(provider, recording, operation, reply, joined):
    """The tokens of an answer in a form of the model's own are those of Bedrock's headers, or of its last chunk."""
    provider.says(reply)
    with optree.session("agent"), optree.turn(), optree.llm("planner") if joined else contextlib.nullcontext():
        told = getattr(client(provider.url), operation)(modelId="meta.llama4-v1:0", body=json.dumps({"prompt": "Weather?"}))["body"]
        told.read() if operation == "invoke_model" else list(told)
    assert [Tokens(8, 5, 0, 0, 13)] == [entry.tokens for entry in only_op(recording).accounting]


def test_an_inference_profile_names_its_model(provider, recording):
    """Of a model that is given as Amazon's resource name the op has the name."""
    provider.says(Reply(CONVERSE))
    arn = f"arn:aws:bedrock:us-east-1:123456789012:inference-profile/{MODEL}"
    with optree.session("agent"), optree.turn():
        client(provider.url).converse(modelId=arn, messages=QUESTION)
    assert f"bedrock-compatible:{MODEL}" == only_op(recording).name


def test_the_documentation_counts_them():
    """The page on capture says how many broken answers there are."""
    page = Path(__file__).parents[3] / "docs/howto/capture.md"
    assert f"{len(ALL)} by botocore" in page.read_text("utf-8")
