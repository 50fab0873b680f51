"""Programs on DSPy, as its documentation writes them, become whole trees, each call of a model once in its place."""

import asyncio
import os
import tempfile
import threading
from importlib.util import find_spec

import pytest

if find_spec("dspy") is None:
    pytest.skip("dspy is tried in an environment of its own: make test-frameworks", allow_module_level=True)
os.environ |= {"DSPY_CACHEDIR": os.environ.get("DSPY_CACHEDIR") or tempfile.mkdtemp(), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}

import dspy
from dspy.primitives.local_interpreter import LocalInterpreter
from dspy.utils.callback import BaseCallback

import optree
from optree._nodes import Tokens
from optree._tree import walk_sessions
from optree._values import decode
from optree.testing import capture
from tests.capture.conftest import with_hooks
from tests.capture.frameworks.documented_dspy import ANSWER, says
from tests.capture.frameworks.dspy_programs import (  # noqa: F401 - model_of_dspy is a fixture
    ASKS,
    LOOK_AND_TELL,
    MARKS,
    Outlook,
    forecaster,
    model_of_dspy,
    scripted,
)
from tests.capture.provider import Reply
from tests.capture.recordings import calls_of, ops_of, paths_of
from tests.capture.tools import broken, weather

pytestmark = MARKS
TELL = dspy.ChainOfThought("question -> answer")
PROGRAM = [says(reasoning="r", topic="rain"), *LOOK_AND_TELL]


@pytest.mark.captured("dspy", "modules", "tools", "sub-agents", added="one line", checks=("agents", "calls", "tokens"))
@pytest.mark.usefixtures("model")
def test_a_program_is_a_session(recording, provider):
    """A program's run is a session of its class's name, a module in it an op, and an agent in it an agent's session."""
    provider.says(*PROGRAM)
    assert "It rains" == Outlook()(question="Weather?").answer
    session = recording.tree.session
    assert ("Outlook", "ok", "It rains") == (session.agent_id, session.status, decode(session.final_report))
    [turn] = session.turns
    assert ({"user": "Weather?"}, "ok") == (turn.prompts, turn.status)
    window, topic, call, agent_op = turn.ops
    assert ("module topic", "system", window.path, "ChainOfThought") == (
        topic.name, topic.kind, topic.parent_op, topic.attributes["module"],
    )  # fmt: skip
    assert {"question": "Weather?"} == decode(topic.request.payload)
    assert {"reasoning": "r", "topic": "rain"} == decode(topic.response.payload)
    assert (topic.path, "session", "teller", None) == (call.parent_op, agent_op.kind, agent_op.name, agent_op.parent_op)
    [_, agent] = walk_sessions(recording.tree)
    assert ({"reasoning": "wet", "answer": "It rains"}, {"user": "rain"}) == (decode(agent.final_report), agent.turns[0].prompts)
    assert ["llm", "tool", "tool", "llm", "llm"] == [op.kind for op in agent.turns[0].ops]
    assert ["openai-compatible:gpt-5"] * 4 == [op.name for op in calls_of(recording)]
    assert [Tokens(8, 5, 4, 0, 17, 3)] * 4 == [op.accounting[0].tokens for op in calls_of(recording)]
    assert (4, 32) == (session.totals.llm_requests, session.totals.input_tokens)
    assert optree.current_session() is None


@pytest.mark.usefixtures("model")
def test_tools_have_arguments_and_results(recording, provider):
    """A tool is an op of the agent's, with arguments and result; what the program records in it is within it."""
    provider.says(*LOOK_AND_TELL)
    forecaster()(question="Weather?")
    [op], [inner] = ops_of(recording, "weather"), ops_of(recording, "thermometer")
    assert ({"city": "Athens"}, "rain in Athens", "ok") == (decode(op.request.payload), decode(op.response.payload), op.status)
    assert (["looking at Athens"], op.path) == ([log.message for log in op.logs], inner.parent_op)


@pytest.mark.usefixtures("model")
def test_a_tool_that_raises_failed(recording, provider):
    """A tool that raises is failed with its exception; the model is told, and the agent goes on."""
    provider.says(*LOOK_AND_TELL)
    assert "It rains" == forecaster(broken)(question="Weather?").answer
    [op] = ops_of(recording, "weather")
    assert ("failed", "ConnectionError: no thermometer in Athens", "network") == (op.status, op.error, op.attributes["error.type"])
    assert "ok" == recording.tree.session.status


