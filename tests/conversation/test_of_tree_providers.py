"""Requests and answers in the forms of providers, and damaged ones, as one form of transcript."""

import gzip
import json
from base64 import b64encode

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import optree
from optree._nodes import Message, Payload
from optree._store.reading.recovery import load
from optree.conversation.content import answers_of, calls_of, entries_of, is_utterance, kind_of, text_of, thought_of
from optree.conversation.events import TranscriptEntry
from optree.conversation.of_tree import events_of
from optree.conversation.viewer import SessionViewer
from optree.conversation.views.sections import Ask, sections
from optree.testing import capture
from tests.strategies import values

CALL = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q":"x"}'}}
OPENAI = (
    {"messages": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "q"}]}]},
    {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": [CALL]}, "finish_reason": "tool_calls"}]},
    [{"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c1", "content": "found"}],
    {"choices": [{"message": {"role": "assistant", "content": "a"}}]},
)
RESPONSES = (
    {"instructions": "Be brief.", "input": [{"role": "user", "content": [{"type": "input_text", "text": "q"}]}]},
    {"output": [{"type": "function_call", "call_id": "c1", "name": "search", "arguments": '{"q":"x"}'}]},
    [
        {"type": "function_call", "call_id": "c1", "name": "search", "arguments": '{"q":"x"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "found"},
    ],
    {"output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}]},
)
ANTHROPIC = (
    {"system": [{"type": "text", "text": "Be brief."}], "messages": [{"role": "user", "content": "q"}]},
    {"role": "assistant", "type": "message", "content": [{"type": "tool_use", "id": "c1", "name": "search", "input": {"q": "x"}}]},
    [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "search", "input": {"q": "x"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "found"}]}]},
    ],
    {"role": "assistant", "type": "message", "content": [{"type": "text", "text": "a"}], "usage": {"input_tokens": 1}},
)
GEMINI = (
    {"systemInstruction": {"parts": [{"text": "Be brief."}]}, "contents": [{"role": "user", "parts": [{"text": "q"}]}]},
    {"candidates": [{"content": {"role": "model", "parts": [{"functionCall": {"id": "c1", "name": "search", "args": {"q": "x"}}}]}}]},
    [
        {"role": "model", "parts": [{"functionCall": {"id": "c1", "name": "search", "args": {"q": "x"}}}]},
        {"role": "user", "parts": [{"functionResponse": {"id": "c1", "name": "search", "response": "found"}}]},
    ],
    {"candidates": [{"content": {"role": "model", "parts": [{"text": "a"}]}}]},
)
OLLAMA = (
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "q"}]},
    {"message": {"role": "assistant", "content": "", "tool_calls": [CALL]}, "done": True},
    [{"role": "assistant", "content": "", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c1", "content": "found"}],
    {"message": {"role": "assistant", "content": "a"}},
)
CONVENTIONS = (
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "parts": [{"type": "text", "content": "q"}]}]},
    {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "search", "arguments": {"q": "x"}}]},
    [
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "search", "arguments": {"q": "x"}}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "found"}]},
    ],
    {"role": "assistant", "parts": [{"type": "text", "content": "a"}]},
)


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("provider", [OPENAI, RESPONSES, ANTHROPIC, GEMINI, OLLAMA, CONVENTIONS])
def test_providers(provider, pooled):
    """Two calls with a tool between are the same transcript in each provider's form, each message once (S0-13, S0-34)."""
    first, calling, more, last = provider
    [name] = [key for key in first if key in ("messages", "input", "contents")]
    with capture() as recording, optree.session("agent"), optree.turn():
        for request, response in ((first, calling), ({**first, name: [*first[name], *more]}, last)):
            with optree.llm("m") as op:
                rest = {key: value for key, value in request.items() if key != name}
                op.request(messages=request[name], **rest) if pooled else op.request(request)
                op.response(response)
    entries = [event for event in events_of(recording.tree) if isinstance(event, TranscriptEntry)]
    assert [("system", "Be brief."), ("user", "q"), ("assistant", ""), ("tool", "found"), ("assistant", "a")] == [
        (entry.role, text_of(entry.content)) for entry in entries
    ]
    [call] = calls_of(entries[2])
    assert ("c1", "search", {"q": "x"}, "c1") == (call.id, call.name, msgspec.json.decode(call.arguments), entries[3].tool_call_id)
    assert ["system", "heard", "called", "received", "said"] == [kind_of(entry) for entry in entries]


