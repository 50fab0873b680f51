"""Content: in the form of the conventions, within its limit, without credentials, and only where asked for."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optree._builder import SessionTreeBuilder
from optree._nodes import Pool
from optree.redaction import redact
from optree.testing import Ticking
from optree_otel.signals import content, names
from optree_otel.signals.content import fit_json
from optree_otel.signals.mapping import op_span, session_span, turn_span
from optree_otel.signals.scope import SpanScope, trace_id
from tests.otel.tree_of_all import TXN, tree_of_all

SECRET = "sk-abcdefghijklmnop1234"
TEXT = (str,)
MAYBE = (str, type(None))
ANY = (object,)
PARTS = {
    "text": {"content": TEXT},
    "reasoning": {"content": TEXT},
    "tool_call": {"name": TEXT, "id": MAYBE, "arguments": ANY},
    "tool_call_response": {"id": MAYBE, "response": ANY},
    "server_tool_call": {"name": TEXT, "id": MAYBE, "server_tool_call": (dict,)},
    "blob": {"modality": TEXT, "mime_type": MAYBE, "content": TEXT},
    "uri": {"modality": TEXT, "uri": TEXT},
    "file": {"modality": TEXT, "file_id": TEXT},
}
"""Members of each part and their types; a part of another type has any members.

Source: open-telemetry/semantic-conventions-genai, docs/gen-ai/gen-ai-input-messages.json and gen-ai-output-messages.json.
"""


def is_part(part) -> bool:
    """Tell whether a value follows the schema of a part."""
    return (
        isinstance(part, dict)
        and isinstance(part["type"], str)
        and all(isinstance(part[key], kinds) for key, kinds in PARTS.get(part["type"], {}).items())
    )


def check(found, *, output=False):
    """Fail the test where a list of messages does not follow the schema."""
    assert isinstance(found, list)
    for message in found:
        assert isinstance(message["role"], str)
        assert isinstance(message.get("name", ""), str)
        assert isinstance(message["finish_reason"], str) if output else True
        assert all(is_part(part) for part in message["parts"]), message


@pytest.mark.parametrize(
    ("given_message", "expected"),
    [
        ({"role": "user", "content": "hi"}, [{"type": "text", "content": "hi"}]),
        ("hi", [{"type": "text", "content": "hi"}]),
        (
            {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "https://x/y.png"}}]},
            [{"type": "text", "content": "see"}, {"type": "uri", "modality": "image", "uri": "https://x/y.png"}],
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]},
            [{"type": "blob", "modality": "image", "mime_type": "image/png", "content": "AAAA"}],
        ),
        (
            {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": '{"a":1}'}}]},
            [{"type": "tool_call", "id": "c", "name": "f", "arguments": {"a": 1}}],
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": '{"a":'}}]},
            [{"type": "tool_call", "id": "c", "name": "f", "arguments": '{"a":'}],
        ),
        ({"role": "tool", "tool_call_id": "c", "content": "rain"}, [{"type": "tool_call_response", "id": "c", "response": "rain"}]),
        (
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": "hm"}, {"type": "tool_use", "id": "t", "name": "f", "input": {}}],
            },
            [{"type": "reasoning", "content": "hm"}, {"type": "tool_call", "id": "t", "name": "f", "arguments": {}}],
        ),
        (
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]},
            [{"type": "tool_call_response", "id": "t", "response": "x"}],
        ),
        (
            {"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}]},
            [{"type": "blob", "modality": "image", "mime_type": "image/png", "content": "AA"}],
        ),
        (
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            [{"type": "tool_call", "id": "c", "name": "f", "arguments": {}}],
        ),
        ({"type": "function_call_output", "call_id": "c", "output": "x"}, [{"type": "tool_call_response", "id": "c", "response": "x"}]),
        (
            {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"a": 1}}}]},
            [{"type": "tool_call", "id": None, "name": "f", "arguments": {"a": 1}}],
        ),
        (
            {"role": "assistant", "reasoning_content": "hm", "content": "x"},
            [{"type": "reasoning", "content": "hm"}, {"type": "text", "content": "x"}],
        ),
        ({"role": "user", "content": [{"type": "hologram", "depth": 3}]}, [{"type": "hologram", "depth": 3}]),
        ({"type": "input_text", "text": "hi"}, [{"type": "text", "content": "hi"}]),
        ({"role": "model", "parts": [{"text": "hm", "thought": True}]}, [{"type": "reasoning", "content": "hm"}]),
        (
            {"role": "model", "parts": [{"text": None, "function_call": {"id": "c", "name": "f", "args": {}}}]},
            [{"type": "tool_call", "id": "c", "name": "f", "arguments": {}}],
        ),
        (
            {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "x"}]},
            [{"type": "tool_call_response", "id": "c", "response": "x"}],
        ),
        ({"role": "function", "name": "f", "content": "x"}, [{"type": "tool_call_response", "id": "f", "response": "x"}]),
        (
            {"role": "assistant", "content": [{"type": "server_tool_use", "id": "t", "name": "web", "input": {"q": "x"}}]},
            [{"type": "server_tool_call", "id": "t", "name": "web", "server_tool_call": {"type": "web", "input": {"q": "x"}}}],
        ),
    ],
)
def test_a_message_of_each_provider_has_the_parts_of_the_conventions(given_message, expected):
    """OpenAI's chat and responses, Anthropic's blocks, Gemini's parts, plain text."""
    found = content.chat_message(given_message)
    check([found])
    assert expected == found["parts"]