async def _streamed(program):
    return [one async for one in dspy.streamify(program)(question="Weather?")][-1]


WAYS = {
    "acall": lambda program: asyncio.run(program.acall(question="Weather?")),
    "asyncify": lambda program: asyncio.run(dspy.asyncify(program)(question="Weather?")),
    "streamify": lambda program: asyncio.run(_streamed(program)),
    "plain streamify": lambda program: list(dspy.streamify(program, async_streaming=False)(question="Weather?"))[-1],
}


@pytest.mark.captured("dspy", "acall, asyncify, streamify", "tools", added="one line", checks=("agents", "calls"))
@pytest.mark.parametrize("way", WAYS)
def test_async(recording, way):
    """A program that is awaited, run in a thread, or streamed, is the same tree."""
    with dspy.context(lm=scripted({"reasoning": "r", "topic": "rain"}, *ASKS)):
        assert "It rains" == WAYS[way](Outlook()).answer
    assert ["Outlook", "Outlook->teller"] == paths_of(recording)
    session = recording.tree.session
    assert ("ok", 4, "It rains") == (session.status, session.totals.llm_requests, decode(session.final_report))
    [op], [inner] = ops_of(recording, "weather"), ops_of(recording, "thermometer")
    assert ("rain in Athens", op.path) == (decode(op.response.payload), inner.parent_op)
    assert optree.current_session() is None


def test_an_asynchronous_tool(recording):
    """A tool that is a coroutine has its result."""

    async def look(city: str) -> str:
        await asyncio.sleep(0)
        return f"rain in {city}"

    assert "rain in Athens" == asyncio.run(dspy.Tool(look, name="weather").acall(city="Athens"))
    assert ["rain in Athens"] == [decode(op.response.payload) for op in ops_of(recording, "weather")]


def test_tools_that_the_program_runs(recording):
    """Tool calls that a program has DSPy execute are ops: by functions it names, by tools, and by those around the call."""
    call = dspy.ToolCalls.ToolCall(name="weather", args={"city": "Athens"})
    missing = dspy.ToolCalls.ToolCall(name="sunshine", args={})
    with optree.session("lead"), optree.turn(user="Weather?"):
        assert ["rain in Athens"] * 4 == [
            call.execute(), call.execute({"weather": weather}), call.execute([dspy.Tool(weather)]),
            call.execute({"weather": dspy.Tool(weather).__call__}),
        ]  # fmt: skip
        with pytest.raises(RuntimeError, match="no thermometer"):
            call.execute({"weather": broken})
        with pytest.raises(ValueError, match="not found"):
            missing.execute()
    found = ops_of(recording, "weather")
    outer = [op for op in found if op.parent_op is None]
    assert [({"city": "Athens"}, status) for status in ("ok", "ok", "ok", "ok", "failed")] == [
        (decode(op.request.payload), op.status) for op in outer
    ]
    assert "ConnectionError: no thermometer in Athens" == outer[-1].error


@pytest.mark.captured("dspy", "ReAct", "sub-agents", added="one line", checks=("agents", "tools"))
def test_an_agent_that_is_a_tool(recording):
    """A program that a tool calls is an agent's session in the tool's op."""

    def ask(city: str) -> str:
        with dspy.context(lm=scripted({"reasoning": "r", "answer": "It rains"})):
            return TELL(question=city).answer

    with dspy.context(lm=scripted(*ASKS)):
        forecaster(ask)(question="Weather?")
    assert ["ReAct", "ReAct->ChainOfThought"] == paths_of(recording)
    [op], [inner] = ops_of(recording, "weather"), ops_of(recording, "ChainOfThought")
    assert (op.path, "It rains") == (inner.parent_op, decode(op.response.payload))