def test_blocks_of_all_kinds():
    """A message with results and more is one entry for each result, and one for the rest; images stay blocks (S0-13)."""
    image = {"type": "image", "source": {"type": "base64", "data": "aGk="}}
    results = [{"type": "tool_result", "tool_use_id": f"c{number}", "content": f"r{number}"} for number in (1, 2)]
    with capture() as recording, optree.session("agent") as session:
        session.message({"role": "user", "content": [*results, {"type": "text", "text": "look"}, image]})
    entries = [event for event in events_of(recording.tree) if isinstance(event, TranscriptEntry)]
    assert [("tool", "r1"), ("tool", "r2"), ("user", [{"type": "text", "text": "look"}, image])] == [
        (one.role, one.content) for one in entries
    ]


def test_thinking_blocks():
    """What a model thought stands apart from what it said (S0-105)."""
    blocks = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "yes"}]
    with capture() as recording, optree.session("agent") as session:
        session.message({"role": "assistant", "content": blocks})
    assert "[Thought]: hm\n[Said]: yes" == SessionViewer(recording.tree).extract_agent_perspective("agent")


def answered(message):
    """Return the entry that an answer of OpenAI's chat is, as it stands in the transcript."""
    with capture() as recording, optree.session("agent"), optree.turn(), optree.llm("m") as op:
        op.response({"choices": [{"message": message}]})
    [entry] = [event for event in events_of(recording.tree) if isinstance(event, TranscriptEntry)]
    return entry


def test_a_refusal_is_what_was_said():
    """A model that refuses says so beside the content; that is its utterance (S0-13)."""
    entry = answered({"role": "assistant", "content": None, "refusal": "I cannot."})
    assert ("I cannot.", True, {}) == (entry.content, is_utterance(entry), entry.more)


def test_a_call_of_a_function():
    """The call and the result of OpenAI's older functions go by the name that they have instead of an id (S0-34)."""
    call = {"role": "assistant", "content": None, "function_call": {"name": "search", "arguments": "{}"}}
    entry = answered(call)
    assert [("search", "search", "{}")] == calls_of(entry)
    [_, result] = [*entries_of(call), *entries_of({"role": "function", "name": "search", "content": "found"})]
    assert ("tool", "search", "found") == (result.role, result.tool_call_id, result.content)


def test_reasoning_of_a_message_without_a_role():
    """What a model thought is kept, also where its message names no role (S0-105)."""
    assert "hm" == thought_of(answered({"content": "yes", "reasoning_content": "hm"}))


REASONED = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
CLOSED = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
SPOKEN = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yes"}]}
CALLED = {"type": "function_call", "call_id": "c1", "name": "search", "arguments": "{}"}


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize(
    ("expected", "output"),
    [
        ("[Said]: yes", [CLOSED, SPOKEN]),
        ("[Thought]: hm\n[Said]: yes", [REASONED, SPOKEN]),
        ("[Thought]: hm\n[Action]: Taking action...", [REASONED, CLOSED, CALLED]),
        ("[Thought]: hm\nhm\n[Said]: yes", [REASONED, REASONED, SPOKEN]),
        ("[Thought]: hm", [REASONED]),
        ("", [CLOSED]),
    ],
)
def test_reasoning_is_no_message_of_its_own(expected, output, pooled):
    """Reasoning among a response's items belongs to what follows it; alone it is a thought, and closed it is nothing (S0-105)."""
    question, more = {"role": "user", "content": "q"}, {"role": "user", "content": "and?"}
    with capture() as recording, optree.session("agent"), optree.turn():
        for sent, got in (([question], output), ([question, *output, more], [SPOKEN])):
            with optree.llm("m") as op:
                op.request(input=sent) if not pooled else op.request(messages=sent)
                op.response({"output": got})
    viewer = SessionViewer(recording.tree)
    told = ["[Heard]: q", *filter(None, [expected]), "[Heard]: and?", "[Said]: yes"]
    assert "\n".join(told) == viewer.extract_agent_perspective("agent")
    rows = [row for view in ("transcripts", "timeline") for section in sections(view, viewer, Ask()) for row in section.rows]
    assert [] == [row for row in rows if row.what != "created" and not row.text]
    assert [REASONED] != output or [("thought", "hm")] * 2 == [(row.what, row.text) for row in rows if row.what == "thought"]


