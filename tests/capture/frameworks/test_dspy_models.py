"""Calls of models on DSPy: each is recorded once, with hooks that the program does not notice and that can be taken out."""

import asyncio
import dataclasses
import os
import socket
import tempfile
from importlib.util import find_spec

import pytest

if find_spec("dspy") is None:
    pytest.skip("dspy is tried in an environment of its own: make test-frameworks", allow_module_level=True)
os.environ |= {"DSPY_CACHEDIR": os.environ.get("DSPY_CACHEDIR") or tempfile.mkdtemp(), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}

import dspy
from dspy._vendor.lm15.transports import StdlibAsyncTransport, StdlibTransport
from dspy.clients import execution
from dspy.utils import DummyLM
from dspy.utils.callback import BaseCallback
from dspy.utils.parallelizer import ParallelExecutor

import optree
from optree._capture import instrument, uninstrument
from optree._capture.calls.program import program_name
from optree._nodes import REPLAY_OF
from optree._tree import walk_ops
from optree._values import decode
from optree.testing import capture
from tests.capture.conftest import KEY, outcome, stay_what_they_are, survives, twice, with_hooks
from tests.capture.frameworks.documented_dspy import ANSWER, LOOKS, USAGE, says
from tests.capture.frameworks.dspy_programs import (  # noqa: F401 - model_of_dspy is a fixture
    LOOK_AND_TELL,
    MARKS,
    forecaster,
    model_of_dspy,
    scripted,
    served_by,
)
from tests.capture.provider import EVENTS, Reply, events
from tests.capture.recordings import calls_of, ops_of
from tests.capture.tools import broken, weather

pytestmark = MARKS
TELL = dspy.Predict("question -> answer")
TOLD = says(answer="It rains")
REFUSED = Reply({"error": {"message": "no such model", "code": "model_not_found"}}, status=404)
BUSY = Reply({"error": {"message": "busy", "code": "rate_limit_exceeded"}}, status=429, headers={"retry-after": "0"})
_CHUNK = {"id": "chat-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5-2026"}
STREAM = events(
    *({**_CHUNK, "choices": [{"index": 0, "delta": {"content": one}}]} for one in ("[[ ## answer ## ]]\n", "It ", "rains\n\n", "[[ ## ")),
    {**_CHUNK, "choices": [{"index": 0, "delta": {"content": "completed ## ]]"}, "finish_reason": None}]},
    {**_CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    {**_CHUNK, "choices": [], "usage": USAGE},
)
MESSAGE = Reply(
    {
        "id": "msg-1", "type": "message", "role": "assistant", "model": "claude-5", "stop_reason": "end_turn", "stop_sequence": None,
        "content": [{"type": "text", "text": "[[ ## answer ## ]]\nIt rains"}],
        "usage": {"input_tokens": 8, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 0, "output_tokens": 5},
    }
)  # fmt: skip
RESPONSE = Reply(
    {
        "id": "resp-1", "object": "response", "created_at": 1, "model": "gpt-5-2026", "status": "completed",
        "output": [{"type": "message", "id": "m", "role": "assistant", "status": "completed",
                    "content": [{"type": "output_text", "text": "[[ ## answer ## ]]\nIt rains", "annotations": []}]}],
        "usage": {"input_tokens": 12, "output_tokens": 5, "total_tokens": 17, "input_tokens_details": {"cached_tokens": 4}},
    }
)  # fmt: skip


def ask(model, way="plain"):
    """Ask a model, plain or awaited, and return what it says."""
    with dspy.context(lm=model):
        return (TELL(question="Weather?") if way == "plain" else asyncio.run(TELL.acall(question="Weather?"))).answer


def asks_streamed(model, *, is_async):
    """Ask it for a stream, and return its pieces and the answer."""

    async def read():
        listener = dspy.streaming.StreamListener(signature_field_name="answer")
        streamed = dspy.streamify(TELL, stream_listeners=[listener], is_async_program=is_async)
        return [one async for one in streamed(question="Weather?")]

    with dspy.context(lm=model):
        *pieces, last = asyncio.run(read())
    return "".join(piece.chunk for piece in pieces), last.answer


MODELS = {
    "chat": ("openai/gpt-5", TOLD, {}),
    "responses": ("openai/gpt-5", RESPONSE, {"model_type": "responses"}),
    "Anthropic": ("anthropic/claude-5", MESSAGE, {}),
    "LiteLLM": ("openai/gpt-5", TOLD, {"engine": "litellm"}),
}


@pytest.mark.captured("dspy", "LM, by itself and by LiteLLM", "plain", added="one line", checks=("calls", "answers", "tokens"))
@pytest.mark.parametrize("way", ["plain", "awaited"])
@pytest.mark.parametrize("case", MODELS)
def test_models_of_dspy(recording, provider, case, way):
    """The models of DSPy are recorded on the wire, once, whatever they send by."""
    name, reply, more = MODELS[case]
    provider.says(reply)
    assert "It rains" == ask(served_by(provider, name, **more), way)
    [op] = ops_of(recording)
    assert (1, "llm", "ok", name.partition("/")[2]) == (len(provider.requests), op.kind, op.status, op.attributes["model"])
    assert b"It rains" in bytes(op.response.payload)
    assert (1, 12) == (recording.tree.session.totals.llm_requests, op.accounting[0].tokens.all_input_tokens)


@pytest.mark.parametrize("way", ["plain", "awaited"])
def test_who_is_asked(recording, provider, monkeypatch, way):
    """A call is named by the provider whose host it is sent to."""
    resolves = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda _host, *args, **more: resolves("127.0.0.1", *args, **more))
    provider.says(TOLD)
    model = dspy.LM("openai/gpt-5", api_base=f"http://api.openai.com:{provider.server.server_port}/v1", api_key="none", cache=False)
    assert "It rains" == ask(model, way)
    assert ["openai:gpt-5"] == [op.name for op in ops_of(recording)]