def test_what_modules_are_called(recording):
    """A module in a list is called by its place; attempts of one are ops, and what DSPy's own are made of is left out."""

    class Judges(dspy.Module):
        def __init__(self):
            self.judges = [dspy.Predict("answer -> good: bool") for _ in range(2)]
            best = dspy.ChainOfThought("question -> answer")
            self.best = dspy.BestOfN(best, N=2, reward_fn=lambda _asked, found: float(found.answer == "It rains"), threshold=1.0)

        def forward(self, question):
            self.best(question=question)
            return [judge(answer="It rains").good for judge in self.judges]

    model = scripted(
        {"reasoning": "r", "answer": "It snows"}, {"reasoning": "r", "answer": "It rains"}, {"good": "True"}, {"good": "False"}
    )
    with dspy.context(lm=model):
        assert [True, False] == Judges()("Weather?")
    session = recording.tree.session
    steps = [op for op in session.turns[0].ops if op.kind == "system"]
    assert ["module best", "module ChainOfThought", "module ChainOfThought", "module judges[0]", "module judges[1]"] == [
        op.name for op in steps
    ]
    assert [None, steps[0].path, steps[0].path, None, None] == [op.parent_op for op in steps]
    assert ({"user": "Weather?"}, [True, False]) == (session.turns[0].prompts, decode(session.final_report))


@pytest.mark.captured("dspy", "Parallel", "at once", added="one line", checks=("agents", "calls"))
def test_parallel(recording):
    """What runs in threads of DSPy's is in the place where it was called, each with its own call."""
    barrier = threading.Barrier(3, timeout=30)

    class Together(dspy.Module):
        def __init__(self):
            self.tell = dspy.Predict("question -> answer")

        def forward(self, question):
            barrier.wait()
            return self.tell(question=question)

    class All(dspy.Module):
        def __init__(self):
            self.one = Together()

        def forward(self, cities):
            pairs = [(self.one, {"question": city}) for city in cities]
            return [one.answer for one in dspy.Parallel(num_threads=3, disable_progress_bar=True)(pairs)]

    with dspy.context(lm=dspy.utils.DummyLM({city: {"answer": f"rain in {city}"} for city in ("Athens", "Rome", "Oslo")})):
        assert ["rain in Athens", "rain in Rome", "rain in Oslo"] == All()(cities=["Athens", "Rome", "Oslo"])
    ops = {op.path: op for op in ops_of(recording)}
    assert {"module one": 3, "module tell": 3, "dummy": 3} == {
        name: sum(op.name == name for op in ops.values()) for name in ("module one", "module tell", "dummy")
    }
    for call in calls_of(recording):
        tell = ops[call.parent_op]
        one = ops[tell.parent_op]
        assert ("module one", None) == (one.name, one.parent_op)
        assert decode(call.response.payload)["choices"][0]["message"]["content"].count(decode(one.request.payload)["question"])
    assert ["All"] == paths_of(recording)


def test_runs_at_once_stay_apart(recording):
    """Programs that run at once in tasks, and in threads of the program's, are sessions of their own."""

    async def both():
        with dspy.context(lm=dspy.utils.DummyLM({city: {"reasoning": "r", "answer": city} for city in ("Athens", "Rome")})):
            return await asyncio.gather(*(TELL.acall(question=city) for city in ("Athens", "Rome")))

    assert ["Athens", "Rome"] == [one.answer for one in asyncio.run(both())]
    barrier = threading.Barrier(2, timeout=30)

    def run(city):
        with dspy.context(lm=scripted({"reasoning": "r", "answer": city})):
            barrier.wait()
            TELL(question=city)

    running = [threading.Thread(target=run, args=(city,)) for city in ("Oslo", "Bonn")]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    found = {one.tree.session.turns[0].prompts["user"]: one.tree.session for one in recording.sessions}
    assert {"Athens", "Rome", "Oslo", "Bonn"} == set(found)
    assert [(1, "ok")] * 4 == [(one.totals.llm_requests, one.status) for one in found.values()]
    assert list(found) == [decode(one.final_report)["answer"] for one in found.values()]


