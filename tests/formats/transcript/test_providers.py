"""One call in each provider's form, and the messages of its transcript as they were written down by hand."""

import json

import pytest

from optree._builder import SessionTreeBuilder
from optree._values import decode
from optree.testing import Ticking
from optree_formats.transcript import FORMAT

ARGUMENTS = '{"path":"a"}'
OPENAI = (
    {
        "messages": [
            {"role": "system", "content": "Be brief"},
            {"role": "user", "content": "Read it"},
            {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "read", "arguments": ARGUMENTS}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "package a"},
        ]
    },
    {
        "choices": [
            {"message": {"role": "assistant", "content": "Look", "tool_calls": [
                {"id": "c2", "type": "function", "function": {"name": "vet", "arguments": ARGUMENTS}}]}}
        ]
    },
)  # fmt: skip
RESPONSES = (
    {
        "instructions": "Be brief",
        "input": [
            {"role": "user", "content": "Read it"},
            {"type": "function_call", "call_id": "c1", "name": "read", "arguments": ARGUMENTS},
            {"type": "function_call_output", "call_id": "c1", "output": "package a"},
        ],
    },
    {
        "output": [
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Look"}]},
            {"type": "function_call", "call_id": "c2", "name": "vet", "arguments": ARGUMENTS},
        ]
    },
)
ANTHROPIC = (
    {
        "system": "Be brief",
        "messages": [
            {"role": "user", "content": "Read it"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "a"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "package a"}]},
        ],
    },
    {
        "role": "assistant",
        "content": [{"type": "text", "text": "Look"}, {"type": "tool_use", "id": "c2", "name": "vet", "input": {"path": "a"}}],
    },
)
GEMINI = (
    {
        "systemInstruction": {"parts": [{"text": "Be brief"}]},
        "contents": [
            {"role": "user", "parts": [{"text": "Read it"}]},
            {"role": "model", "parts": [{"functionCall": {"id": "c1", "name": "read", "args": {"path": "a"}}}]},
            {"role": "user", "parts": [{"functionResponse": {"id": "c1", "name": "read", "response": "package a"}}]},
        ],
    },
    {"candidates": [{"content": {"role": "model", "parts": [
        {"text": "Look"}, {"functionCall": {"id": "c2", "name": "vet", "args": {"path": "a"}}}]}}]},
)  # fmt: skip
SENT = [
    {"type": "tool_result", "fidelity": "router", "tool_id": "c1", "tool_content": "package a"},
    {"type": "text", "fidelity": "router", "text": "Be brief"},
]
ANSWERED = [
    {"type": "text", "fidelity": "agent_emitted", "text": "Look"},
    {"type": "tool_use", "fidelity": "agent_emitted", "tool_name": "vet", "tool_id": "c2", "tool_input": {"path": "a"}},
]


@pytest.mark.parametrize("call", [OPENAI, RESPONSES, ANTHROPIC, GEMINI], ids=["openai", "responses", "anthropic", "gemini"])
def test_a_call_of_each_provider(tmp_path, call):
    """A call's transcript has what is new in its request and what it answered, alike for each provider; both come back (S2-26, S2-27)."""
    request, response = call
    root = SessionTreeBuilder("a", txn="t", now=Ticking())
    root.begin_turn()
    op = root.begin_op("llm", "p:m")
    root.set_request(op, request)
    root.set_response(op, response)
    op.end()
    [path] = FORMAT.write(root.tree, tmp_path / "x.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    said = {line["type"]: line["payload"]["blocks"] for line in lines if line["type"].startswith("message.")}
    assert {"message.user": SENT, "message.assistant": ANSWERED} == said
    back = FORMAT.read(path, strict=True).trees[0].session.turns[0].ops[0]
    assert {
        "messages": [{"role": "tool", "tool_call_id": "c1", "content": "package a"}, {"role": "system", "content": "Be brief"}]
    } == decode(back.request.payload)
    assert response == decode(back.response.payload)
