"""A tree that has everything in it: each kind of op, each status, content of each shape, a sub-agent, a resumed round."""

from optree._builder import SessionTreeBuilder
from optree.testing import Ticking

TXN = "mg1x2-abcdefgh"
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "search", "description": "Searches.", "parameters": SCHEMA}}


def tree_of_all() -> SessionTreeBuilder:
    """Record it, with a clock that ticks 1 ms a reading."""
    builder = SessionTreeBuilder(
        "planner", txn=TXN, now=Ticking(), attributes={"ingress": {"source": "cli"}, "user.id": "u1", "api_key": "hush", "team": "blue"}
    )
    builder.set_title("Plans", status="planning")
    turn = builder.begin_turn(user="Weather in Paris?", system="Be brief.")
    _model_call(builder)
    _tools(builder)
    op = builder.begin_op("session", "reader")
    child = builder.attach_child_session(op, "reader")
    inner = child.begin_turn(user="Read it.")
    call = child.begin_op("llm", "anthropic:claude", turn=inner, attributes={"operation": "generate_content"})
    call.account(input_tokens=5, output_tokens=7, cost_usd=0.5)
    call.end("failed", "TimeoutError: no answer")
    inner.end()
    child.end_session("failed", "TimeoutError: no answer")
    op.end("failed", "TimeoutError: no answer")
    turn.assistant("Rain.")
    turn.end()
    builder.begin_turn(attributes={"phase": "late"}).end("cancelled", "KeyboardInterrupt")
    builder.end_session(final_report={"answer": "Rain."})
    builder.core.stream.flush()
    return builder


def _model_call(builder: SessionTreeBuilder) -> None:
    op = builder.begin_op(
        "llm", "openai:gpt-4o", attributes={"provider": "openai", "model": "gpt-4o", "base_url": "https://api.openai.com/v1"}
    )
    op.request(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather in Paris?"}],
        temperature=0, max_tokens=100, top_p=0.9, stop=["END"], seed=7, n=1, stream=True, reasoning_effort="low", tools=[TOOL],
    )  # fmt: skip
    op.think("rain ")
    op.think("or sun?")
    op.log("asked", direction="request", details={"url": "https://api.openai.com/v1"})
    op.log("slow", "WRN")
    op.account(input_tokens=10, status="failed", cost_usd=0.25, error="429")
    op.account(
        input_tokens=912, output_tokens=60, cache_read_tokens=100, cache_write_tokens=12, cost_usd=0.5,
        actual_model="gpt-4o-2024-08-06", actual_provider="azure", upstream_inference_cost_usd=0.1,
    )  # fmt: skip
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q":"Paris"}'}}
    op.response(
        {
            "id": "r1",
            "model": "gpt-4o-x",
            "choices": [{"message": {"role": "assistant", "content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}],
            "usage": {"completion_tokens_details": {"reasoning_tokens": 20}},
        }
    )
    op.end(time_to_first_chunk=0.25)


def _tools(builder: SessionTreeBuilder) -> None:
    outer = builder.begin_op("tool", "search", attributes={"tool_call_id": "c1", "description": "Searches."})
    outer.request(q="Paris")
    inner = builder.begin_op("tool", "web:fetch", parent=outer, attributes={"provider": "web", "deep": {"a": 1}})
    inner.account(mcp_server="web-mcp", characters_in=3, characters_out=4)
    inner.end("failed", "boom")
    outer.response("rain")
    outer.end()
    builder.begin_op("system", "compact").end("cancelled")
