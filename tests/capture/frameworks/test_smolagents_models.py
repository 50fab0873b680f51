"""Calls of models on smolagents: each is recorded once, with hooks that the program does not notice and that can be taken out."""

import functools
import itertools
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from types import GeneratorType

import pytest

if find_spec("smolagents") is None:
    pytest.skip("smolagents is tried in an environment of its own: make test-frameworks", allow_module_level=True)

from smolagents import (
    ChatMessage,
    CodeAgent,
    InferenceClientModel,
    LiteLLMModel,
    Model,
    MultiStepAgent,
    OpenAIModel,
    Tool,
    ToolCallingAgent,
    tool,
)
from smolagents import local_python_executor as local
from smolagents.agent_types import AgentText
from smolagents.models import ChatMessageStreamDelta

import optree
from optree._capture import instrument, uninstrument
from optree._nodes import REPLAY_OF
from optree._tree import walk_ops, walk_sessions
from optree._values import decode
from optree.testing import capture, replay
from tests.capture.conftest import KEY, kind_of, outcome, stay_what_they_are, with_hooks, wrap
from tests.capture.frameworks.smols import (  # noqa: F401 - model_of_smolagents is a fixture
    ANSWER,
    CODE,
    DONE,
    REFUSED,
    WEATHER,
    Scripted,
    broken,
    calling,
    calls,
    coding,
    model_of_smolagents,
    says,
    served_by,
    weather,
)
from tests.capture.provider import Reply, events
from tests.capture.recordings import calls_of, ops_of
from tests.capture.sdk_calls import USAGE
from tests.cli.conftest import ROOT

