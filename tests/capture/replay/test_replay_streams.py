"""A replayed stream has the shape in which its provider sends one: what a program puts together of its pieces is the same."""

import asyncio
import json

import anthropic
import httpx
import openai
import pytest
from google import genai
from google.genai import types

import optree
from optree._nodes import REPLAY_OF
from optree._tree import walk_ops
from optree._values import decode
from optree.testing import capture, replay
from tests.capture.calls.test_left_open import client
from tests.capture.conftest import twice
from tests.capture.provider import EVENTS, Reply, events

pytestmark = pytest.mark.usefixtures("hooked")
CITIES = ("Athens", "Rome")
_CHUNK = {"id": "chat-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5"}


def chunk_of(delta, finish=None):
    """Return a chunk of a streamed chat."""
    return {**_CHUNK, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def call_of(number, arguments, **begins):
    """Return a piece of one tool call, in a chunk of its own."""
    function = {"arguments": arguments, **({"name": "weather"} if begins else {})}
    return chunk_of({"tool_calls": [{"index": number, **begins, "function": function}]})


CALLS = [json.dumps({"city": city}) for city in CITIES]
CHAT_CALLS = events(
    chunk_of({"role": "assistant", "content": None}),
    *(
        piece
        for number, arguments in enumerate(CALLS)
        for piece in (
            call_of(number, "", id=f"c-{number}", type="function"),
            *(call_of(number, part) for part in (arguments[:5], arguments[5:])),
        )
    ),
    chunk_of({}, "tool_calls"),
)
_RESPONSE = {
    "id": "r-1", "object": "response", "created_at": 1, "model": "gpt-5", "status": "completed", "parallel_tool_calls": True,
    "tool_choice": "auto", "tools": [],
}  # fmt: skip


def response_events(*items):
    """Return a streamed response of whole items."""
    told = [{"type": "response.created", "response": {**_RESPONSE, "status": "in_progress", "output": []}}]
    for at, item in enumerate(items):
        where = {"output_index": at, "item_id": item["id"]}
        empty = {name: "" if name == "arguments" else value for name, value in item.items()}
        told.append({"type": "response.output_item.added", "output_index": at, "item": {**empty, "status": "in_progress"}})
        if "arguments" in item:
            told.append({"type": "response.function_call_arguments.delta", **where, "delta": item["arguments"]})
            done = {"arguments": item["arguments"], "name": item["name"]}
            told.append({"type": "response.function_call_arguments.done", **where, **done})
        told.append({"type": "response.output_item.done", "output_index": at, "item": item})
    told.append({"type": "response.completed", "response": {**_RESPONSE, "output": list(items)}})
    return events(*({**one, "sequence_number": at} for at, one in enumerate(told)), done=False, names=True)


RESPONSE_CALLS = response_events(
    *(
        {"type": "function_call", "id": f"f-{at}", "call_id": f"c-{at}", "name": "weather", "arguments": arguments, "status": "completed"}
        for at, arguments in enumerate(CALLS)
    )
)


def chat_calls(url):
    """Accumulate the arguments of a chat's tool calls as OpenAI's guide does: what a call begins with is taken twice, as it is empty."""
    calls = {}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        for chunk in client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "Weather?"}], stream=True):
            for call in chunk.choices[0].delta.tool_calls or []:
                calls.setdefault(call.index, call).function.arguments += call.function.arguments
    return [call.function.arguments for call in calls.values()]


def last_calls(url):
    """Take of each chunk the one call that is in it, as LlamaIndex does."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        asked = client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "Weather?"}], stream=True)
        found = [chunk.choices[0].delta.tool_calls or [] for chunk in asked]
    assert {0, 1} == {len(calls) for calls in found}
    return [call.id for [call] in filter(None, found) if call.id]


def response_calls(url):
    """Accumulate the arguments of a response's function calls."""
    calls = {}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        for event in client.responses.create(model="gpt-5", input="Weather?", stream=True):
            if event.type == "response.output_item.added":
                calls[event.output_index] = event.item
            elif event.type == "response.function_call_arguments.delta":
                calls[event.output_index].arguments += event.delta
    return [(call.call_id, call.name, call.arguments) for call in calls.values()]