@pytest.mark.captured("dspy", "Evaluate, optimizers", "sub-agents", added="one line", checks=("agents", "calls"))
def test_evaluations_and_optimizers(recording):
    """An evaluation, and an optimizer's work, are sessions with a session for each run; within a session they are ops."""
    examples = [dspy.Example(question=city, answer=city).with_inputs("question") for city in ("Athens", "Rome")]
    model = dspy.utils.DummyLM({one.question: {"reasoning": "r", "answer": one.answer} for one in examples})

    def is_right(example, found, _trace=None):
        return example.answer == found.answer

    evaluate = dspy.Evaluate(devset=examples, metric=is_right, num_threads=2)
    with dspy.context(lm=model):
        assert 100.0 == evaluate(TELL).score
        dspy.BootstrapFewShot(metric=is_right).compile(TELL, trainset=examples)
        with optree.session("lead"), optree.turn(user="Any good?"):
            evaluate(TELL)
            dspy.BootstrapFewShot(metric=is_right).compile(student=TELL, trainset=examples)
    evaluated, compiled, within = [one.tree.session for one in recording.sessions]
    assert ("Evaluate", "ok", {"score": 100.0}, 2) == (
        evaluated.agent_id, evaluated.status, {"score": decode(evaluated.final_report)}, evaluated.totals.llm_requests,
    )  # fmt: skip
    assert ["Evaluate->ChainOfThought"] * 2 == [one.call_path for one in walk_sessions(evaluated)][1:]
    assert ("BootstrapFewShot", "ok", 2) == (compiled.agent_id, compiled.status, compiled.totals.llm_requests)
    step, *runs, work = [op for op in within.turns[0].ops if op.parent_op is None or op.parent_op == "1.1"]
    assert ("compile BootstrapFewShot", "compile", {"program": "ChainOfThought", "examples": 2}, None) == (
        work.name, work.attributes["type"], decode(work.request.payload), work.response,
    )  # fmt: skip
    assert "evaluate" == step.attributes["type"]
    assert ("evaluate ChainOfThought", {"program": "ChainOfThought", "examples": 2}, {"score": 100.0}) == (
        step.name, decode(step.request.payload), decode(step.response.payload),
    )  # fmt: skip
    assert [step.path] * 2 == [op.parent_op for op in runs]


@pytest.mark.captured("dspy", "modules", "failed", added="one line", checks="calls")
def test_a_program_that_fails(recording):
    """A program that raises is failed with its exception, which the program gets; so is one whose answer cannot be read."""

    class Broken(dspy.Module):
        def forward(self):
            raise ValueError("fog")

    with pytest.raises(ValueError, match="fog"):
        Broken()()
    with dspy.context(lm=scripted(*[{"other": "x"}] * 2)), pytest.raises(Exception, match="Expected to find output fields"):
        TELL(question="Weather?")
    raised, unread = [one.tree.session for one in recording.sessions]
    assert ("Broken", "failed", "ValueError: fog") == (raised.agent_id, raised.status, raised.error)
    assert ("failed", ["ok", "ok"]) == (unread.status, [op.status for op in unread.turns[0].ops])
    assert unread.error.startswith("AdapterParseError: ")
    assert optree.current_session() is None


@pytest.mark.captured("dspy", "acall, streamify", "cancelled", added="one line", checks="calls")
def test_runs_that_are_cancelled(recording):
    """A program that is cancelled in a tool, or whose stream is left, is cancelled with what is open in it."""

    async def cancelling(run):
        begun = asyncio.Event()

        async def hold(city: str) -> str:
            begun.set()
            await asyncio.Event().wait()
            return city

        with dspy.context(lm=scripted(*ASKS)):
            running = asyncio.ensure_future(run(forecaster(hold)))
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        assert optree.current_session() is None

    async def read(program):
        async for _ in dspy.streamify(program, is_async_program=True)(question="Weather?"):
            pass

    asyncio.run(cancelling(lambda program: program.acall(question="Weather?")))
    asyncio.run(cancelling(read))
    assert ["cancelled", "cancelled"] == [one.tree.session.status for one in recording.sessions]
    assert ["cancelled", "cancelled"] == [op.status for one in recording.sessions for op in ops_of(one, "weather")]


