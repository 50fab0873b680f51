"""Calls of models on LlamaIndex: each is recorded once, with hooks that the program does not notice and that can be taken out."""

import asyncio
import functools
import gc
import json
from importlib.util import find_spec

import pytest

if find_spec("llama_index") is None:
    pytest.skip("llama-index-core is tried in an environment of its own: make test-frameworks", allow_module_level=True)

import openai
from llama_index.core.agent.workflow import ToolCallResult
from llama_index.core.agent.workflow.base_agent import BaseWorkflowAgent
from llama_index.core.base.llms.types import DocumentBlock, ImageBlock, TextBlock, ThinkingBlock
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index.core.llms import ChatMessage, CompletionResponse, MockLLM
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.tools import AsyncBaseTool, ToolMetadata, ToolOutput
from llama_index.core.workflow import Context
from llama_index_instrumentation.dispatcher import Dispatcher
from pydantic import BaseModel

import optree
from optree._capture import instrument, uninstrument
from optree._nodes import REPLAY_OF, Tokens
from optree._tree import walk_ops
from optree._values import decode
from optree.testing import capture, replay
from tests.capture.conftest import KEY, outcome, stay_what_they_are, survives, with_hooks
from tests.capture.frameworks.llamas import (  # noqa: F401 - model_of_llama_index is a fixture
    MARKS,
    REFUSED,
    TOOL_EVENTS,
    Own,
    ask,
    asks_for,
    call,
    engine_of,
    forecaster,
    model_of_llama_index,
    scripted,
    served_by,
)
from tests.capture.provider import Reply
from tests.capture.recordings import calls_of, ops_of
from tests.capture.sdk_calls import CHAT, CHAT_EVENTS
from tests.capture.tools import broken, weather

pytestmark = MARKS
METHODS = ["chat", "stream_chat", "achat", "astream_chat", "complete", "stream_complete", "acomplete", "astream_complete"]


def say(model, method, asked="Weather?"):
    """Ask a model in one of the ways; return the text of the answer."""
    sent = asked if "complete" in method else [ChatMessage(content=asked)]

    async def asking():
        found = await getattr(model, method)(sent)
        return [one async for one in found][-1] if "stream" in method else found

    found = asyncio.run(asking()) if method[0] == "a" else getattr(model, method)(sent)
    last = found if method[0] == "a" or "stream" not in method else list(found)[-1]
    return last.text if "complete" in method else last.message.content


@pytest.mark.captured(
    "llama-index-core", "LLM, by OpenAI's client", "plain", "streamed", added="one line", checks=("calls", "answers", "tokens")
)
@pytest.mark.parametrize("method", METHODS)
def test_models_over_http(recording, provider, model, method):
    """A model of LlamaIndex's that calls over HTTP is recorded on the wire, once, in all ways to ask it."""
    provider.says(CHAT_EVENTS if "stream" in method else CHAT)
    with optree.session("lead") as session, optree.turn(user="Weather?"):
        assert "It rains" == say(model, method)
    [op] = ops_of(recording)
    assert ("llm", "openai-compatible:gpt-5", "ok", 1, 8) == (
        op.kind, op.name, op.status, session.totals.llm_requests, session.totals.input_tokens,
    )  # fmt: skip
    assert b"It rains" in bytes(op.response.payload)


@pytest.mark.captured(
    "llama-index-core", "models of the program's own", "plain", "streamed", added="one line", checks=("calls", "answers", "tokens")
)
@pytest.mark.parametrize("method", METHODS)
def test_a_model_that_calls_nobody(recording, method):
    """A model of the program's own that calls nobody has one op of what is known, though its methods call each other."""
    with optree.session("lead") as session, optree.turn(user="Weather?"):
        assert "It rains" == say(Own(), method)
    [op] = ops_of(recording)
    assert ("llm", "own", None, 1, 3) == (
        op.kind, op.name, op.attributes.get("provider"), session.totals.llm_requests, session.totals.input_tokens,
    )  # fmt: skip
    asked = recording.tree.pool.resolve(decode(op.request.payload))
    assert {"messages": [{"role": "user", "content": "Weather?"}]} == asked
    assert {"role": "assistant", "content": "It rains"} == decode(op.response.payload)["choices"][0]["message"]