def response_begins(url):
    """Take what each item and part begins with, and its pieces."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        return [
            (event.type, dumped.get("item", dumped.get("part", dumped.get("delta"))))
            for event in client.responses.create(model="gpt-5", input="Weather?", stream=True)
            for dumped in [event.model_dump(exclude_none=True)]
        ]


@pytest.mark.parametrize(
    ("ask", "reply"),
    [
        (chat_calls, CHAT_CALLS), (last_calls, CHAT_CALLS), (response_calls, RESPONSE_CALLS), (response_begins, RESPONSE_CALLS),
    ],
    ids=["chat", "a call a chunk", "responses", "events"],
)  # fmt: skip
def test_openais_streams(provider, ask, reply):
    """A loop over OpenAI's events or chunks puts the same together in a replay: arguments come apart from what a call begins with."""
    expected, found, _, _ = twice(provider, [reply], lambda: ask(provider.url))
    assert expected == found
    assert expected
    assert isinstance(expected, list)


def content_of(parts):
    """Return a chunk's content, without a member for no parts, and none at all for None."""
    return {} if parts is None else {"content": {"role": "model", **({"parts": parts} if parts else {})}}


def gemini_events(*chunks):
    """Return a stream of Gemini's of chunks with these parts, the last of which ends it."""
    told = [
        {"candidates": [{"index": 0, **content_of(parts), **({"finishReason": "STOP"} if at == len(chunks) else {})}],
         "usageMetadata": {"promptTokenCount": 12, "candidatesTokenCount": 5, "totalTokenCount": 17}, "modelVersion": "gemini"}
        for at, parts in enumerate(chunks, 1)
    ]  # fmt: skip
    return Reply(*(b"data: " + json.dumps(one).encode() + b"\r\n\r\n" for one in told), kind=EVENTS)


def texts(*said):
    """Return a stream of Gemini's with one text a chunk."""
    return gemini_events(*([{"text": text}] for text in said))


WORDS = [{"text": "Let me "}], [{"text": "check "}], [{"text": "both."}]
USES = [{"functionCall": {"name": "weather", "args": {"city": city}}} for city in CITIES]
SIGNED = [{"text": "", "thoughtSignature": "c2ln"}]
THINKS = [{"text": "Look ", "thought": True}], [{"text": "outside.", "thought": True}]


def weather(city: str) -> str:
    """Tell the weather."""
    return f"rain in {city}"


def gemini_chat(url, tools, *messages):
    """Send messages in a chat, streamed; return the pieces of what comes, and the history."""
    with genai.Client(api_key="none", http_options=types.HttpOptions(base_url=url)) as client:
        chat = client.chats.create(model="gemini-2.5-flash", config=types.GenerateContentConfig(tools=tools))
        said = [[chunk.text for chunk in chat.send_message_stream(message)] for message in messages]
        return said, [content.model_dump(exclude_none=True) for content in chat.get_history()]


def gemini_models(url, tools, message):
    """Ask without a chat, streamed; return the pieces of what comes."""
    with genai.Client(api_key="none", http_options=types.HttpOptions(base_url=url)) as client:
        asked = client.models.generate_content_stream(
            model="gemini-2.5-flash", contents=message, config=types.GenerateContentConfig(tools=tools)
        )
        return [chunk.text for chunk in asked]