@pytest.mark.captured("dspy", "streamify", "streamed", added="one line", checks=("calls", "answers", "tokens"))
@pytest.mark.parametrize("is_async", [False, True], ids=["in a thread", "awaited"])
def test_a_streamed_call(recording, provider, is_async):
    """A stream is one op, with its pieces' text and its tokens."""
    provider.says(STREAM)
    assert ("It rains", "It rains") == asks_streamed(served_by(provider), is_async=is_async)
    [op] = ops_of(recording)
    assert ("ok", "[[ ## answer ## ]]\nIt rains\n\n[[ ## completed ## ]]") == (
        op.status, decode(op.response.payload)["choices"][0]["message"]["content"],
    )  # fmt: skip
    assert (1, 17) == (recording.tree.session.totals.llm_requests, op.accounting[0].tokens.total_tokens)


@pytest.mark.captured("dspy", "streamify", "cancelled", added="one line", checks="calls")
def test_a_stream_that_is_left(recording, provider):
    """A stream that the program leaves ends its call and its session as cancelled, with what came."""
    provider.says(Reply(*STREAM.pieces[:3], b"data: [DONE]\n\n", kind=EVENTS, short=9))

    async def leave():
        listener = dspy.streaming.StreamListener(signature_field_name="answer")
        stream = dspy.streamify(TELL, stream_listeners=[listener], is_async_program=True)(question="Weather?")
        async for _ in stream:
            break
        await stream.aclose()

    with dspy.context(lm=served_by(provider)):
        asyncio.run(leave())
    [op] = ops_of(recording)
    assert (1, "cancelled") == (len(provider.requests), recording.tree.session.status)
    assert op.status in {"cancelled", "failed"}
    assert optree.current_session() is None