def test_reasoning_among_a_requests_items_stands_in_the_answer_behind_it():
    """OpenAI's responses have reasoning as items of their own, which are no messages; closed ones say nothing."""
    reasoned = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    called = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    listed = ["q", reasoned, {"type": "reasoning", "summary": [], "encrypted_content": "x"}, called]
    found = content.chat_messages(listed)
    check(found)
    assert [("user", ["text"]), ("assistant", ["reasoning", "tool_call"])] == [
        (one["role"], [part["type"] for part in one["parts"]]) for one in found
    ]


@pytest.mark.parametrize(
    ("response", "kinds", "finish"),
    [
        ("plain", ["text"], "stop"),
        ({"choices": [{"message": {"content": "x"}, "finish_reason": "length"}]}, ["text"], "length"),
        ({"content": [{"type": "text", "text": "x"}], "stop_reason": "end_turn"}, ["text"], "stop"),
        (
            {"output": [{"type": "reasoning", "summary": []}, {"type": "function_call", "name": "f"}], "status": "completed"},
            ["reasoning", "tool_call"],
            "tool_call",
        ),
        ({"candidates": [{"content": {"parts": [{"text": "x"}]}, "finishReason": "MAX_TOKENS"}]}, ["text"], "length"),
        ({"message": {"role": "assistant", "content": "x"}, "done_reason": "stop"}, ["text"], "stop"),
        ({"role": "assistant", "parts": [{"type": "text", "content": "x"}]}, ["text"], "stop"),
        ([{"role": "assistant", "content": "x"}, {"type": "function_call", "name": "f"}], ["text", "tool_call"], "tool_call"),
        ({"output": [{"type": "function_call", "name": "f"}], "status": "incomplete"}, ["tool_call"], "length"),
        ({"output": [{"type": "web_search_call", "id": "w"}], "status": "completed"}, ["web_search_call"], "stop"),
        ({"answer": 7}, ["text"], "stop"),
        ([1, 2], ["text", "text"], "stop"),
        (None, [], "stop"),
    ],
)
def test_a_response_of_each_provider_is_an_output_message(response, kinds, finish):
    """With why it ended in the words of the conventions."""
    found = content.output_messages(response)
    check(found, output=True)
    assert [(kinds, finish)] == [([part["type"] for part in message["parts"]], message["finish_reason"]) for message in found]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        *((word, "stop") for word in ("stop", "end_turn", "stop_sequence", "completed", "pause_turn", "STOP", "", None, 7)),
        *((word, "length") for word in ("length", "max_tokens", "max_output_tokens", "incomplete", "MAX_TOKENS")),
        *((word, "tool_call") for word in ("tool_calls", "tool_use", "function_call")),
        *((word, "content_filter") for word in ("content_filter", "safety", "refusal")),
        ("failed", "error"),
        ("recitation", "recitation"),
    ],
)
def test_why_a_model_stopped_is_said_in_the_words_of_the_conventions(said, expected):
    """OpenAI's, Anthropic's and Gemini's words are replaced; a word of nobody's stays as it is."""
    assert expected == content.finish(said)