class Beside(Own):
    """A model that tells its tokens beside the answer."""

    @llm_completion_callback()
    def complete(self, prompt, formatted=False, **_more):  # noqa: ARG002, FBT002 - as LlamaIndex calls it
        """Say it."""
        told = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "tries": 7}
        return CompletionResponse(text=self.says, additional_kwargs=told)

    @llm_completion_callback()
    def stream_complete(self, prompt, formatted=False, **_more):  # noqa: FBT002 - as above
        """Say it at once."""
        yield self.complete(prompt, formatted)


@pytest.mark.parametrize("method", METHODS)
def test_tokens_beside_the_answer(recording, method):
    """Tokens in the `additional_kwargs` of a response, which LlamaIndex makes those of a chat's message, are those of the call."""
    with optree.session("lead"), optree.turn(user="Weather?"):
        assert "It rains" == say(Beside(), method)
    assert [Tokens(3, 2, 0, 0, 5)] == [entry.tokens for op in calls_of(recording) for entry in op.accounting]


def test_what_an_agent_asks_a_model(recording):
    """Messages, calls of tools and their results are those that the model got."""
    ask(forecaster(scripted(call("weather", city="Athens"), "It rains"), weather))
    first, second = calls_of(recording)
    assert "MockFunctionCallingLLM" == first.name
    asked = recording.tree.pool.resolve(decode(second.request.payload))
    assert ["system", "user", "assistant", "tool"] == [message["role"] for message in asked["messages"]]
    [wanted] = decode(first.response.payload)["choices"][0]["message"]["tool_calls"]
    assert ("call-1", {"name": "weather", "arguments": '{"city":"Athens"}'}) == (wanted["id"], wanted["function"])
    assert ("call-1", "rain in Athens") == (asked["messages"][3]["tool_call_id"], asked["messages"][3]["content"])
    assert [wanted] == asked["messages"][2]["tool_calls"]
    assert "weather" == decode(first.request.payload)["tools"][0]["function"]["name"]


def test_parts_that_are_no_text(recording, tmp_path):
    """Of an image or a file in a message it is recorded that it is there, and where it is from; a thought with its text."""
    (tmp_path / "rain.pdf").write_bytes(b"%PDF")
    parts = [
        TextBlock(text="What is it?"),
        ImageBlock(url="https://example.com/rain.png"),
        DocumentBlock(path=tmp_path / "rain.pdf", title="Rain", data=b"%PDF"),
        ThinkingBlock(content="hm"),
    ]
    with optree.session("lead"):
        MockLLM(is_chat_model=True).chat([ChatMessage(role="user", blocks=parts)])
        MockLLM(is_chat_model=True).chat([ChatMessage(role="user", blocks=parts[1:2])])
    first, second = [recording.tree.pool.resolve(decode(op.request.payload))["messages"][0] for op in calls_of(recording)]
    image = {"type": "image", "url": "https://example.com/rain.png"}
    assert [
        {"type": "text", "text": "What is it?"}, image, {"type": "document", "path": str(tmp_path / "rain.pdf"), "title": "Rain"},
        {"type": "thinking", "thinking": "hm"},
    ] == first["content"]  # fmt: skip
    assert {"role": "user", "content": [image]} == second