def test_retrievers(recording, provider):
    """What is looked up is a tool's op, with the query and what was found."""
    np = pytest.importorskip("numpy")
    search = dspy.retrievers.Embeddings(["Athens is wet", "Rome is dry"], lambda texts: np.array([[1.0, len(one)] for one in texts]), k=1)

    class Lookup(dspy.Module):
        def forward(self, question):
            return search(question).passages

    provider.says(Reply({"topk": [{"long_text": "Oslo is cold"}]}))
    with optree.session("lead"):
        assert ["Oslo is cold"] == dspy.ColBERTv2(provider.url, post_requests=True)("Oslo", k=1, simplify=True)
    with dspy.context(rm=lambda query, k: [dspy.Prediction(long_text=f"{query} {k}")]):
        assert ["Rome is dry"] == Lookup()(question="Rome is dry")
        assert ["Athens 3"] == dspy.Retrieve(k=3)("Athens").passages
    [served], [op], [other] = (ops_of(one) for one in recording.sessions)
    assert ("tool", "ColBERTv2", {"query": "Oslo", "k": 1, "simplify": True}, ["Oslo is cold"]) == (
        served.kind, served.name, decode(served.request.payload), decode(served.response.payload),
    )  # fmt: skip
    assert ("tool", "Embeddings", {"query": "Rome is dry"}) == (op.kind, op.name, decode(op.request.payload))
    assert ["Rome is dry"] == decode(op.response.payload)["passages"]
    assert ("Retrieve", {"query": "Athens"}, {"passages": ["Athens 3"]}) == (
        other.name, decode(other.request.payload), decode(other.response.payload),
    )  # fmt: skip


def test_code_that_a_model_writes(recording):
    """Code that DSPy runs for a model is a tool's op, with what it printed; tools and models that it calls are in it."""
    code = "print(weather(city='Athens'), llm_query('Wet?'))"
    model = scripted({"reasoning": "r", "code": code}, {"answer": "yes"}, {"reasoning": "r", "code": "SUBMIT(answer='It rains')"})
    with dspy.context(lm=model):
        program = dspy.RLM("question -> answer", tools=[weather], interpreter_factory=LocalInterpreter)
        assert "It rains" == program(question="Weather?").answer
    first, second = ops_of(recording, "python")
    assert ({"code": code}, True) == (decode(first.request.payload), "rain in Athens" in str(decode(first.response.payload)))
    assert [first.path] == [op.parent_op for op in ops_of(recording, "weather")]
    assert [None, first.path, None] == [op.parent_op for op in calls_of(recording)]
    assert ("RLM", "ok", "ok") == (recording.tree.session.agent_id, second.status, recording.tree.session.status)


def test_code_that_cannot_be_run(recording):
    """Code for which DSPy finds no sandbox is a tool's op that failed."""
    with optree.session("lead"), pytest.raises(dspy.CodeInterpreterError):
        dspy.PythonInterpreter(deno_command=["no-such-deno"])("print(1)")
    assert [("python", {"code": "print(1)"}, "failed")] == [(op.name, decode(op.request.payload), op.status) for op in ops_of(recording)]


@pytest.mark.parametrize("kind", ["ReAct", "ReActV2", "CodeAct", "RLM"])
def test_agents_in_a_program(recording, kind):
    """A module that calls tools by itself is an agent's session, by the name that the program gives it, whatever it comes to."""

    class Asks(dspy.Module):
        def __init__(self):
            self.teller = getattr(dspy, kind)("question -> answer", tools=[weather])

        def forward(self, question):
            return self.teller(question=question)

    with pytest.raises(Exception, match=r"No LM|Deno"):  # the latter where that is not installed
        Asks()("Weather?")
    assert ["Asks", "Asks->teller"] == paths_of(recording)
    assert [("session", "failed")] == [(op.kind, op.status) for op in ops_of(recording, "teller")]


class Told(BaseCallback):
    """The program's own callback, which keeps what it is told."""

    def __init__(self):
        self.told = []

    def __getattribute__(self, name):
        if name.startswith("on_"):
            return lambda **told: self.told.append((name, *(type(told[one]).__name__ for one in ("instance", "outputs") if one in told)))
        return super().__getattribute__(name)


@pytest.mark.parametrize("way", ["configured", "none"])
def test_the_programs_own_callbacks(provider, way):
    """Callbacks of the program's are told the same with hooks and without, in the same order, and DSPy's settings are the program's."""
    provider.says(*PROGRAM)

    def result():
        provider.says(*PROGRAM)
        told = Told()
        callbacks = [told] if way == "configured" else []
        model = scripted({"reasoning": "r", "topic": "rain"}, *ASKS)
        with dspy.context(lm=model, callbacks=callbacks, track_usage=True):
            found = Outlook()(question="Weather?")
            assert callbacks == dspy.settings.callbacks == dspy.settings.get("callbacks")
        return found.answer, found.get_lm_usage(), told.told, [one["outputs"] for one in model.history]

    assert result() == with_hooks(result)