def test_reasoning_as_events():
    """One event a chunk with its time; the final text alone, when the op ended, where nothing was streamed; none where there is none."""
    builder = SessionTreeBuilder("lead", txn=TXN, now=Ticking())
    ops = [builder.begin_op("llm", "m") for _ in range(3)]
    ops[0].think("he asks ")
    ops[0].think("why")
    ops[0].end(reasoning="he asks why")
    ops[1].end(reasoning="at once")
    ops[2].end()
    nodes = builder.tree.session.turns[0].ops
    found = [[(event.name, event.time_ns, event.attributes) for event in content.reasoning_events(node)] for node in nodes]
    streamed = [(names.REASONING, int(chunk.ts * 1e6), [(names.REASONING_TEXT, chunk.text)]) for chunk in nodes[0].reasoning.chunks]
    assert ["he asks ", "why"] == [attributes[0][1] for _, _, attributes in streamed]
    assert [streamed, [(names.REASONING, int(nodes[1].ended_at * 1e6), [(names.REASONING_TEXT, "at once")])], []] == found


def test_roles_are_those_of_the_conventions():
    """Providers' own names for them are replaced."""
    assert ["system", "assistant", "tool"] == [content.chat_message({"role": role})["role"] for role in ("developer", "model", "function")]


def test_streamed_reasoning_stands_before_the_answer():
    """Unless the response has it already."""
    assert ["reasoning", "text"] == [part["type"] for part in content.output_messages("x", "hm")[0]["parts"]]


KEYS = [
    *("role", "content", "type", "text", "parts", "tool_calls", "function", "source"),
    *("image_url", "choices", "message", "output", "summary", "functionCall", "name"),
]
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(KEYS),
        inner | st.sampled_from(["text", "image", "tool_use", "thinking", "input_audio", "function_call", "assistant", "tool"]),
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@settings(deadline=None)
@given(anything)
def test_whatever_a_program_sends_becomes_messages(value):
    """Nothing raises, and what comes out follows the schema."""
    check([content.chat_message(value)])
    check(content.output_messages(value), output=True)


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=400), max_size=3), max_size=30), st.integers(60, 2000))
def test_json_that_is_cut_still_parses(value, limit):
    """At most the limit's bytes, whatever is in it; what fits is not cut, and what does not is."""
    value = redact(value)  # names that are drawn may be those of credentials
    found = fit_json(value, limit)
    assert limit >= len(found.encode())
    assert (len(msgspec.json.encode(value)) <= limit) == (value == json.loads(found))


def test_much_that_is_small_is_not_shortened_again_and_again(monkeypatch):
    """Where no length of texts is short enough, that is found at once: a large request is read through once, not twelve times."""
    read = []
    shortened = content._shortened
    monkeypatch.setattr(content, "_shortened", lambda value, longest: read.append(value) or shortened(value, longest))
    found = json.loads(fit_json([{"name": f"tool {number}", "description": "d" * 20} for number in range(1000)], 32 << 10))
    assert 200 < len(found) < 1000
    assert len(read) <= 3001