@pytest.mark.parametrize("way", ["plain", "awaited"])
def test_what_the_cache_answers(recording, provider, way):
    """A call that DSPy's cache answers is an op that says so, with its messages and its answer, and costs nothing."""
    provider.says(says(answer=f"It rains {way}"))
    model = served_by(provider, f"openai/gpt-5-{way}", cache=True)
    with optree.session("lead") as session, optree.turn(user="Weather?"):
        assert [f"It rains {way}"] * 2 == [ask(model, way), ask(model, way)]
    sent, cached = calls_of(recording)
    assert (1, f"openai:gpt-5-{way}", ["from the cache"]) == (len(provider.requests), cached.name, [log.message for log in cached.logs])
    assert (0, 0.0) == (cached.accounting[0].tokens.total_tokens, cached.accounting[0].cost_usd)
    resolve = recording.tree.pool.resolve
    assert resolve(decode(sent.request.payload))["messages"] == resolve(decode(cached.request.payload))["messages"]
    said = [decode(op.response.payload)["choices"][0]["message"]["content"] for op in (sent, cached)]
    assert said[0] == said[1]
    assert (8, 5) == (session.totals.input_tokens, session.totals.output_tokens)


@pytest.mark.captured("dspy", "LM, by itself", "retries", added="one line", checks="calls")
@pytest.mark.parametrize("way", ["plain", "awaited"])
def test_a_call_that_is_made_again(recording, provider, way):
    """What DSPy sends again after a refusal is an attempt of the same op."""
    provider.says(BUSY, TOLD)
    assert "It rains" == ask(served_by(provider, num_retries=1), way)
    [op] = ops_of(recording)
    assert ("ok", 2, 1) == (op.status, len(provider.requests), recording.tree.session.totals.llm_requests)
    assert [True, False] == [bool(entry.retried) for entry in op.accounting]


@pytest.mark.captured("dspy", "LM, by itself", "failed", added="one line", checks="calls")
@pytest.mark.parametrize("way", ["plain", "awaited"])
def test_a_model_that_fails(recording, provider, way):
    """A refused call is one failed op with the provider's code, its program failed with it, and the program gets DSPy's exception."""
    provider.says(REFUSED)
    with pytest.raises(dspy.LMError, match="no such model"):
        ask(served_by(provider), way)
    [op] = ops_of(recording)
    assert ("failed", "model_not_found", "model") == (op.status, op.attributes["error.type"], op.attributes["error.class"])
    assert ("failed", True) == (recording.tree.session.status, "no such model" in recording.tree.session.error)


def test_a_model_that_cannot_be_asked(recording, monkeypatch):
    """A call that fails before anything is sent is a failed op too."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(Exception, match=r"(?i)api_key|credential"):
        ask(dspy.LM("openai/gpt-5", cache=False, num_retries=0, engine="lm15"))
    assert [("openai:gpt-5", "failed")] == [(op.name, op.status) for op in ops_of(recording)]


class Engine:
    """An engine of the program's own."""

    def complete(self, request):
        """Say the weather."""
        said = dspy.lm15.Message.assistant([dspy.lm15.TextPart("[[ ## answer ## ]]\nIt rains")])
        spent = dspy.lm15.Usage(input_tokens=3, output_tokens=2, total_tokens=5)
        return dspy.lm15.Response(id=None, model=request.model, message=said, finish_reason="stop", usage=spent)


class Asking(dspy.BaseLM):
    """A model that asks another one."""

    other = None

    def forward(self, prompt=None, messages=None, **_more):
        """Ask it, and answer as OpenAI's chat does."""
        [said] = self.other(prompt, messages=messages)
        choice = dspy.dsp.utils.dotdict({"message": dspy.dsp.utils.dotdict({"content": said}), "finish_reason": "stop"})
        return dspy.dsp.utils.dotdict({"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": 2}, "model": "router"})


def test_models_that_call_nobody(recording):
    """A model that calls nobody has an op of what DSPy knows: messages, answer, tokens, once."""
    with optree.session("lead") as session, optree.turn(user="Weather?"):
        assert "It rains" == ask(dspy.LM("own/engine", engine=Engine(), cache=False, temperature=0.5))
        assert "It rains" == ask(scripted({"answer": "It rains"}))
    first, second = calls_of(recording)
    assert ("own:engine", "dummy") == (first.name, second.name)
    asked = recording.tree.pool.resolve(decode(first.request.payload))
    assert (["system", "user"], 0.5) == ([message["role"] for message in asked["messages"]], asked["temperature"])
    assert "[[ ## answer ## ]]\nIt rains" == decode(first.response.payload)["choices"][0]["message"]["content"]
    assert (3, 2) == (first.accounting[0].tokens.input_tokens, first.accounting[0].tokens.output_tokens)
    assert (2, 3) == (session.totals.llm_requests, session.totals.input_tokens)