def test_a_summary_of_reasoning():
    """Summaries, as OpenAI's responses have them, are thoughts in words (S0-105)."""
    [entry] = answers_of({"output": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}]})
    assert ("hm", "") == (thought_of(entry), text_of(entry.content))


@pytest.mark.parametrize(
    ("expected", "members"),
    [
        (True, {"role": "assistant", "content": "Hello"}),
        (True, {"role": "assistant", "content": "Hello", "tool_calls": []}),
        (False, {"role": "assistant", "content": "Hello", "tool_calls": [CALL]}),
        (False, {"role": "assistant", "content": [{"type": "text", "text": "Hello"}, {"type": "tool_use", "id": "c", "name": "t"}]}),
        (False, {"role": "assistant", "content": None}),
        (False, {"role": "user", "content": "Hello"}),
    ],
)
def test_utterances(expected, members):
    """An utterance is an assistant's entry with content and without tool calls, and nothing else is (S0-31, S1-15)."""
    assert expected == is_utterance(TranscriptEntry(message_id="m", **members))


@settings(max_examples=60)
@given(st.lists(st.tuples(values, values), max_size=3), st.lists(values, max_size=3))
def test_odd_payloads(calls, messages):
    """Whatever a program gives as requests, answers and messages is read without an error."""
    with capture() as recording, optree.session("agent"), optree.turn():
        for sent, got in calls:
            with optree.llm("m") as op:
                op.request(messages=sent)
                op.response(got)
            with optree.llm("m") as op:
                op.request({"messages": sent, "system": got, "input": sent})
                op.response({"choices": sent, "message": got, "output": sent})
    SessionViewer(recording.tree).extract_agent_perspective("agent")
    with capture() as recording, optree.session("agent") as session:
        for message in messages:
            session.message(message)
            session.message({"role": message, "content": message, "tool_calls": message, "tool_call_id": message}, message_id="m")
    SessionViewer(recording.tree).extract_agent_perspective("agent")


def test_damaged_payloads():
    """Payloads, messages and attributes that are no JSON any more, and links in circles, take nothing else with them."""
    with capture() as recording, optree.session("agent"), optree.turn():
        for number in (1, 2):
            with optree.llm("m") as op:
                op.request(messages=[{"role": "user", "content": f"q{number}"}])
                op.response(f"a{number}")
    tree = recording.tree
    first, second = tree.session.turns[0].ops
    second.request = Payload(msgspec.Raw(b'{"messages": {"$history": '))
    first.response = Payload(msgspec.Raw(b"{"))
    tree.session.attributes_json = msgspec.Raw(b"[")
    found = [event.content for event in events_of(tree) if isinstance(event, TranscriptEntry)]
    assert ["q1", "a2"] == found
    [head] = [link for link, (previous, _) in tree.pool.links.items() if previous == ""][:1]
    tree.pool.links[head] = (head, tree.pool.links[head][1])
    second.request = Payload(msgspec.Raw(b'{"messages": {"$history": "gone", "count": 3}}'))
    assert ["q1", "a2"] == [event.content for event in events_of(tree) if isinstance(event, TranscriptEntry)]
    tree.session.messages.append(Message(0.0, "user", msgspec.Raw(b"{")))
    assert events_of(tree)