@pytest.mark.parametrize(
    ("user", "system", "assistant", "expected"),
    [
        ("why?", "be brief", {"content": "because"}, ["input", "output", "system"]),
        ("why?", None, {"content": ""}, ["input"]),
        (None, None, {"note": "x"}, []),
        ("", "", None, []),
    ],
)
def test_a_turn_has_its_prompts_and_its_answer(user, system, assistant, expected):
    """As messages of the conventions, where they are there and where content is asked for."""
    builder = SessionTreeBuilder("lead", txn=TXN, now=Ticking())
    turn = builder.begin_turn(user=user, system=system)
    if assistant is not None:
        turn.node.assistant = assistant
    turn.end()
    whole = {
        "input": [{"role": "user", "parts": [{"type": "text", "content": user}]}],
        "output": [{"role": "assistant", "parts": [{"type": "text", "content": "because"}], "finish_reason": "stop"}],
        "system": [{"type": "text", "content": system}],
    }
    keys = {"input": names.INPUT_MESSAGES, "output": names.OUTPUT_MESSAGES, "system": names.SYSTEM_INSTRUCTIONS}
    for asked in (True, False):
        found = dict(turn_span(turn.node, SpanScope(TXN, trace_id(TXN), builder.node, content=asked)).attributes)
        there = {name: json.loads(found[key]) for name, key in keys.items() if key in found}
        assert ({name: whole[name] for name in expected} if asked else {}) == there


@pytest.mark.parametrize(("messages_of_room", "kept"), [(0, 1), (0.5, 1), (1, 1), (1.5, 2), (2, 2), (100, 9)])
def test_of_a_pooled_history_the_newest_are_read(messages_of_room, kept):
    """About as many bytes as there is room for, one message at least, in their order; how many are older is counted."""
    builder = SessionTreeBuilder("lead", txn=TXN)
    op = builder.begin_op("llm", "m")
    op.request([{"role": "user", "content": f"{number}" + "x" * 120} for number in range(9)])
    sent, [size, *_] = msgspec.json.decode(op.node.request.payload)["messages"], [len(blob) for blob in builder.core.pool.blobs.values()]
    older, found = content._input(sent, builder.core.pool, messages_of_room * size / content._SLACK)
    assert (9 - kept, [f"{number}" for number in range(9 - kept, 9)]) == (older, [message["content"][0] for message in found])


@pytest.mark.parametrize("key", ["messages", "input", "contents", "prompt"])
def test_the_messages_of_a_request_go_by_several_names(key):
    """OpenAI's two interfaces, Gemini's and plain prompts: what was sent is there, with what was thought before the answer."""
    builder = SessionTreeBuilder("lead", txn=TXN, now=Ticking())
    op = builder.begin_op("llm", "m")
    builder.set_request(op, {key: "why?"})
    op.think("he asks ")
    op.think("why")
    op.response("because")
    op.end()
    found = dict(op_span(builder.tree.session.turns[0].ops[0], SpanScope(TXN, trace_id(TXN), builder.node, content=True)).attributes)
    assert [{"role": "user", "parts": [{"type": "text", "content": "why?"}]}] == json.loads(found[names.INPUT_MESSAGES])
    [answer] = json.loads(found[names.OUTPUT_MESSAGES])
    assert [{"type": "reasoning", "content": "he asks why"}, {"type": "text", "content": "because"}] == answer["parts"]


@pytest.mark.parametrize("asked", [True, False])
def test_a_tool_has_its_arguments_and_its_result(asked):
    """As JSON, where content is asked for."""
    builder = SessionTreeBuilder("lead", txn=TXN, now=Ticking())
    op = builder.begin_op("tool", "search")
    op.request(query="rain", key=SECRET)
    op.response({"found": [1]})
    op.end()
    found = dict(op_span(op.node, SpanScope(TXN, trace_id(TXN), builder.node, content=asked)).attributes)
    expected = [{"query": "rain", "key": "[REDACTED]"}, {"found": [1]}] if asked else []
    assert expected == [json.loads(found[key]) for key in (names.TOOL_ARGUMENTS, names.TOOL_RESULT) if key in found]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("data:image/png;base64,AA", {"type": "blob", "modality": "image", "mime_type": "image/png", "content": "AA"}),
        ("data:image/png", {"type": "uri", "modality": "image", "uri": "data:image/png"}),
        ("https://x/a,b.png", {"type": "uri", "modality": "image", "uri": "https://x/a,b.png"}),
    ],
)
def test_an_image_is_data_or_an_address(url, expected):
    """A URL with a comma in it is no data, and one that begins as data and has none is no picture."""
    block = {"type": "image_url", "image_url": {"url": url}}
    assert [expected] == content.chat_message({"role": "user", "content": [block]})["parts"]