def test_what_a_model_is_called_with(recording):
    """What a program gives to a call, or a request of DSPy's has, is recorded of a model that calls nobody."""
    router = Asking("router", cache=False, temperature=0.5)
    router.other = lambda *_args, **_more: ["It rains"]
    given = {
        "max_tokens": 50,
        "top_p": 0.9,
        "n": 1,
        "seed": 7,
        "stop": ["x"],
        "tools": [],
        "tool_choice": "auto",
        "reasoning_effort": "low",
    }
    with optree.session("lead"):
        router("Weather?", **given, user="somebody")
        router(dspy.lm15.Request("router", (dspy.lm15.Message.user("Weather?"),), system="Be brief"))
    resolve = recording.tree.pool.resolve
    first, second = (resolve(decode(op.request.payload)) for op in calls_of(recording))
    user = {"role": "user", "content": "Weather?"}
    assert {"temperature": 0.5, **given, "messages": [user]} == first
    assert [{"role": "system", "content": "Be brief"}, user] == second["messages"]


def test_thoughts_and_tools_of_an_answer(recording):
    """What a model thinks, and the tools that it asks for, are in the answer of one that calls nobody."""

    class Thinking(Engine):
        def complete(self, request):
            parts = [dspy.lm15.ThinkingPart("hm"), dspy.lm15.ToolCallPart("call-1", "weather", {"city": "Athens"})]
            said = dspy.lm15.Message.assistant([*parts, dspy.lm15.TextPart("wait")])
            return dataclasses.replace(super().complete(request), message=said)

    with optree.session("lead"):
        dspy.LM("own/engine", engine=Thinking(), cache=False)("Weather?")
    [op] = calls_of(recording)
    [choice] = decode(op.response.payload)["choices"]
    assert ("assistant", "wait", "hm") == tuple(choice["message"][name] for name in ("role", "content", "reasoning_content"))
    [asked] = choice["message"]["tool_calls"]
    assert ("weather", '{"city": "Athens"}') == (asked["function"]["name"], asked["function"]["arguments"])


def test_a_model_that_asks_another(recording, provider):
    """A model that asks another one is no second call."""
    provider.says(TOLD)
    router = Asking("router", cache=False)
    router.other = served_by(provider)
    assert "It rains" == ask(router)
    router.other = scripted({"answer": "It rains"})
    assert "It rains" == ask(router)
    assert [["openai-compatible:gpt-5"], ["dummy"]] == [[op.name for op in ops_of(one)] for one in recording.sessions]


def test_calls_outside_of_programs(recording, provider):
    """A model that is called outside of all programs is in the script's session, and in an llm op of the program's it is that op."""
    provider.says(TOLD)
    scripted({"answer": "It rains"})("Weather?")
    served_by(provider)("Weather?")
    with optree.session("lead"), optree.turn(user="Weather?"), optree.llm("planner"):
        scripted({"answer": "It rains"})("Weather?")
    uninstrument()
    found = {one.tree.session.agent_id: one for one in recording.sessions}
    assert ["dummy", "openai-compatible:gpt-5"] == [op.name for op in calls_of(found[program_name()])]
    assert [("planner", 1)] == [(op.name, len(op.accounting)) for op in calls_of(found["lead"])]


def test_a_budget(recording, provider):
    """A call that a budget refuses is not sent, and the program gets the refusal unchanged."""
    provider.says(*LOOK_AND_TELL)
    with dspy.context(lm=served_by(provider, num_retries=3)), pytest.raises(optree.BudgetExceeded), optree.budget(calls=2):
        forecaster()(question="Weather?")
    assert (2, "failed") == (len(provider.requests), recording.tree.session.status)