def test_messages_as_older_models_have_them(recording):
    """Calls of tools, a name and the call that a result is of, beside a message's text, are recorded; other members are not."""
    asked = [{"id": "call-1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]
    history = [
        ChatMessage(role="assistant", content="", additional_kwargs={"tool_calls": asked, "other": 1}),
        ChatMessage(role="tool", content="rain", additional_kwargs={"tool_call_id": "call-1", "name": "weather"}),
    ]
    with optree.session("lead"):
        MockLLM(is_chat_model=True).chat(history)
    assert [
        {"role": "assistant", "content": "", "tool_calls": asked},
        {"role": "tool", "content": "rain", "tool_call_id": "call-1", "name": "weather"},
    ] == recording.tree.pool.resolve(decode(calls_of(recording)[0].request.payload))["messages"]


class Tuned(Own):
    """A model that has parameters, thinks, and tells its tokens as *told* says."""

    temperature: float = 0.5
    top_p: float = 0.9
    max_tokens: int = 50
    seed: int = 7
    stop: list = ["x"]  # noqa: RUF012 - pydantic copies it
    told: object = None

    @llm_completion_callback()
    def complete(self, prompt, formatted=False, **_more):  # noqa: ARG002, FBT002 - as LlamaIndex calls it
        """Say it."""
        return CompletionResponse(text=self.says, raw=self.told)

    @llm_completion_callback()
    def stream_complete(self, prompt, formatted=False, **_more):  # noqa: ARG002, FBT002 - as above
        """Think, and say it."""

        def said():
            yield CompletionResponse(text="", delta="", additional_kwargs={"thinking_delta": "hm"})
            yield CompletionResponse(text=self.says, delta=self.says, raw=self.told)

        return said()


class Spent(BaseModel):
    """Tokens as an object of a client's."""

    usage: dict


@pytest.mark.parametrize(
    "told",
    [
        {"usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}},
        Spent(usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}),
        {"usage_metadata": {"prompt_token_count": 3, "candidates_token_count": 2, "total_token_count": 5}},
    ],
    ids=["plain", "object", "Gemini's"],
)
def test_parameters_and_tokens(recording, told):
    """Parameters of a model of the program's own are in the request, and its tokens are read from what the provider gave."""
    with optree.session("lead"):
        Tuned(told=told).complete("Weather?", formatted=True, user="somebody")
    [op] = calls_of(recording)
    asked = recording.tree.pool.resolve(decode(op.request.payload))
    user = [{"role": "user", "content": "Weather?"}]
    assert {"temperature": 0.5, "top_p": 0.9, "max_tokens": 50, "seed": 7, "stop": ["x"], "user": "somebody", "messages": user} == asked
    assert (3, 2) == (op.accounting[0].tokens.input_tokens, op.accounting[0].tokens.output_tokens)


def test_thoughts(recording):
    """What a model of the program's own thinks while it answers is recorded apart from its answer."""
    with optree.session("lead"):
        assert ["", "It rains"] == [piece.delta for piece in Tuned().stream_complete("Weather?")]
    [op] = calls_of(recording)
    assert (["hm"], "It rains") == (
        [chunk.text for chunk in op.reasoning.chunks], decode(op.response.payload)["choices"][0]["message"]["content"],
    )  # fmt: skip


class Asking(Own):
    """A model that asks another one."""

    other: object = None

    @llm_completion_callback()
    def complete(self, prompt, formatted=False, **_more):  # noqa: ARG002, FBT002 - as LlamaIndex calls it
        """Ask it."""
        return CompletionResponse(text=self.other.complete(prompt).text)


class Undecorated(Own):
    """A model whose methods emit no events."""

    def complete(self, prompt, formatted=False, **_more):  # noqa: ARG002, FBT002 - as above
        """Say something."""
        return CompletionResponse(text="It rains")


def test_a_model_that_asks_another(recording, provider, model):
    """A model that asks another one is no second call, one that emits no events is one."""
    provider.says(CHAT)
    with optree.session("lead") as session, optree.turn(user="Weather?"):
        assert "It rains" == Asking(other=model).complete("Weather?").text
        assert "It rains" == Asking(other=Own()).complete("Weather?").text
        assert "It rains" == Undecorated().complete("Weather?").text
    assert ["openai-compatible:gpt-5", "own", "own"] == [op.name for op in calls_of(recording)]
    assert (3, 11) == (session.totals.llm_requests, session.totals.input_tokens)


def test_a_model_in_an_op_of_the_programs(recording):
    """In an open llm op of the program's, such a call is that op, and counts once."""
    with optree.session("lead") as session, optree.turn(user="Weather?"), optree.llm("planner"):
        Own().complete("Weather?")
    [op] = ops_of(recording)
    assert ("planner", 1, 3) == (op.name, session.totals.llm_requests, session.totals.input_tokens)
    assert b"It rains" in bytes(op.response.payload)


@pytest.mark.parametrize("at", [0, 1], ids=["ahead of the first", "between"])
def test_a_call_between_pieces(recording, provider, at):
    """What the program asks while it has a stream is a call of its own, and none of the stream's."""
    provider.says(CHAT)
    client = openai.OpenAI(base_url=f"{provider.url}/v1", api_key="none", max_retries=0)
    with optree.session("lead") as session, optree.turn(user="Go"):
        stream = Own().stream_complete("Weather?")
        said = [next(stream).delta for _ in range(at)]
        client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "And now?"}])
        assert "It rains" == "".join(said + [piece.delta for piece in stream])
    [own] = ops_of(recording, "own")
    assert {"own", "openai-compatible:gpt-5"} == {op.name for op in calls_of(recording)}
    assert (2, b"It rains" in bytes(own.response.payload), 3) == (
        session.totals.llm_requests, True, own.accounting[0].tokens.input_tokens,
    )  # fmt: skip