GEMINI = {
    "two messages": ([texts("I have ", "two ", "dogs"), texts("Eight ", "paws")], gemini_chat, (), ("I have 2 dogs.", "How many paws?")),
    "three messages": ([texts("a ", "b"), texts("c"), texts("d ", "e ", "f")], gemini_chat, (), ("One?", "Two?", "Three?")),
    "parts of one chunk": ([gemini_events([{"text": "a"}, *USES[:1]], [{"text": "b"}]), texts("c")], gemini_chat, (), ("One?", "Two?")),
    "an empty last chunk": ([gemini_events(*WORDS, [{"text": ""}]), texts("c")], gemini_chat, (), ("One?", "Two?")),
    "a chunk without parts": ([gemini_events(*WORDS, []), texts("c")], gemini_chat, (), ("One?", "Two?")),
    "a chunk without content": ([gemini_events(*WORDS, None), texts("c")], gemini_chat, (), ("One?", "Two?")),
    "a text that is signed": ([gemini_events(*WORDS, SIGNED), texts("c")], gemini_chat, (), ("One?", "Two?")),
    "an empty text before a call": (
        [gemini_events([{"text": ""}], USES[:1], USES[1:]), texts("It ", "rains")], gemini_models, (weather,), ("Weather?",),
    ),
    "thoughts": ([gemini_events(*THINKS, *WORDS), texts("c")], gemini_chat, (), ("One?", "Two?")),
    "tools": ([gemini_events(*WORDS, USES[:1], USES[1:]), texts("It ", "rains")], gemini_models, (weather,), ("Weather?",)),
    "two calls of a chunk": ([gemini_events(*WORDS, USES), texts("It ", "rains")], gemini_models, (weather,), ("Weather?",)),
    "tools in a chat": (
        [gemini_events(*WORDS, USES[:1], USES[1:]), texts("It ", "rains"), texts("Yes")], gemini_chat, (weather,), ("Weather?", "Sure?"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", GEMINI)
def test_geminis_streams(provider, case):
    """A chat gets the chunks that came then: its client sends each back, so that the next message is the request that was recorded."""
    replies, ask, tools, messages = GEMINI[case]
    expected, found, recorded, again = twice(provider, replies, lambda: ask(provider.url, list(tools), *messages))
    assert expected == found
    assert not isinstance(expected[0], type), expected  # no error
    calls = [[op for _, _, op in walk_ops(one.tree) if op.kind == "llm"] for one in (recorded, again)]
    assert len(replies) == len(calls[0]) == sum(REPLAY_OF in op.attributes for op in calls[1])


_SAID = [{"model": "qwen", "response": text, "done": False} for text in ("It ", "rains")]
_DONE = {"model": "qwen", "response": "", "done": True, "done_reason": "stop", "prompt_eval_count": 12, "eval_count": 2}
LINES = [json.dumps(line).encode() + b"\n" for line in (*_SAID, _DONE)]
NDJSON = "application/x-ndjson"


def generated(url):
    """Read a completion of Ollama's line by line; return its text, and what it took or broke off by."""
    said, last = "", None
    try:
        with httpx.Client() as client, client.stream("POST", f"{url}/api/generate", json={"model": "qwen", "prompt": "Weather?"}) as answer:
            for line in map(json.loads, answer.iter_lines()):
                said += line["response"]
                last = line["done"] and (line["done_reason"], line["prompt_eval_count"], line["eval_count"])
    except httpx.HTTPError as error:
        last = type(error).__name__
    return said, last


def generated_by_hand(url):
    """Do it in an op that the program records by itself."""
    with optree.session("agent"), optree.turn(), optree.llm(provider="ollama", model="qwen") as op:
        found = generated(url)
        op.account(input_tokens=12, output_tokens=2)
        op.response(found[0])
    return found


@pytest.mark.parametrize(
    ("ask", "reply", "end"),
    [
        (generated, Reply(*LINES, kind=NDJSON), ("stop", 12, 2)),
        (generated, Reply(*LINES[:2], kind=NDJSON, short=9), "RemoteProtocolError"),
        (generated_by_hand, Reply(*LINES, kind=NDJSON), ("stop", 12, 2)),
    ],
    ids=["whole", "broken", "recorded by the program"],
)
def test_ollamas_completions(provider, ask, reply, end):
    """A completion of Ollama's comes in its own lines: whole, as far as it came, or by the text that the program recorded."""
    expected, found, _, _ = twice(provider, [reply], lambda: ask(provider.url))
    assert ("It rains", end) == expected
    assert ("It rains", end) == found


_ANSWER = {"id": "chat-1", "object": "chat.completion", "created": 1, "model": "gpt-5", "choices": [
    {"index": 0, "message": {"role": "assistant", "content": "It rains"}, "finish_reason": "stop"}]}  # fmt: skip
_ASKED = {"model": "gpt-5", "messages": [{"role": "user", "content": "Weather?"}]}


def raw(url):
    """Read a whole answer's bytes as they come."""
    with httpx.Client() as client, client.stream("POST", f"{url}/chat/completions", json=_ASKED) as answer:
        return json.loads(b"".join(answer.iter_raw()))


async def raw_async(url):
    """Do it in an event loop."""
    async with httpx.AsyncClient() as client, client.stream("POST", f"{url}/chat/completions", json=_ASKED) as answer:
        return json.loads(b"".join([piece async for piece in answer.aiter_raw()]))


@pytest.mark.parametrize("ask", [raw, lambda url: asyncio.run(raw_async(url))], ids=["sync", "async"])
def test_the_bytes_of_a_whole_answer(provider, ask):
    """A program that reads the bytes of an answer by itself, not only its text, gets them in a replay too."""
    expected, found, _, _ = twice(provider, [Reply(_ANSWER)], lambda: ask(provider.url))
    assert "It rains" == expected["choices"][0]["message"]["content"]
    assert expected == found


def test_a_stream_that_is_read_behind_its_turn():
    """An answer that came whole, of which a part was read behind the end of its turn, is given whole."""

    def ask(asking):
        with optree.turn():
            asked = {"model": "gpt-5", "stream": True, "messages": [{"role": "user", "content": "Weather?"}]}
            response = asking.send(asking.build_request("POST", "https://api.openai.com/v1/chat/completions", json=asked), stream=True)
            coming = response.iter_lines()
            read = [next(coming)]
        read += coming
        response.close()
        found = [json.loads(line.removeprefix("data: ")) for line in read if line.startswith("data: {")]
        return "".join(choice["delta"].get("content") or "" for one in found for choice in one["choices"])

    said = events(chunk_of({"role": "assistant", "content": "It "}), chunk_of({"content": "rains"}), chunk_of({}, "stop"))
    with capture() as recorded, client(*said.pieces) as asking, optree.session("agent"):
        assert "It rains" == ask(asking)
    [(_, _, op)] = walk_ops(recorded.tree)
    assert ("cancelled", True) == (op.status, not op.response.partial)
    with replay(recorded.tree), capture(), client() as asking, optree.session("agent"):
        assert "It rains" == ask(asking)


def test_sources_of_a_streamed_answer(provider):
    """A replay gives the sources that a text of Anthropic's cites, so the next request, which sends them back, is as it was."""
    cited = [{"type": "char_location", "cited_text": f"c{at}", "document_index": 0, "document_title": "d",
              "start_char_index": at, "end_char_index": at + 1} for at in (0, 1)]  # fmt: skip
    message = {"id": "m-1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None, "stop_sequence": None}
    told = [
        {"type": "message_start", "message": {**message, "usage": {"input_tokens": 12, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "", "citations": []}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "It rains"}},
        *({"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": one}} for one in cited),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]

    def run():
        asking, said = anthropic.Anthropic(api_key="k", base_url=provider.url, max_retries=0), []
        messages = [{"role": "user", "content": "Weather?"}]
        with optree.session("asker"), optree.turn():
            for _ in range(2):
                with asking.messages.stream(model="m", max_tokens=9, messages=messages) as stream:
                    answer = stream.get_final_message()
                said.append(answer.model_dump_json())
                messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": "And then?"}]
        return said

    expected, found, recorded, _ = twice(provider, [events(*told, done=False, names=True)], run)
    assert expected == found
    assert [cited] * 2 == [decode(op.response.payload)["content"][0]["citations"] for _, _, op in walk_ops(recorded.tree)]


@pytest.mark.parametrize(
    ("item", "kind", "member"),
    [
        pytest.param(
            {"type": "mcp_call", "server_label": "s", "name": "f", "arguments": '{"a": 1}', "output": "o"},
            "mcp_call_arguments",
            "arguments",
            id="a call of MCP",
        ),
        pytest.param(
            {"type": "mcp_approval_request", "server_label": "s", "name": "f", "arguments": "{}"},
            None,
            "arguments",
            id="one to be approved",
        ),
        pytest.param(
            {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "text"},
            "custom_tool_call_input",
            "input",
            id="a custom tool",
        ),
        pytest.param(
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Look outside"}]},
            None,
            None,
            id="reasoning",
        ),
    ],
)
def test_items_that_are_no_messages_and_no_functions(provider, item, kind, member):
    """OpenAI's client puts them together in a replay too: their events are those of their own kind."""
    item = {**item, "id": "i-1", "status": "completed"}
    where = {"output_index": 0, "item_id": "i-1"}
    told = [
        {"type": "response.created", "response": {**_RESPONSE, "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": item | ({member: ""} if member else {"content": []})},
        *([{"type": f"response.{kind}.delta", **where, "delta": item[member]}] if kind else []),
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {**_RESPONSE, "output": [item]}},
    ]

    def run():
        asking = openai.OpenAI(base_url=f"{provider.url}/v1", api_key="none", max_retries=0)
        with asking, optree.session("asker"), optree.turn(), asking.responses.stream(model="gpt-5", input="Weather?") as stream:
            pieces = [event.delta for event in stream if event.type == f"response.{kind}.delta"]
            return pieces, stream.get_final_response().output

    numbered = ({**one, "sequence_number": at} for at, one in enumerate(told))
    expected, found, _, _ = twice(provider, [events(*numbered, done=False, names=True)], run)
    assert ([item[member]] if kind else []) == expected[0]
    assert str(expected) == str(found)


def chunks_of(url, path):
    """Return the JSON of a stream's events."""
    sent = {
        "model": "m",
        "messages": [{"role": "user", "content": "Weather?"}],
        "contents": [{"parts": [{"text": "Weather?"}]}],
        "stream": True,
    }
    with httpx.stream("POST", url + path, json=sent) as response:
        return [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]


def _candidate(at, text, **more):
    return {"content": {"role": "model", "parts": [{"text": text}]}, "index": at, **more}


USED = {"promptTokenCount": 12, "candidatesTokenCount": 2, "totalTokenCount": 14}
BLOCKED = {
    "promptFeedback": {"blockReason": "SAFETY"},
    "usageMetadata": {"promptTokenCount": 12, "totalTokenCount": 12},
    "modelVersion": "m",
}
SEVERAL = [
    {"candidates": [_candidate(1, "Rain"), _candidate(0, "Sun")], "modelVersion": "m"},
    {"candidates": [_candidate(0, "ny", finishReason="STOP"), _candidate(1, "y", finishReason="STOP")], "usageMetadata": USED},
]


def test_several_candidates(provider):
    """Each candidate of Gemini's in a stream has its own text in a replay."""

    def run():
        with optree.session("asker"), optree.turn():
            return chunks_of(provider.url, "/v1beta/models/m:streamGenerateContent?alt=sse")

    _, found, _, _ = twice(provider, [events(*SEVERAL, done=False)], run)
    assert [["Sunny", "Rainy"]] == [[one["content"]["parts"][0]["text"] for one in chunk["candidates"]] for chunk in found]


def test_a_prompt_that_is_blocked(provider):
    """An answer of Gemini's without candidates is one, has its tokens, and is given in a replay."""

    def run():
        with optree.session("asker"), optree.turn():
            return chunks_of(provider.url, "/v1beta/models/m:streamGenerateContent?alt=sse")

    expected, found, recorded, _ = twice(provider, [events(BLOCKED, done=False)], run)
    assert [BLOCKED] == expected == found
    [(_, _, op)] = walk_ops(recorded.tree)
    assert (BLOCKED, 12) == (decode(op.response.payload), op.accounting[0].tokens.total_tokens)


def test_what_mistral_says_in_parts(provider):
    """Its client wants reasoning as a list of texts, and the name in each piece of a tool call, which has no type: that comes whole."""
    call = {"id": "c-1", "index": 0, "function": {"name": "weather", "arguments": CALLS[0]}}
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Look "}]}
    more = {"type": "thinking", "thinking": [{"type": "text", "text": "outside"}]}

    def run():
        with optree.session("asker"), optree.turn():
            deltas = [chunk["choices"][0]["delta"] for chunk in chunks_of(provider.url, "/v1/chat/completions")]
        return [one.get("content") or one["tool_calls"] for one in deltas if one.get("content") or one.get("tool_calls")]

    told = [
        chunk_of({"role": "assistant", "content": [thought]}),
        chunk_of({"content": [more]}),
        chunk_of({"tool_calls": [call]}, "tool_calls"),
    ]
    expected, found, _, _ = twice(provider, [events(*told)], run)
    assert [[thought], [more], [call]] == expected
    assert [[{"type": "thinking", "thinking": [{"type": "text", "text": "Look outside"}]}], [call]] == found