@pytest.mark.parametrize(
    ("value", "limit", "expected"),
    [
        ({"a": "x" * 100}, 60, f'{{"a":"{"x" * 30}…[+70 characters]"}}'),
        ([["x" * 40]], 46, f'[["{"x" * 40}"]]'),
        ([["x" * 40]], 45, f'[["{"x" * 11}…[+29 characters]"]]'),
        ([["x" * 40]], 20, '{"type":"optree.left_out","bytes":41}'),
        (
            [[7] * 150, [8] * 100],
            300,
            f'[{{"role":"system","parts":[{{"type":"optree.left_out","count":1}}]}},{[8] * 100}]'.replace(" ", ""),
        ),
        ({"a": "x" * 100}, 43, '{"a":"xxxxxxxxxx…[+90 characters]"}'),
        ({"a": "x" * 100}, 42, '{"type":"optree.left_out","bytes":43}'),
        (["x" * 20, "y" * 200], 80, f'["{"x" * 20}","{"y" * 20}…[+180 characters]"]'),
        ({"a": 10**15}, 12, '{"type":"optree.left_out","bytes":22}'),
        (["a" * 9, "b" * 9, "c" * 9], 90, '["aaaaaaaaa","bbbbbbbbb","ccccccccc"]'),
    ],
)
def test_how_json_is_cut(value, limit, expected):
    """Texts are halved until all fits, with how much is missing; of what cannot be made to fit only its size is told."""
    assert expected == fit_json(value, limit)


def test_reasoning_is_cut_like_all_else():
    """What there is room for is told whole."""
    builder = SessionTreeBuilder("lead", txn=TXN)
    op = builder.begin_op("llm", "m")
    op.think("h" * 200)
    op.response("so")
    [(name, said)] = content.call_attributes(op.node, {}, None, 400)
    assert (names.OUTPUT_MESSAGES, ["h" * 200, "so"]) == (name, [part["content"] for part in json.loads(said)[0]["parts"]])


def test_a_history_that_refers_to_itself_ends():
    """A damaged file may hold one, and may lack what it refers to: each link is followed once."""
    pool = Pool(links={"a": ("b", "x"), "b": ("a", "y")}, blobs={"x": msgspec.Raw(b"1")})
    assert [None, 1] == content._newest(pool, "a", 10**9)


@pytest.mark.parametrize(("data", "expected"), [(b'"so"', "so"), (b"{bro\xff", "{bro\ufffd"), (b'{"a": 1}', '{"a":1}')])
def test_a_stored_value_as_it_reads(data, expected):
    """A text as it is, anything else as JSON; what is neither, with marks in the place of what is no text."""
    assert expected == content.text_of(msgspec.Raw(data), 100)


@pytest.mark.parametrize("key", ["system", "instructions", "systemInstruction", "system_instruction"])
def test_the_instructions_of_a_request_go_by_several_names(key):
    """As text, or as Gemini's parts."""
    op = SessionTreeBuilder("lead", txn=TXN).begin_op("llm", "m")
    for given_ in ("be brief", {"parts": [{"text": "be brief"}]}):
        [(name, said)] = content.call_attributes(op.node, {key: given_}, None, 1000)
        assert (names.SYSTEM_INSTRUCTIONS, [{"type": "text", "content": "be brief"}]) == (name, json.loads(said))


def test_older_items_are_left_out_by_halves():
    """Of four lists of which two fit the older two go, though a third might have stayed: each try reads all that is left."""
    items = [[number] * 100 for number in range(4)]
    note = {"role": "system", "parts": [{"type": "optree.left_out", "count": 2}]}
    assert [note, *items[2:]] == json.loads(fit_json(items, 700))