def test_a_model_outside_of_all(recording):
    """A model that is asked outside of all sessions is in one of the program's own; its stream is on disk while it comes."""
    stream = Own().stream_complete("Weather?")
    next(stream)
    assert optree.flush()
    [op] = calls_of(recording)
    assert (None, True) == (op.status, op.response.partial)
    del stream
    gc.collect()
    assert "cancelled" == op.status
    never = Own().stream_complete("Weather?")
    del never
    gc.collect()
    assert 1 == len(calls_of(recording))


class Nameless(Own):
    """A model whose metadata raises, as OpenAI's does for names that it does not know."""

    @property
    def metadata(self):
        """Raise."""
        raise ValueError("unknown model")


def test_a_model_that_does_not_know_its_name(recording):
    """The program gets what that raises, and nothing is said of a fault of ours."""
    failures = optree.health()["failures"]
    with optree.session("agent"), optree.turn(), pytest.raises(ValueError, match="unknown model"):
        Nameless().complete("Weather?")
    assert failures == optree.health()["failures"]
    assert recording.sessions


def test_a_model_that_raises(recording):
    """A model of the program's own that raises is a failed op, with the exception's class."""
    with optree.session("lead"), pytest.raises(TimeoutError, match="slow"):
        scripted(TimeoutError("slow")).chat([ChatMessage(content="Weather?")])
    assert [("failed", "TimeoutError: slow", "timeout")] == [(op.status, op.error, op.attributes["error.type"]) for op in ops_of(recording)]


def test_a_stream_that_is_read_elsewhere(recording, provider, model):
    """The stream of a model over HTTP that a strange context reads is one call, with its tokens once."""
    provider.says(CHAT_EVENTS)

    async def asking():
        stream = await asyncio.create_task(model.astream_chat([ChatMessage(content="Weather?")]))
        return [piece async for piece in stream][-1].message.content

    with optree.session("lead") as session, optree.turn(user="Weather?"):
        assert "It rains" == asyncio.run(asking())
    assert (1, 8, 1) == (session.totals.llm_requests, session.totals.input_tokens, len(ops_of(recording)))


CASES = {
    "plain": [CHAT_EVENTS],
    "tools": [TOOL_EVENTS, CHAT_EVENTS],
    "refused": [REFUSED],
    "nonsense": [Reply(b"{")],
    "broken off": [Reply(b"{", short=9)],
}


class Spans(BaseSpanHandler):
    """A handler of the program's own, for spans."""

    seen: list = []  # noqa: RUF012 - pydantic copies it

    def new_span(self, id_, parent_span_id=None, **_more):
        """Note that one begins."""
        self.seen.append(("begin", id_[:-37], parent_span_id and parent_span_id[:-37]))

    def prepare_to_exit_span(self, id_, result=None, **_more):
        """Note what one comes to."""
        self.seen.append(("exit", id_[:-37], type(result).__name__))

    def prepare_to_drop_span(self, id_, err=None, **_more):
        """Note what one is left by."""
        self.seen.append(("drop", id_[:-37], type(err).__name__))


class Events(BaseEventHandler):
    """A handler of the program's own, for events."""

    seen: list = []  # noqa: RUF012 - as above

    def handle(self, event, **_more):
        """Note it."""
        self.seen.append(type(event).__name__)


@pytest.fixture
def handlers():
    """Return handlers of the program's own, which hear of all."""
    root, found = get_dispatcher(), (Spans(), Events())
    before = list(root.span_handlers), list(root.event_handlers)
    root.add_span_handler(found[0])
    root.add_event_handler(found[1])
    yield found
    root.span_handlers, root.event_handlers = before


@pytest.mark.parametrize("kind", ["http", "own"])
def test_credentials(saved, provider, kind):
    """A credential that its form tells, or the name of an argument, is not saved; model and tool get it as it is."""
    got = []

    def login(city: str, api_key: str) -> str:
        """Log in."""
        got.append(api_key)
        return f"rain in {city}"

    asked = {"city": "Athens", "api_key": "hunter2"}
    provider.says(asks_for(("login", json.dumps(asked))), CHAT_EVENTS)
    heard = []

    def answers(messages):
        heard.extend(messages)
        return ChatMessage(role="assistant", content="It rains")

    model = served_by(provider) if kind == "http" else scripted(call("login", **asked), answers)
    assert "It rains" == ask(forecaster(model, login), f"Weather? {KEY}")
    told, sent = saved(), str(provider.requests if kind == "http" else heard)
    assert (["hunter2"], True, True) == (got, KEY in sent, "hunter2" in sent)
    assert (True, False, False) == ("Athens" in told, KEY in told, "hunter2" in told)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tool", [weather, broken], ids=["weather", "broken"])