CASES = {
    "tools": LOOK_AND_TELL,
    "refused": [REFUSED],
    "made again": [BUSY, *LOOK_AND_TELL],
    "nonsense": [Reply(b"{")],
    "broken off": [Reply(b"{", short=9)],
    "empty": [Reply(b"")],
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tool", [weather, broken], ids=["weather", "broken"])
def test_the_program_sees_no_difference(provider, case, tool):
    """What a program gets, returned or raised, what the provider is sent, and DSPy's history, is the same with hooks and without."""

    def result(way):
        provider.requests.clear()
        provider.says(*CASES[case])
        model = served_by(provider, num_retries=1 if case == "made again" else 0)
        with dspy.context(lm=model):
            found = outcome(lambda: way(forecaster(tool)))
        return found, [path for path, _ in provider.requests], [(one["outputs"], one["usage"]) for one in model.history]

    def plain(agent):
        return agent(question="Weather?").toDict()

    def awaited(agent):
        return asyncio.run(agent.acall(question="Weather?")).toDict()

    for way in (plain, awaited):
        assert result(way) == with_hooks(lambda way=way: result(way))


@pytest.mark.parametrize("adapter", [dspy.ChatAdapter, dspy.JSONAdapter, dspy.XMLAdapter])
def test_credentials(saved, adapter):
    """A credential that its form tells, or the name of an input or an argument, is not saved; model and tool get it as it is."""
    got = []

    def login(city: str, api_key: str) -> str:
        got.append(api_key)
        return f"rain in {city}"

    asks = {"next_thought": "look", "next_tool_name": "login", "next_tool_args": {"city": "Athens", "api_key": "hunter3"}}
    done = {"next_thought": "done", "next_tool_name": "finish", "next_tool_args": {}}
    model = DummyLM([asks, done, {"reasoning": "wet", "answer": "It rains"}], adapter=adapter())
    with dspy.context(lm=model, adapter=adapter()):
        agent = dspy.ReAct("password, question -> answer", tools=[login])
        assert "It rains" == agent(password="hunter2", question=f"Weather? {KEY}").answer
    told, asked = saved(), str(model.history)
    assert (["hunter3"], 3) == (got, len(model.history))
    assert [(True, False)] * 3 == [(one in asked, one in told) for one in (KEY, "hunter2", "hunter3")]
    assert "Athens" in told


@pytest.mark.usefixtures("model")
def test_a_fault_of_ours_is_none_of_the_programs(recording, provider, monkeypatch):
    """A hook that raises leaves the run as it is, and calls are recorded."""
    provider.says(ANSWER)

    def run():
        return [dspy.ChainOfThought("question -> answer")(question="Weather?").answer for _ in range(2)][-1]

    survives("optree._capture.frameworks.dspy._question", recording, monkeypatch, run)


def test_functions_stay_what_they_are():
    """What stands in the place of a function is of its kind: plain, a coroutine function, a generator function."""
    stay_what_they_are("dspy")


def test_uninstrumented_nothing_is_recorded(provider):
    """Once the hooks are taken out nothing is recorded; put in again, each call is recorded once."""
    owners = [
        (dspy.Module, "__call__"),
        (dspy.Module, "acall"),
        (dspy.BaseLM, "__call__"),
        (execution, "finalize"),
        (dspy.Tool, "__call__"),
        (dspy.ToolCalls.ToolCall, "execute"),
        (ParallelExecutor, "execute"),
        (dspy.BootstrapFewShot, "compile"),
        (StdlibTransport, "stream"),
        (StdlibAsyncTransport, "_do_stream"),
    ]
    before = [vars(owner)[name] for owner, name in owners]
    provider.says(TOLD)
    instrument()
    assert [False] * len(owners) == [vars(owner)[name] is one for (owner, name), one in zip(owners, before, strict=True)]
    uninstrument()
    assert before == [vars(owner)[name] for owner, name in owners]
    with capture() as recording:
        ask(served_by(provider))
        assert not recording.records
        instrument()
        instrument()
        ask(served_by(provider))
        uninstrument()
    assert [1] == [one.totals.llm_requests for one in recording.sessions]


def test_a_run_that_is_under_way_is_ended(recording):
    """A run that is under way when the hooks are taken out ends with it."""

    class Leaving(dspy.Module):
        def forward(self):
            uninstrument()

    Leaving()()
    assert "ok" == recording.tree.session.status
    assert optree.current_session() is None


PROGRAM = """
import os, signal, sys
import dspy

dspy.configure(lm=dspy.LM("openai/gpt-5", api_base=sys.argv[1] + "/v1", api_key="none", cache=False))

def weather(city: str) -> str:
    "Tell the weather."
    import optree
    print(optree.flush(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

print(dspy.ReAct("question -> answer", tools=[weather])(question="Weather?"))
"""


@pytest.mark.captured("dspy", "ReAct", "tools", "killed", added="--auto", checks="calls")
def test_a_kill_keeps_the_tree(provider, killed):
    """A program that does not name optree and is killed in a tool leaves the same tree, with what was open not ended."""
    provider.says(LOOKS)
    session = killed(PROGRAM)
    assert ("ReAct", None, {"user": "Weather?"}) == (session.agent_id, session.ended_at, session.turns[0].prompts)
    call, tool = [op for _, _, op in walk_ops(session)]
    assert ("ok", "weather", {"city": "Athens"}, None) == (call.status, tool.name, decode(tool.request.payload), tool.ended_at)


@pytest.mark.usefixtures("hooked")
@pytest.mark.parametrize("way", ["plain", "awaited"])
def test_replay(provider, way):
    """In a replay models and tools give what was recorded, and none of them runs; the program's callbacks are told as ever."""
    ran, told = [], []

    def tool(city: str) -> str:
        ran.append(city)
        return weather(city)

    class Telling(BaseCallback):
        def on_tool_end(self, call_id, outputs, exception=None):  # noqa: ARG002 - as it is called
            told.append(outputs)

    def run():
        agent = forecaster(tool)
        with dspy.context(lm=served_by(provider), callbacks=[Telling()]):
            found = agent(question="Weather?") if way == "plain" else asyncio.run(agent.acall(question="Weather?"))
        return found.toDict()

    expected, found, recorded, again = twice(provider, LOOK_AND_TELL, run)
    assert expected == found
    assert (["Athens"], ["rain in Athens", "Completed."] * 2) == (ran, told)
    assert [op.path for op in calls_of(recorded)] == [op.attributes[REPLAY_OF].partition(":")[2] for op in calls_of(again)]


@pytest.mark.usefixtures("hooked")
def test_tools_that_the_program_runs_are_replayed(provider):
    """In a replay a tool that a program runs itself, or has DSPy execute, gives what was recorded, or fails as it did."""
    ran = []

    def tool(city: str) -> str:
        ran.append(city)
        return broken(city) if city == "Rome" else weather(city)

    def run():
        call = dspy.ToolCalls.ToolCall(name="tool", args={"city": "Oslo"})
        with optree.session("lead"), optree.turn(user="Weather?"):
            return dspy.Tool(tool)(city="Athens"), call.execute(), outcome(lambda: dspy.Tool(tool)(city="Rome"))

    expected, found, _, _ = twice(provider, [], run)
    assert ("rain in Athens", "rain in Oslo", (ConnectionError, "no thermometer in Rome")) == expected == found
    assert ["Athens", "Oslo", "Rome"] == ran


FAILURES = {"refused": [REFUSED], "nonsense": [Reply(b"{")], "broken stream": [Reply(*STREAM.pieces[:3], kind=EVENTS, short=9)]}


@pytest.mark.usefixtures("hooked")
@pytest.mark.parametrize("case", [*FAILURES, "stream"])
@pytest.mark.parametrize("is_async", [False, True], ids=["in a thread", "awaited"])
def test_streams_and_failures_are_replayed(provider, case, is_async):
    """In a replay what a stream adds up to, and a call that failed, come again as they came."""
    replies = FAILURES.get(case, [STREAM])
    expected, found, _, _ = twice(provider, replies, lambda: asks_streamed(served_by(provider), is_async=is_async)[1:])
    assert expected == found
    assert case != "stream" or (("It rains",),) == (expected,)