@pytest.mark.parametrize(("count", "expected"), [(9, 8), (1, 0), (0, 0), (None, 0), ("9", 0)])
def test_how_many_messages_are_left_out(count, expected):
    """As many as the request says there are more than were read; none where it says nothing."""
    builder = SessionTreeBuilder("lead", txn=TXN)
    op = builder.begin_op("llm", "m")
    op.request([{"role": "user", "content": "hi"}])
    sent = {**msgspec.json.decode(op.node.request.payload)["messages"], "count": count}
    assert expected == content._input(sent, builder.core.pool, 1000)[0]


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (
            {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
            {"type": "blob", "modality": "audio", "mime_type": "audio/wav", "content": "AA"},
        ),
        (
            {"type": "input_audio", "input_audio": {}},
            {"type": "blob", "modality": "audio", "mime_type": "audio/*", "content": ""},
        ),
        ({"type": "input_audio", "input_audio": 7}, None),
        (
            {"type": "document", "source": {"type": "url", "url": "https://x/y.pdf"}},
            {"type": "uri", "modality": "document", "uri": "https://x/y.pdf"},
        ),
        ({"type": "document", "source": {"file_id": 7}}, {"type": "file", "modality": "document", "file_id": "7"}),
        ({"type": "image", "source": {"data": "AA"}}, {"type": "blob", "modality": "image", "mime_type": None, "content": "AA"}),
        ({"type": "image", "source": {}}, None),
        ({"type": "image", "source": "x"}, None),
        ({"type": "input_image", "image_url": "https://x"}, {"type": "uri", "modality": "image", "uri": "https://x"}),
        ({"type": "input_image", "image_url": {"url": 7}}, None),
        ({"depth": 3}, {"type": "unknown", "depth": 3}),
    ],
)
def test_parts_that_are_no_text(block, expected):
    """Sounds, pictures and documents, in them or elsewhere; what is of another shape goes as it is."""
    assert [block if expected is None else expected] == content.message_parts([block])


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        ("f", {"type": "function", "name": "f", "description": ""}),
        ({"name": "f", "input_schema": {"a": 1}}, {"type": "function", "name": "f", "description": "", "parameters": {"a": 1}}),
        ({"type": "web", "function": {"name": "f", "description": "d"}}, {"type": "web", "name": "f", "description": "d"}),
        ({"type": None, "function": 7, "parameters": {}}, {"type": "function", "name": "", "description": "", "parameters": {}}),
    ],
)
def test_a_tools_definition(tool, expected):
    """OpenAI's, Anthropic's, or a bare name."""
    assert expected == content._definition(tool)


def test_of_a_long_conversation_the_newest_messages_stay():
    """What is missing is told in the place of it."""
    found = json.loads(fit_json([content.chat_message(f"message {number}") for number in range(500)], 2_000, left_out=1000))
    check(found)
    assert "message 499" == found[-1]["parts"][0]["content"]
    assert 1500 == found[0]["parts"][0]["count"] + len(found) - 1


def test_a_pooled_history_is_read_from_its_end_only():
    """A call late in a session costs no more than an early one."""
    builder = SessionTreeBuilder("agent", txn=TXN, now=Ticking())
    op = builder.begin_op("llm", "openai:m")
    op.request([{"role": "user", "content": f"message {number}"} for number in range(5_000)])
    op.end()
    pool = builder.core.pool
    blobs = dict(pool.blobs)
    keep = list(blobs)[-400:]
    pool.blobs.clear()
    pool.blobs.update({key: blobs[key] for key in keep})
    found = json.loads(
        dict(op_span(op.node, SpanScope(TXN, trace_id(TXN), builder.node, content=True, pool=pool)).attributes)[names.INPUT_MESSAGES]
    )
    assert "message 4999" == found[-1]["parts"][0]["content"]
    assert 5_000 == found[0]["parts"][0]["count"] + len(found) - 1