def test_the_program_sees_no_difference(provider, handlers, case, tool):
    """What a program gets, or is raised, what the provider is sent and what its own handlers hear, is the same with hooks and without."""

    def result():
        provider.requests.clear()
        provider.says(*CASES[case])
        for handler in handlers:
            handler.seen.clear()
        found = outcome(lambda: ask(forecaster(served_by(provider), tool)))
        return found, [path for path, _ in provider.requests], sorted(map(str, handlers[0].seen)), sorted(handlers[1].seen)

    without = result()
    assert without[2]
    assert without == with_hooks(result)


@pytest.mark.parametrize("streaming", [False, True])
def test_an_engine_sees_no_difference(provider, handlers, streaming):
    """Nor does one on a query engine."""
    engine = engine_of(served_by(provider), streaming=streaming)

    def result():
        for handler in handlers:
            handler.seen.clear()
        provider.says(CHAT_EVENTS if streaming else CHAT)
        answer = engine.query("Weather?")
        pieces = list(answer.response_gen) if streaming else str(answer)
        return type(answer), pieces, list(handlers[0].seen), list(handlers[1].seen)

    assert result() == with_hooks(result)


def test_a_fault_of_ours_is_none_of_the_programs(recording, provider, model, monkeypatch):
    """A hook that raises leaves the run as it is, and calls are recorded."""
    provider.says(TOOL_EVENTS, CHAT_EVENTS)
    survives("optree._capture.frameworks.llama_index._SPANS.around", recording, monkeypatch, lambda: ask(forecaster(model, weather)))


def test_functions_stay_what_they_are():
    """What stands in the place of a function is of its kind: plain, a coroutine function, a generator function."""
    stay_what_they_are("llama-index-core")


def test_uninstrumented_nothing_is_recorded(provider, model):
    """Once the hooks are taken out nothing is recorded; put in again, each call is recorded once."""
    owners = [(Dispatcher, "span_enter"), (Dispatcher, "span_exit"), (Dispatcher, "event"), (BaseWorkflowAgent, "_call_tool")]
    before = [vars(owner)[name] for owner, name in owners]
    provider.says(CHAT_EVENTS)
    instrument()
    assert [False] * len(owners) == [vars(owner)[name] is one for (owner, name), one in zip(owners, before, strict=True)]
    uninstrument()
    assert before == [vars(owner)[name] for owner, name in owners]
    with capture() as recording:
        ask(forecaster(model))
        ask(forecaster(scripted("It rains")))
        assert not recording.records
        instrument()
        instrument()
        ask(forecaster(model))
        ask(forecaster(scripted("It rains")))
        uninstrument()
    assert [1, 1] == [one.tree.session.totals.llm_requests for one in recording.sessions]


@pytest.mark.parametrize(("error", "status"), [(None, "ok"), (ConnectionError("away"), "failed")], ids=["ok", "failed"])
def test_a_run_that_is_under_way_is_ended(recording, error, status):
    """A run that is under way when the hooks are taken out ends when, and as, it does."""

    def leave(_messages):
        uninstrument()
        if error is not None:
            raise error
        return ChatMessage(role="assistant", content="It rains")

    assert ("It rains" if error is None else (ConnectionError, "away")) == outcome(lambda: ask(forecaster(scripted(leave))))
    assert (status, error and "ConnectionError: away", ["cancelled"], None) == (
        recording.tree.session.status, recording.tree.session.error, [op.status for op in ops_of(recording)], optree.current_session(),
    )  # fmt: skip


PROGRAM = """
import asyncio, os, signal, sys
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai import OpenAI

def weather(city: str) -> str:
    "Tell the weather."
    import optree
    print(optree.flush(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    model = OpenAI(model="gpt-5", api_base=sys.argv[1] + "/v1", api_key="none")
    print(await FunctionAgent(tools=[weather], llm=model).run(user_msg="Weather?"))

asyncio.run(main())
"""