def sdk(value):
    """Return a value as the original ai-agent keeps what its SDK was given and gave."""
    return {"format": "sdk", "encoding": "base64", "value": b64encode(json.dumps(value).encode()).decode()}


def saved(tmp_path, request, response, told=(), *, twice=False):
    """Return the views of a file of the original's with one model call."""
    op = {"opId": "o", "kind": "llm", "startedAt": 1, "endedAt": 2, "status": "ok", "attributes": {"provider": "p", "model": "m"}}
    op |= {"request": {"kind": "llm", "payload": request}, "response": {"payload": response}}
    turn = {"id": "t", "index": 1, "startedAt": 1, "endedAt": 2, "ops": [op], "attributes": dict(told)}
    again = [{**turn, "id": "u", "index": 2, "ops": [{**op, "opId": "p"}]}] if twice else []
    tree = {"id": "s", "agentId": "agent", "startedAt": 1, "endedAt": 2, "success": True, "turns": [turn, *again]}
    path = tmp_path / "original.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"version": 1, "reason": "final", "opTree": tree}).encode()))
    return SessionViewer(load(path))


def test_a_turns_prompts_stand_in_for_a_request_of_figures_alone(tmp_path):
    """Where the original's request tells only how much was sent, what the user asked is what its turn says; nothing stands there twice."""
    turn = {"prompts": {"system": "Be brief.", "user": "Weather?"}, "assistant": {"content": "It rains."}}
    asked = "[Heard]: Weather?\n[Said]: It rains."
    assert asked == saved(tmp_path, COUNTS, {"textPreview": "It rains."}, turn).extract_agent_perspective("agent")
    assert asked == saved(tmp_path, COUNTS, {"sdk": {"encoding": "base64", "value": "/w=="}}, turn).extract_agent_perspective("agent")
    twice = saved(tmp_path, COUNTS, {"textPreview": "It rains."}, turn, twice=True)  # each turn tells its prompts again
    assert f"{asked}\n[Said]: It rains." == twice.extract_agent_perspective("agent")
    sent = {**COUNTS, "sdk": sdk({"messages": [{"role": "user", "content": "Weather?"}]})}
    assert asked == saved(tmp_path, sent, {"textPreview": "It rains."}, turn).extract_agent_perspective("agent")


COUNTS = {"messages": 3, "bytes": 4711, "isFinalTurn": False}


@pytest.mark.parametrize(
    ("expected", "sent", "got"),
    [
        ("", COUNTS, None),
        ("[Said]: It rains.", COUNTS, {"textPreview": "It rains."}),
        (
            "[Heard]: Weather?\n[Action]: Taking action...\n[Received]: rain\n[Said]: It rains.",
            {
                **COUNTS,
                "sdk": sdk(
                    {
                        "messages": [
                            {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
                            {"role": "assistant", "content": [{"type": "tool-call", "toolCallId": "c", "toolName": "look", "input": {}}]},
                            {
                                "role": "tool",
                                "content": [
                                    {
                                        "type": "tool-result",
                                        "toolCallId": "c",
                                        "toolName": "look",
                                        "output": {"type": "text", "value": "rain"},
                                    }
                                ],
                            },
                        ]
                    }
                ),
            },
            {"textPreview": "It r", "sdk": sdk({"response": {"messages": [{"role": "assistant", "content": "It rains."}]}})},
        ),
        ("", COUNTS, {"sdk": {"format": "sdk", "encoding": "base64", "value": "/w=="}}),
    ],
)
def test_files_of_the_original_say_what_was_said(tmp_path, expected, sent, got):
    """A count of messages is no message, and what the SDK was given is decoded, so that no word is invented."""
    viewer = saved(tmp_path, sent, got)
    assert expected == viewer.extract_agent_perspective("agent")