@pytest.mark.usefixtures("model")
def test_within_a_session_of_the_programs(recording, provider):
    """In a session and turn of the program's a program is a sub-agent, and the program's own place is found again behind it."""
    provider.says(ANSWER)
    with optree.session("lead") as session, optree.turn(user="Weather?") as turn:
        TELL(question="Weather?")
        with optree.tool("speaker"):
            pass
    assert ["lead", "lead->ChainOfThought"] == paths_of(recording)
    assert ["ChainOfThought", "speaker"] == [op.name for op in turn.node.ops]
    assert 1 == session.totals.llm_requests


def test_many_inputs(hooked):  # noqa: ARG001 - the hooks are there
    """What a program is called with is its turn, as JSON where it is more than one text, with objects' members in their places."""
    with capture() as recording, dspy.context(lm=scripted({"answer": "It rains"})):
        tell = dspy.Predict("history: dspy.History, question -> answer")
        history = dspy.History(messages=[{"question": "Where?", "answer": "Athens"}])
        model = dspy.settings.lm
        tell(question="Weather?", history=history, config={"temperature": 0.5}, demos=[], lm=model, signature=tell.signature)
    asked = decode(recording.tree.session.turns[0].prompts["user"].encode())
    assert ({"question", "history"}, "Weather?") == (set(asked), asked["question"])
    assert [{"question": "Where?", "answer": "Athens"}] == asked["history"]["messages"]


def test_arguments_of_any_name(recording):
    """Inputs, and arguments of tools, may have any name."""

    def tool(function: str, name: str) -> str:
        return f"{function} of {name}"

    class Named(dspy.Module):
        def forward(self, program, node, args):
            return self.inner(program=program, self_=node, kwargs=args)

        def __init__(self):
            self.inner = Inner()

    class Inner(dspy.Module):
        def forward(self, **fields):
            return dspy.Tool(tool)(function=fields["program"], name=fields["kwargs"])

    assert "a of c" == Named()("a", node="b", args="c")
    inner, op = recording.tree.session.turns[0].ops
    assert {"program": "a", "node": "b", "args": "c"} == decode(recording.tree.session.turns[0].prompts["user"].encode())
    assert {"program": "a", "self_": "b", "kwargs": "c"} == decode(inner.request.payload)
    assert ({"function": "a", "name": "c"}, "a of c") == (decode(op.request.payload), decode(op.response.payload))


class Router(dspy.Module):
    """A program that asks nobody."""

    def forward(self, grid):
        """Return a route."""
        return dspy.Prediction(route=str(len(grid)))


class Hostile:
    """An object whose members raise when they are asked for."""

    def __getattr__(self, name):
        raise RuntimeError(name)

    def __len__(self):
        return 1


CIRCLE = {}
CIRCLE["in"] = CIRCLE
CUT = {"in": {"in": {"in": {"in": {"in": {"$cycle": True}}}}}}


@pytest.mark.parametrize(
    ("grid", "expected"),
    [({(1, 2): "x"}, {"grid": {"(1, 2)": "x"}}), (CIRCLE, {"grid": CUT}), (Hostile(), {"$error", "$repr"})],
    ids=["keys", "circle", "hostile"],
)
def test_inputs_that_json_does_not_hold(recording, grid, expected):
    """A program that is given keys that are no texts, a circle, or an object whose members raise, is a session with what can be told."""
    assert "1" == Router()(grid=grid).route
    asked = decode(recording.tree.session.turns[0].prompts["user"].encode())
    assert asked == expected if isinstance(grid, dict) else expected & set(asked["grid"])


@pytest.mark.usefixtures("hooked")
@pytest.mark.parametrize("functions", [(dspy.Tool(weather),), "weather"], ids=["tuple", "text"])
def test_what_a_tool_is_not_found_in(functions):
    """What DSPy looks for no tool in raises what DSPy raises for that."""
    with pytest.raises(ValueError, match="Tool function 'weather' not found"):
        dspy.ToolCalls.ToolCall(name="weather", args={"city": "Athens"}).execute(functions)