_CHUNK = {"id": "chat-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5-2026"}
STREAMED = events(
    {**_CHUNK, "choices": [{"index": 0, "delta": {"role": "assistant", "content": CODE[:20]}}]},
    {**_CHUNK, "choices": [{"index": 0, "delta": {"content": CODE[20:]}}]},
    {**_CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    {**_CHUNK, "choices": [], "usage": USAGE},
)
RAINS = "<code>final_answer('It rains')</code>"
QUESTION = [ChatMessage("user", [{"type": "text", "text": "Weather?"}])]


def test_a_model_that_calls_nobody(recording):
    """A model of the program's own that calls nobody has an op of what is known: messages, tools, answer, tokens, calls of tools, once."""
    calling(Scripted(calls("weather", city="Athens"), calls("final_answer", answer="It rains")), weather).run("Weather?")
    first, second = calls_of(recording)
    assert ("scripted", "scripted", "ok") == (first.name, first.attributes["model"], first.status)
    asked = recording.tree.pool.resolve(decode(second.request.payload))
    assert ["system", "user", "assistant", "user"] == [message["role"] for message in asked["messages"]]
    assert ["weather", "final_answer"] == [tool["function"]["name"] for tool in asked["tools"]]
    assert ["Observation:", "Calling tools:"] == asked["stop"]
    message = decode(first.response.payload)["choices"][0]["message"]
    assert {"name": "weather", "arguments": {"city": "Athens"}} == {
        name: one for name, one in message["tool_calls"][0]["function"].items() if one is not None
    }
    assert [(3, 2)] * 2 == [(op.accounting[0].tokens.input_tokens, op.accounting[0].tokens.output_tokens) for op in (first, second)]
    assert (2, 6) == (recording.tree.session.totals.llm_requests, recording.tree.session.totals.input_tokens)


def test_a_model_that_fails(recording):
    """Such a model that raises is a failed op with the exception and its class."""
    with optree.session("lead"), pytest.raises(ConnectionError):
        coding(Scripted("")).model.__class__(ConnectionError("away")).generate(QUESTION)
    [op] = calls_of(recording)
    assert ("failed", "ConnectionError: away", "network") == (op.status, op.error, op.attributes["error.type"])


class Plain:
    """A model that is of none of smolagents' classes, and tells no tokens."""

    def generate(self, messages, **_more):  # noqa: ARG002 - as an agent calls it
        """Say it."""
        return ChatMessage("assistant", CODE)


class Asking(Model):
    """A model that asks another one."""

    def __init__(self, other):
        super().__init__(model_id="router")
        self.other = other

    def generate(self, messages, **more):
        """Ask it."""
        return self.other.generate(messages, **more)

    def generate_stream(self, messages, **more):
        """Ask it for a stream."""
        return self.other.generate_stream(messages, **more)


class Chained(Scripted):
    """A model whose stream is a chain of Python's."""

    def generate_stream(self, messages, **more):
        """Return one."""
        return itertools.chain(super().generate_stream(messages, **more))


class Later(Scripted):
    """A model whose method calls that of its base class."""

    def generate(self, messages, **more):
        """Say what the base class says."""
        return super().generate(messages, **more)


def test_a_model_of_another_class(recording):
    """A model of any class that an agent runs with is recorded by the name of its class."""
    assert "It rains" == coding(Plain(), weather).run("Weather?")
    [op] = calls_of(recording)
    assert ("Plain", CODE + "</code>") == (op.name, decode(op.response.payload)["choices"][0]["message"]["content"] + "</code>")


def test_a_model_that_asks_another(recording, provider, model):
    """A model that asks another one, or its base class, is no second call, streamed or not."""
    provider.says(ANSWER, STREAMED)
    with optree.session("lead") as session:
        coding(Asking(model), weather).run("Weather?")
        coding(Asking(model), weather, stream_outputs=True).run("Weather?")
        coding(Asking(Scripted(CODE)), weather, name="own").run("Weather?")
        coding(Later(CODE), weather, stream_outputs=True, name="later").run("Weather?")
    assert ["openai-compatible:gpt-5"] * 2 + ["scripted"] * 2 == [op.name for op in calls_of(recording)]
    assert (4, 8 + 8 + 3 + 3) == (session.totals.llm_requests, session.totals.input_tokens)


class Eager(Asking):
    """A model that asks for a stream before it is read."""

    def generate_stream(self, messages, **more):
        """Ask for it at once."""
        return iter(list(self.other.generate_stream(messages, **more)))


def test_a_stream_that_was_read_ahead(recording, provider, model):
    """A stream that a model has read before the agent does is one call, and one that nobody reads leaves nothing open."""
    provider.says(STREAMED)
    with optree.session("lead") as session:
        coding(Eager(model), weather, stream_outputs=True).run("Weather?")
        Scripted(CODE).generate_stream(QUESTION)
        Scripted(CODE).generate(QUESTION)
    assert ["openai-compatible:gpt-5", "scripted"] == sorted(op.name for op in calls_of(recording))
    assert (2, 11) == (session.totals.llm_requests, session.totals.input_tokens)


def test_a_stream_that_is_left(recording):
    """A stream that is read no further is a cancelled op, which has what came; what is called meanwhile is a call of its own."""
    with optree.session("lead"):
        stream = Scripted("It rains").generate_stream(QUESTION)
        assert "It " == next(stream).content
        Scripted("It snows").generate(QUESTION)
        stream.close()
    left, whole = calls_of(recording)
    assert ("cancelled", "ok") == (left.status, whole.status)
    assert b"It snows" in bytes(whole.response.payload)
    assert "It " == decode(left.response.payload)


@pytest.mark.parametrize("at", [0, 1], ids=["ahead of the first", "between"])
def test_a_call_between_pieces(recording, at):
    """What the program asks while it has a stream, which is no generator, is a call of its own."""
    with optree.session("lead"):
        stream = Chained("It rains").generate_stream(QUESTION)
        said = [next(stream).content for _ in range(at)]
        Scripted("It snows").generate(QUESTION)
        assert "It rains " == "".join([*said, *(delta.content or "" for delta in stream)])
    assert {b"It rains", b"It snows"} == {
        one for op in calls_of(recording) for one in (b"It rains", b"It snows") if one in bytes(op.response.payload)
    }
    assert 2 == len(calls_of(recording))


def test_a_stream_that_the_model_keeps(recording):
    """A stream that the program closes is closed, also where the model has it still."""
    kept = []

    class Keeping(Scripted):
        def generate_stream(self, messages, **more):
            kept.append(super().generate_stream(messages, **more))
            return kept[0]

    with optree.session("lead"):
        stream = Keeping("It rains").generate_stream(QUESTION)
        next(stream)
        stream.close()
    assert (None, ["cancelled"]) == (kept[0].gi_frame, [op.status for op in calls_of(recording)])


def test_a_stream_that_takes_no_exception(recording):
    """What the program throws into a stream that takes none is raised, and the call has failed with it."""
    with optree.session("lead"):
        stream = Chained("It rains").generate_stream(QUESTION)
        next(stream)
        with pytest.raises(LookupError, match="fog"):
            stream.throw(LookupError("fog"))
    assert [("failed", "LookupError: fog")] == [(op.status, op.error) for op in calls_of(recording)]


def test_messages_by_name(recording):
    """Messages may be given by name, and as plain ones."""
    with optree.session("lead"):
        Scripted("It rains").generate(messages=[{"role": "user", "content": "Weather?"}])
    [op] = calls_of(recording)
    assert [{"role": "user", "content": "Weather?"}] == recording.tree.pool.resolve(decode(op.request.payload))["messages"]
    assert "scripted" == op.accounting[0].model


def test_a_model_in_an_op_of_the_programs(recording):
    """In an open llm op of the program's, such a call is that op, and counts once."""
    with optree.session("lead") as session, optree.turn(user="Weather?"), optree.llm("planner"):
        Scripted("It rains").generate(QUESTION)
    [op] = ops_of(recording)
    assert ("planner", 1, 3) == (op.name, session.totals.llm_requests, session.totals.input_tokens)
    assert b"It rains" in bytes(op.response.payload)


@pytest.mark.captured(
    "smolagents", "OpenAIModel, InferenceClientModel, LiteLLMModel", "plain", "streamed", added="one line", checks=("calls", "answers")
)
@pytest.mark.parametrize(("kind", "name"), [("openai", "gpt-5"), ("hugging face", "dummy"), ("litellm", "gpt-5")])
@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # what pydantic says of LiteLLM's classes
def test_models_of_smolagents(recording, provider, monkeypatch, kind, name, streamed):
    """The models of smolagents that go over HTTP are recorded on the wire, once, plain and streamed."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    url = f"{provider.url}/v1"
    model = {
        "openai": lambda: OpenAIModel("gpt-5", api_base=url, api_key="none"),
        "hugging face": lambda: InferenceClientModel(f"{url}/chat/completions", api_key="none"),
        "litellm": lambda: LiteLLMModel("openai/gpt-5", api_base=url, api_key="none"),
    }[kind]()
    provider.says(STREAMED if streamed else ANSWER)
    assert "It rains" == coding(model, weather, stream_outputs=streamed).run("Weather?")
    [op] = calls_of(recording)
    assert (f"openai-compatible:{name}", "ok", ops_of(recording, "step 1")[0].path) == (op.name, op.status, op.parent_op)
    assert b"final_answer" in bytes(op.response.payload)
    assert (1, 8) == (recording.tree.session.totals.llm_requests, recording.tree.session.totals.input_tokens)


CASES = {
    "tools": [WEATHER, DONE],
    "refused": [REFUSED],
    "nonsense": [Reply(b"{")],
    "broken off": [Reply(b"{", short=9)],
    "text": [says("It rains"), DONE],
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("function", [weather, broken], ids=["weather", "broken"])
@pytest.mark.parametrize("stream", [False, True], ids=["run", "stream"])
def test_the_program_sees_no_difference(provider, case, function, stream):
    """What a program gets, returned, yielded or raised, what its callbacks get and what the provider is sent is the same with hooks."""

    def result():
        provider.requests.clear()
        provider.says(*CASES[case])
        seen = []
        agent = calling(served_by(provider), function, step_callbacks=[lambda step: seen.append((step.step_number, str(step.error)))])
        found = outcome(lambda: [type(one).__name__ for one in agent.run("Weather?", stream=True)] if stream else agent.run("Weather?"))
        sent = [json.loads(body)["messages"] for _, body in provider.requests] if case != "text" else len(provider.requests)
        return found, seen, sent

    assert result() == with_hooks(result)


@pytest.mark.parametrize("kind", ["http", "own"])
def test_credentials(saved, provider, kind):
    """A credential that its form tells, or the name of an argument, is not saved; model and tool get it as it is."""
    got = []

    @tool
    def login(city: str, api_key: str) -> str:
        """Log in.

        Args:
            city: Where.
            api_key: By what.
        """
        got.append(api_key)
        return f"rain in {city}"

    asked = {"city": "Athens", "api_key": "hunter2"}
    provider.says(says(None, {"name": "login", "arguments": json.dumps(asked)}), DONE)
    model = served_by(provider) if kind == "http" else Scripted(calls("login", **asked), calls("final_answer", answer="It rains"))
    agent = calling(model, login)
    assert "It rains" == agent.run(f"Weather? {KEY}")
    told, sent = saved(), str(agent.memory.steps)
    assert (["hunter2"], True, True) == (got, KEY in sent, "hunter2" in sent)
    assert (True, False, False) == ("Athens" in told, KEY in told, "hunter2" in told)


def test_a_fault_of_ours_is_none_of_the_programs(recording, provider, model, monkeypatch):
    """A hook that raises leaves the run as it is, and calls are recorded."""
    provider.says(WEATHER, DONE)
    for fault in ("_named", "_SmolCheck.__init__", "_SmolTurn.__init__", "_SmolStep.__init__", "_Asked.__init__"):
        monkeypatch.setattr(f"optree._capture.frameworks.smolagents.{fault}", lambda *_args: 1 / 0)
    monkeypatch.setattr("optree._capture.frameworks.smolagents.models._message", lambda *_args: 1 / 0)
    with optree.session("lead") as session:
        assert "It rains" == calling(model, weather).run("Weather?")
        assert "It rains" == coding(Scripted(CODE), weather).run("Weather?")
    assert 2 == sum(op.name == "openai-compatible:gpt-5" for op in calls_of(recording))
    assert 16 == session.totals.input_tokens


def test_functions_stay_what_they_are(hooked):  # noqa: ARG001 - the hooks are there
    """What stands in the place of a function is of its kind, in classes of the program's too: plain, or a generator function."""
    stay_what_they_are("smolagents")
    instrument()
    assert ["isgeneratorfunction", "a plain one"] == [kind_of(type(model).generate_stream) for model in (Scripted(), Owned())]
    assert [True, False] == [isinstance(model.generate_stream(QUESTION), GeneratorType) for model in (Scripted(CODE), Owned())]


def test_uninstrumented_nothing_is_recorded(provider, model):
    """Once the hooks are taken out nothing is recorded; put in again, each call is recorded once, also of models made meanwhile."""
    owners = [
        (CodeAgent, "_step_stream"),
        (ToolCallingAgent, "execute_tool_call"),
        (Tool, "__call__"),
        (OpenAIModel, "generate_stream"),
        (local, "timeout"),
        (local.LocalPythonExecutor, "__call__"),
    ]
    before = [vars(owner)[name] for owner, name in owners]
    provider.says(says(RAINS))
    made = type("Made", (Scripted,), {"generate": lambda _self, *_args, **_more: ChatMessage("assistant", RAINS)})()
    instrument()
    with capture():
        coding(made, broken).run("Weather?")
    assert [False] * len(owners) == [vars(owner)[name] is one for (owner, name), one in zip(owners, before, strict=True)]
    uninstrument()
    assert before == [vars(owner)[name] for owner, name in owners]
    with capture() as recording:
        for one in (model, made):
            coding(one, broken).run("Weather?")
        assert not recording.records
        instrument()
        instrument()
        for one in (model, made):
            coding(one, broken).run("Weather?")
        uninstrument()
    assert [1, 1] == [one.totals.llm_requests for one in recording.sessions if one.totals.llm_requests]


def test_a_run_that_is_under_way_is_ended(recording):
    """A run that is under way when the hooks are taken out ends with it."""

    def leave(_messages):
        uninstrument()
        return CODE

    assert "It rains" == coding(Scripted(leave), weather).run("Weather?")
    assert ["ok"] == [session.status for session in walk_sessions(recording.tree)]
    assert optree.current_session() is None


PROGRAM = """
import os, signal, sys
from smolagents import OpenAIModel, CodeAgent, tool

@tool
def weather(city: str) -> str:
    '''Tell the weather.

    Args:
        city: Where.
    '''
    import optree
    print(optree.flush(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

model = OpenAIModel("gpt-5", api_base=sys.argv[1] + "/v1", api_key="none")
CodeAgent(tools=[weather], model=model, verbosity_level=-1).run("Weather?")
"""


@pytest.mark.captured("smolagents", "CodeAgent", "tools", "killed", added="--auto", checks="calls")
def test_a_kill_keeps_the_tree(provider, killed):
    """A program that does not name optree and is killed in a tool leaves the same tree, with what was open not ended."""
    provider.says(ANSWER)
    session = killed(PROGRAM)
    assert ("CodeAgent", None) == (session.agent_id, session.ended_at)
    ops = {op.name: op for _, _, op in walk_ops(session)}
    assert ({"city": "Athens"}, None) == (decode(ops["weather"].request.payload), ops["weather"].ended_at)
    assert (ops["python_interpreter"].path, None) == (ops["weather"].parent_op, ops["step 1"].ended_at)
    assert (1, 8) == (session.totals.llm_requests, session.totals.input_tokens)


@pytest.mark.parametrize("way", [calling, coding])
@pytest.mark.parametrize("function", [weather, broken], ids=["weather", "broken"])
def test_tools_in_a_replay(provider, way, function, hooked):  # noqa: ARG001 - the hooks are there
    """In a replay tools get their results, and failures, and do not run, whether a model or its code calls them; the code runs."""
    code = "<code>\nfound = weather('Athens')\nprint(found)\n</code>"
    replies = [WEATHER, DONE] if way is calling else [says(code), says("<code>final_answer('It rains')</code>")]
    provider.says(*replies)
    with capture() as recorded:
        expected = way(served_by(provider), function).run("Weather?")
    sent = len(provider.requests)
    ran = []

    class Told(Tool):
        name, description, inputs, output_type = function.name, function.description, function.inputs, function.output_type

        def forward(self, city: str) -> str:
            ran.append(city)

    with replay(recorded.tree), capture() as again:
        assert expected == way(served_by(provider), Told()).run("Weather?")
    assert (sent, []) == (len(provider.requests), ran)
    before, behind = ops_of(recorded, "weather"), ops_of(again, "weather")
    assert [f"test-1:{op.path}" for op in before] == [op.attributes.get(REPLAY_OF) for op in behind]
    assert [(op.status, op.error, op.response and op.response.payload) for op in before] == [
        (op.status, op.error, op.response and op.response.payload) for op in behind
    ]


def test_what_a_tool_returns_in_a_replay(hooked):  # noqa: ARG001 - as above
    """In a replay a result is of smolagents' own class for texts where it was, and else a plain text."""

    def kinds():
        with optree.session("lead"), optree.turn():
            return [type(weather("Athens", sanitize_inputs_outputs=is_sanitized)) for is_sanitized in (True, False)]

    with capture() as recorded:
        assert [AgentText, str] == kinds()
    with replay(recorded.tree), capture() as again:
        assert [AgentText, str] == kinds()
    assert not ops_of(again, "thermometer")


def test_models_in_a_replay(hooked):  # noqa: ARG001 - as above
    """In a replay a model that calls nobody is called again: its calls count as made, and have no recorded answer."""
    with capture() as recorded:
        expected = coding(Scripted(CODE), weather).run("Weather?")
    with replay(recorded.tree), capture() as again:
        assert expected == coding(Scripted(CODE), weather).run("Weather?")
    assert [None] == [op.attributes.get(REPLAY_OF) for op in calls_of(again)]


@pytest.mark.usefixtures("hooked")
@pytest.mark.parametrize("between", [list, uninstrument], ids=["again", "taken out"])
@pytest.mark.parametrize("wraps", [True, False], ids=["named", "unnamed"])
def test_what_another_library_has_wrapped_is_recorded_once(monkeypatch, between, wraps):
    """Hooks that another library has wrapped record once, after a second `instrument` too, or one after an end."""
    Scripted(CODE)  # its class is hooked
    for owner, name in (
        (MultiStepAgent, "_run_stream"),
        (CodeAgent, "_step_stream"),
        (Tool, "__call__"),
        (Scripted, "generate"),
    ):
        wrap(owner, name, monkeypatch, wraps=wraps)
    between()
    instrument()
    with capture() as recording, optree.session("lead"):
        assert "It rains" == coding(Scripted(CODE), weather).run("Weather?")
    assert ["lead", "coder"] == [session.agent_id for session in walk_sessions(recording.tree)]
    names = {"step 1", "scripted", "weather"}
    assert ["step 1", "scripted", "weather"] == [op.name for _, _, op in walk_ops(recording.tree) if op.name in names]


class Streaming(Model):
    """A model whose stream takes what is sent, and returns something."""

    def generate(self, _messages, **_more):
        """Say nothing."""

    def generate_stream(self, _messages, **_more):
        """Say what was sent or thrown."""
        try:
            said = yield ChatMessageStreamDelta(content="It ")
        except LookupError as error:
            said = str(error)
        yield ChatMessageStreamDelta(content=said)
        return "the end"


class Pieces:
    """A stream of another library's, which has more than its pieces."""

    usage = 3

    def __init__(self, prompt):
        self.prompt = prompt

    def __iter__(self):
        return iter([ChatMessageStreamDelta(content=self.prompt)])


class Client:
    """What another library gives a class."""

    def generate_stream(self, prompt):
        """Return a stream."""
        return Pieces(prompt)


class Mixed(Model, Client):
    """A model with it."""


class Owned(Model):
    """A model whose streams are another library's."""

    def generate_stream(self, _messages, **_more):
        """Return one."""
        return Pieces("rains")


@pytest.mark.parametrize("way", ["send", "throw"])
def test_a_stream_is_the_programs(recording, way):
    """What is sent to a stream or thrown into it comes to the model, and what it returns to the program; it is an op."""
    stream, said = Streaming().generate_stream(QUESTION), []

    def read():
        said.append((yield from stream))

    reading = read()
    given = "rains" if way == "send" else LookupError("rains")
    assert ["It ", "rains"] == [next(reading).content, getattr(reading, way)(given).content]
    assert ([], ["the end"]) == (list(reading), said)
    [op] = calls_of(recording)
    assert ("ok", "It rains") == (op.status, decode(op.response.payload)["choices"][0]["message"]["content"])


def test_a_stream_of_another_library_stays_what_it_is(recording):
    """An object that a model returns for its stream comes to the program as it is; the call is an op."""
    stream = Owned().generate_stream(QUESTION)
    assert (Pieces, 3, ["rains"]) == (type(stream), stream.usage, [delta.content for delta in stream])
    assert [("Owned", "ok")] == [(op.name, op.status) for op in calls_of(recording)]


@pytest.mark.usefixtures("recording")
def test_what_a_model_is_mixed_with_is_left_alone():
    """A class of another library that a model's class has beside smolagents' own is not hooked."""
    before = Client.generate_stream
    Mixed()
    assert before is Client.generate_stream


PICKLED = """
import sys, cloudpickle, optree
from smolagents import ChatMessage, Model
class Own(Model):
    def generate(self, messages, **more):
        return ChatMessage("assistant", "It rains")
    def generate_stream(self, messages, **more):
        yield "It rains"
optree.instrument()
with optree.session("lead"), optree.turn():
    Own().generate([])
    sys.stdout.buffer.write(cloudpickle.dumps(Own()))
"""


def test_a_class_with_hooks_can_be_pickled(tmp_path):
    """A model's class that a program defines itself can be sent to another process by cloudpickle, and works there."""
    run = functools.partial(subprocess.run, capture_output=True, check=True, cwd=ROOT, env={**os.environ, "OPTREE_BASE_DIR": str(tmp_path)})
    pickled = run([sys.executable, "-c", PICKLED]).stdout
    reading = "import sys, pickle; own = pickle.load(sys.stdin.buffer); print(own.generate([]).content, *own.generate_stream([]))"
    assert b"It rains It rains" == run([sys.executable, "-c", reading], input=pickled).stdout.strip()