@pytest.mark.captured("llama-index-core", "FunctionAgent", "tools", "killed", added="--auto", checks="calls")
def test_a_kill_keeps_the_tree(provider, killed):
    """A program that does not name optree and is killed in a tool leaves the same tree, with what was open not ended."""
    provider.says(TOOL_EVENTS)
    session = killed(PROGRAM)
    assert ("agent", None) == (session.agent_id, session.ended_at)
    ops = {op.name: op for _, _, op in walk_ops(session)}
    assert ({"city": "Athens"}, None) == (decode(ops["weather"].request.payload), ops["weather"].ended_at)
    assert (1, 8) == (session.totals.llm_requests, session.totals.input_tokens)


def not_to_be_run(function):
    """Return the same tool, which may not run."""

    @functools.wraps(function)
    def run(city):
        raise AssertionError(city)

    return run


def outputs_of(agent):
    """Run an agent; return its answer, and what the program is told of its tools."""

    async def asking():
        handler, told = agent.run(user_msg="Weather?"), []
        async for event in handler.stream_events():
            if isinstance(event, ToolCallResult):
                error = event.tool_output.exception
                told.append((event.tool_output.model_dump(), error and (type(error), str(error))))
        return str(await handler), told

    answer, told = asyncio.run(asking())
    assert told
    return answer, told


@pytest.mark.parametrize("asks", [served_by, lambda _provider: scripted(call("weather", city="Athens"), "It rains")], ids=["http", "own"])
@pytest.mark.parametrize("function", [weather, broken], ids=["weather", "broken"])
def test_tools_in_a_replay(provider, asks, function, hooked):  # noqa: ARG001 - the hooks are there
    """In a replay tools get their results, and failures, and do not run."""
    provider.says(TOOL_EVENTS, CHAT_EVENTS)
    with capture() as recorded:
        expected = outputs_of(forecaster(asks(provider), function))
    sent = len(provider.requests)
    with replay(recorded.tree), capture() as again:
        assert expected == outputs_of(forecaster(asks(provider), not_to_be_run(function)))
    assert sent == len(provider.requests)
    before, behind = ops_of(recorded, "weather"), ops_of(again, "weather")
    assert [f"test-1:{op.path}" for op in before] == [op.attributes.get(REPLAY_OF) for op in behind]
    assert [(op.status, op.error, op.response.payload) for op in before] == [(op.status, op.error, op.response.payload) for op in behind]


class Refusing(AsyncBaseTool):
    """A tool that says that it failed, and raises nothing."""

    metadata = ToolMetadata("Logs in", "login", None)

    def __init__(self, ran):
        self.ran = ran

    def call(self, **told):
        """Refuse it."""
        self.ran.append(told)
        return ToolOutput(content="no such city", tool_name="login", raw_input={"args": (), "kwargs": told}, raw_output=None, is_error=True)

    async def acall(self, **told):
        """Refuse it."""
        return self.call(**told)


def test_a_tool_that_refuses_in_a_replay(hooked):  # noqa: ARG001 - as above
    """A tool that says that it failed is failed by what it says, and in a replay says so again, and is not run."""
    ran = []

    def asking():
        answer, [(output, error)] = outputs_of(forecaster(scripted(call("login", city="Athens"), "It rains"), Refusing(ran)))
        return answer, output["blocks"], output["is_error"], error

    with capture() as recorded:
        expected = asking()
    with replay(recorded.tree), capture() as again:
        assert expected == asking()
    assert (1, True, None) == (len(ran), *expected[2:])
    for recording in (recorded, again):
        [op] = ops_of(recording, "login")
        assert ("failed", "tool_error: no such city") == (op.status, op.error)


def test_tools_that_run_again(provider, hooked):  # noqa: ARG001 - as above
    """In a replay a tool that takes the run's context, or gives what is no plain value, runs again; one of plain values does not."""
    ran = []

    async def remember(ctx: Context, city: str) -> str:
        """Keep it in the run's state."""
        ran.append("remember")
        await ctx.store.set("city", city)
        return city

    def scale(city: str) -> set:
        """Give what JSON does not hold."""
        ran.append("scale")
        return {city}

    def table(city: str) -> dict:
        """Give plain values."""
        ran.append("table")
        return {"city": city}

    def asking():
        tools = [call(name, city="Athens") for name in ("remember", "scale", "table")]
        return ask(forecaster(scripted(*tools, "It rains"), remember, scale, table))

    with capture() as recorded:
        asking()
    with replay(recorded.tree), capture() as again:
        asking()
    assert ["remember", "scale", "table", "remember", "scale"] == ran
    assert {"city": "Athens"} == decode(ops_of(again, "table")[0].response.payload)