def everything(*, switch: bool) -> str:
    """Return all that the spans of the tree say, as text."""
    builder = tree_of_all()
    scope = SpanScope(TXN, trace_id(TXN), builder.node, content=switch, pool=builder.core.pool)
    turn = builder.node.turns[0]
    spans = [session_span(builder.node, scope), turn_span(turn, scope), *(op_span(op, scope) for op in turn.ops)]
    return repr([(span.attributes, span.events) for span in spans])


@pytest.mark.parametrize("text", ["Weather in Paris?", "Be brief.", "rain ", "or sun?", '"q":"Paris"', '"answer":"Rain."', "Rain."])
def test_content_goes_out_only_where_asked_for(text):
    """Prompts, messages, arguments, results, reasoning, reports."""
    assert (False, True) == (text in everything(switch=False), text in everything(switch=True))


def test_a_calls_content_is_whole_and_follows_the_schema():
    """Instructions, tools, input and output of one call."""
    builder = tree_of_all()
    scope = SpanScope(TXN, trace_id(TXN), builder.node, content=True, pool=builder.core.pool)
    found = dict(op_span(builder.node.turns[0].ops[0], scope).attributes)
    sent, received = json.loads(found[names.INPUT_MESSAGES]), json.loads(found[names.OUTPUT_MESSAGES])
    check(sent)
    check(received, output=True)
    assert ["system", "user"] == [message["role"] for message in sent]
    assert [("reasoning", "rain or sun?"), ("tool_call", None)] == [(part["type"], part.get("content")) for part in received[0]["parts"]]
    assert {"type", "name", "description", "parameters"} == set(json.loads(found[names.TOOL_DEFINITIONS])[0])


def test_reasoning_is_told_as_events_chunk_by_chunk():
    """Each with the time at which it came."""
    builder = tree_of_all()
    op = builder.node.turns[0].ops[0]
    scope = SpanScope(TXN, trace_id(TXN), builder.node, content=True, pool=builder.core.pool)
    expected = [(int(chunk.ts * 1e6), names.REASONING, [(names.REASONING_TEXT, chunk.text)]) for chunk in op.reasoning.chunks]
    assert expected == [(event.time_ns, event.name, event.attributes) for event in op_span(op, scope).events]


def test_reasoning_of_several_chunks_holds_no_credential():
    """One that lies over several chunks goes as well, and there are as many events as there were chunks."""
    builder = SessionTreeBuilder("agent", txn=TXN, now=Ticking())
    call = builder.begin_op("llm", "openai:m")
    for piece in ("use ", SECRET[:9], SECRET[9:], " now"):
        call.think(piece)
    call.end()
    scope = SpanScope(TXN, trace_id(TXN), builder.node, content=True, pool=builder.core.pool)
    told = [dict(event.attributes)[names.REASONING_TEXT] for event in op_span(call.node, scope).events]
    assert ["use ", "[REDACTED]", "", " now"] == told


def test_content_holds_no_credentials():
    """Neither in texts nor behind their keys."""
    builder = SessionTreeBuilder("agent", txn=TXN, now=Ticking())
    call = builder.begin_op("llm", "openai:m")
    call.request([{"role": "user", "content": f"use {SECRET}"}], system=f"my key is {SECRET}")
    call.response({"content": SECRET})
    tool = builder.begin_op("tool", "login")
    tool.request(password="hunter2")
    for op in (call, tool):
        op.end()
    scope = SpanScope(TXN, trace_id(TXN), builder.node, content=True, pool=builder.core.pool)
    said = repr([op_span(op.node, scope).attributes for op in (call, tool)])
    assert [False, False, 4] == [SECRET in said, "hunter2" in said, said.count("[REDACTED]")]


def test_content_that_cannot_be_told_costs_only_itself(monkeypatch):
    """The span goes out, and says why its content is missing."""
    monkeypatch.setattr(content, "output_messages", None)
    builder = tree_of_all()
    scope = SpanScope(TXN, trace_id(TXN), builder.node, content=True, pool=builder.core.pool)
    found = dict(op_span(builder.node.turns[0].ops[0], scope).attributes)
    assert ("gpt-4o", True) == (found[names.REQUEST_MODEL], found[names.CONTENT_ERROR].startswith("TypeError"))
