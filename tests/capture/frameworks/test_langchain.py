"""Programs on LangChain and LangGraph, as their documentation writes them, become whole trees, each call of a model once in its place."""

import asyncio
import operator
from typing import Annotated, TypedDict

import pytest

pytest.importorskip("langgraph", reason="it is not there for this Python")

import openai
from langchain_core.documents import Document
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_core.tools import ToolException, tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, Send, interrupt
from msgspec import UNSET

import optree
from optree._capture import instrument, uninstrument
from optree._capture.calls.program import program_name
from optree._nodes import Tokens
from optree._records import SessionEnd
from optree._tree import walk_ops, walk_sessions
from optree._values import decode
from optree.testing import capture
from tests.capture.conftest import outcome, survives, with_hooks
from tests.capture.provider import Reply
from tests.capture.recordings import calls_of, ops_of
from tests.capture.sdk_calls import CHAT, CHAT_EVENTS, CHAT_TOOL

REFUSED = Reply({"error": {"message": "no such model"}}, status=404)
SPENT = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}


@tool
def weather(city: str) -> str:
    """Tell the weather."""
    if (op := optree.current()) is not None:
        op.log(f"looking at {city}")
    with optree.tool("thermometer"):
        return f"rain in {city}"


@tool
def broken(city: str) -> str:
    """Do nothing good."""
    raise ValueError(f"no thermometer in {city}")


@pytest.fixture
def model(provider):
    """Return a model that the provider answers for."""
    with openai.DefaultHttpxClient() as client:
        yield ChatOpenAI(model="gpt-5", base_url=f"{provider.url}/v1", api_key="none", max_retries=0, http_client=client)


def forecaster(model, *tools, **more):
    """Return a graph of a model and its tools, as the documentation has it."""

    def agent(state: MessagesState):
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("agent", agent)
    graph.add_node("tools", ToolNode(list(tools)))
    graph.add_edge(START, "agent")
    graph.add_conditional_edges("agent", tools_condition)
    graph.add_edge("tools", "agent")
    return graph.compile(name="forecaster", **more)


def ask(graph, question="Weather?", **more):
    """Ask a graph."""
    return graph.invoke({"messages": [("user", question)]}, **more)["messages"][-1].content


@pytest.mark.captured("langgraph", "graphs", "tools", added="one line", checks=("agents", "calls", "tokens"))
def test_a_graph_is_a_session(recording, provider, model):
    """A graph's run is a session of its name, with the question as turn and the answer as report; nodes, tools and calls are within."""
    provider.says(CHAT_TOOL, CHAT)
    assert "It rains" == ask(forecaster(model, weather))
    session = recording.tree.session
    assert ("forecaster", "ok", "It rains") == (session.agent_id, session.status, decode(session.final_report))
    assert [SessionEnd] == [type(record) for record in recording.records if getattr(record, "final_report", UNSET) is not UNSET]
    [turn] = session.turns
    assert ({"user": "Weather?"}, "ok") == (turn.prompts, turn.status)
    nodes = [op for op in turn.ops if op.attributes.get("type") == "node"]
    assert [("agent", 1), ("tools", 2), ("agent", 3)] == [(op.name, op.attributes["step"]) for op in nodes]
    calls = calls_of(recording)
    assert [nodes[0].path, nodes[2].path] == [op.parent_op for op in calls]
    assert [Tokens(8, 5, 4, 0, 17, 3)] * 2 == [op.accounting[0].tokens for op in calls]
    assert (2, 1, 16) == (session.totals.llm_requests, session.totals.tools_run - 1, session.totals.input_tokens)


def test_tools_have_arguments_and_results(recording, provider, model):
    """A tool is an op of its node, with arguments and result; what the program records in it is within it."""
    provider.says(CHAT_TOOL, CHAT)
    ask(forecaster(model, weather))
    [op], [inner] = ops_of(recording, "weather"), ops_of(recording, "thermometer")
    assert ({"city": "Athens"}, "rain in Athens", "ok") == (decode(op.request.payload), decode(op.response.payload), op.status)
    assert (["looking at Athens"], op.path) == ([log.message for log in op.logs], inner.parent_op)


def test_a_tool_that_raises_failed(recording, provider, model):
    """A tool that raises is failed with its exception, and so is what it ended; the program gets the exception."""
    provider.says(CHAT_TOOL)
    renamed = broken.model_copy(update={"name": "weather"})
    with pytest.raises(ValueError, match="no thermometer in Athens"):
        ask(forecaster(model, renamed))
    [op] = ops_of(recording, "weather")
    assert ("failed", "ValueError: no thermometer in Athens", "invalid") == (op.status, op.error, op.attributes["error.type"])
    assert ("failed", op.error) == (recording.tree.session.status, recording.tree.session.error)


@pytest.mark.parametrize("content", [True, False])
def test_a_tool_whose_exception_the_model_is_told(recording, provider, model, content):
    """A tool whose exception becomes what the model is told failed with that text, which is content; the graph goes on."""
    optree.configure(content=content)
    provider.says(CHAT_TOOL, CHAT)

    @tool
    def weather(city: str) -> str:
        """Do nothing good."""
        raise ToolException(f"{city}: connection refused")

    weather.handle_tool_error = True
    ask(forecaster(model, weather))
    [op] = ops_of(recording, "weather")
    told = "Athens: connection refused" if content else "[not recorded]"
    assert ("failed", f"tool_error: {told}", "network") == (op.status, op.error, op.attributes["error.type"])
    assert (told, "ok") == (decode(op.response.payload), recording.tree.session.status)


def test_async(recording, provider):
    """A graph that is awaited is the same tree."""
    provider.says(CHAT_TOOL, CHAT)

    async def asking():
        async with openai.DefaultAsyncHttpxClient() as client:
            model = ChatOpenAI(model="gpt-5", base_url=f"{provider.url}/v1", api_key="none", max_retries=0, http_async_client=client)

            async def agent(state: MessagesState):
                return {"messages": [await model.ainvoke(state["messages"])]}

            graph = StateGraph(MessagesState)
            graph.add_node("agent", agent)
            graph.add_node("tools", ToolNode([weather]))
            graph.add_edge(START, "agent")
            graph.add_conditional_edges("agent", tools_condition)
            graph.add_edge("tools", "agent")
            found = await graph.compile(name="forecaster").ainvoke({"messages": [("user", "Weather?")]})
            assert optree.current_session() is None
            return found["messages"][-1].content

    assert "It rains" == asyncio.run(asking())
    assert ("forecaster", "ok", 2) == (
        recording.tree.session.agent_id, recording.tree.session.status, recording.tree.session.totals.llm_requests,
    )  # fmt: skip
    [op], [inner] = ops_of(recording, "weather"), ops_of(recording, "thermometer")
    assert ("rain in Athens", op.path) == (decode(op.response.payload), inner.parent_op)


@pytest.mark.captured("langgraph", "graphs", "streamed", added="one line", checks=("agents", "calls"))
@pytest.mark.parametrize("mode", ["values", "updates", "messages"])
def test_a_streamed_graph(recording, provider, model, mode):
    """A graph whose stream the program reads is the same tree; with its messages streamed, so is the answer."""
    provider.says(CHAT_EVENTS if mode == "messages" else CHAT)
    for _ in forecaster(model, weather).stream({"messages": [("user", "Weather?")]}, stream_mode=mode):
        pass
    [call] = calls_of(recording)
    assert ("forecaster", "ok", "ok") == (recording.tree.session.agent_id, recording.tree.session.status, call.status)
    assert b"It rains" in bytes(call.response.payload)
    assert 1 == recording.tree.session.totals.llm_requests
    assert optree.current_session() is None


@pytest.mark.captured("langgraph", "graphs", "streamed", "cancelled", added="one line", checks="agents")
def test_a_stream_that_is_left(recording, provider, model):
    """A graph whose stream the program does not read to its end is cancelled, and nothing of it stays current."""
    provider.says(CHAT_TOOL, CHAT)
    stream = forecaster(model, weather).stream({"messages": [("user", "Weather?")]})
    next(stream)
    stream.close()
    assert optree.current_session() is None
    assert "cancelled" == recording.tree.session.status


def test_a_chain(recording, provider, model):
    """A chain outside of all sessions is one of the program's name, with its steps, and what it came to."""
    provider.says(CHAT)
    chain = ChatPromptTemplate.from_template("Weather in {city}?") | model | StrOutputParser()
    assert "It rains" == chain.invoke({"city": "Athens"})
    session = recording.tree.session
    assert (program_name(), "ok", "It rains") == (session.agent_id, session.status, decode(session.final_report))
    assert {"user": "Athens"} == session.turns[0].prompts
    assert ["ChatPromptTemplate", "StrOutputParser"] == sorted(op.name for op in ops_of(recording) if op.kind == "system")
    assert 1 == len(calls_of(recording))


@pytest.mark.captured("langchain-core", "chains", "streamed", added="one line", checks="calls")
def test_a_chain_that_is_streamed(recording, provider, model):
    """A chain whose stream the program reads is one session too, with its call once; what the program records meanwhile is not lost."""
    provider.says(CHAT_EVENTS)
    chain = ChatPromptTemplate.from_template("Weather in {city}?") | model | StrOutputParser()
    said = []
    for text in chain.stream({"city": "Athens"}):
        said.append(text)
        with optree.tool("speaker"):
            pass
    assert "It rains" == "".join(said)
    session = recording.tree.session
    assert ("ok", 1, len(said)) == (session.status, session.totals.llm_requests, session.totals.tools_run)
    assert optree.current_session() is None


def test_within_a_session_of_the_programs(recording, provider, model):
    """In a session of the program's a graph is a sub-agent, and a chain is an op."""
    provider.says(CHAT)
    chain = ChatPromptTemplate.from_template("Weather in {city}?") | model
    with optree.session("lead") as session, optree.turn(user="Weather?"):
        ask(forecaster(model, weather))
        chain.invoke({"city": "Athens"})
    assert ["lead->forecaster"] == [one.call_path for one in walk_sessions(recording.tree) if one.path]
    assert [("session", "forecaster"), ("system", "RunnableSequence")] == [
        (op.kind, op.name) for op in session.tree.session.turns[0].ops if op.parent_op is None
    ]
    assert 2 == session.totals.llm_requests


def test_a_model_alone(recording, provider, model):
    """A model that is called without a chain is the op that the wire records, in a turn of what was asked, and no other."""
    provider.says(CHAT)
    with optree.session("lead"), optree.turn(user="Weather?"):
        model.invoke("Weather?")
    assert ["llm"] == [op.kind for op in ops_of(recording)]
    assert [{"role": "user", "content": "Weather?"}] == recording.tree.pool.resolve(decode(calls_of(recording)[0].request.payload))[
        "messages"
    ]


@pytest.mark.captured("langchain-core", "chains", "at once", added="one line", checks="calls")
def test_branches_at_once(recording, provider, model):
    """The branches of a parallel step are siblings of their names, each with its own call."""
    provider.says(CHAT)
    names = ["first", "second", "third"]
    both = RunnableParallel({name: ChatPromptTemplate.from_template(f"{name} {{city}}?") | model for name in names})
    with optree.session("lead") as session, optree.turn(user="Weather?"):
        both.invoke({"city": "Athens"})
    branches = {op.path: op.name for op in ops_of(recording, *names)}
    assert names == sorted(branches.values())
    asked = {}
    for op in calls_of(recording):
        [message] = recording.tree.pool.resolve(decode(op.request.payload))["messages"]
        asked[branches[op.parent_op]] = message["content"]
    assert {name: f"{name} Athens?" for name in names} == asked
    assert 3 == session.totals.llm_requests


def test_a_batch(recording, provider, model):
    """Each input of a batch is a run of its own, with its own call in it."""
    provider.says(CHAT)
    chain = ChatPromptTemplate.from_template("{city}?") | model
    with optree.session("lead"), optree.turn(user="Weather?"):
        chain.batch([{"city": city} for city in ("Athens", "Rome", "Oslo")])
    runs = [op.path for op in ops_of(recording, "RunnableSequence")]
    assert [None] * 3 == [op.parent_op for op in ops_of(recording, "RunnableSequence")]
    assert sorted(runs) == sorted(op.parent_op for op in calls_of(recording))


class Cities(TypedDict):
    """What the graph of cities is about."""

    said: Annotated[list, operator.add]


@pytest.mark.captured("langgraph", "graphs", "at once", added="one line", checks="calls")
def test_nodes_at_once(recording, provider, model):
    """Nodes that run at once are siblings, each with its own call and its own step."""
    provider.says(CHAT)
    graph = StateGraph(Cities)
    graph.add_node("look", lambda city: {"said": [model.invoke(city).content]})
    graph.add_conditional_edges(START, lambda _state: [Send("look", city) for city in ("Athens", "Rome", "Oslo")], ["look"])
    graph.add_edge("look", END)
    assert ["It rains"] * 3 == graph.compile(name="cities").invoke({"said": []})["said"]
    nodes = ops_of(recording, "look")
    assert sorted(op.path for op in nodes) == sorted(op.parent_op for op in calls_of(recording))
    assert 3 == recording.tree.session.totals.llm_requests


@pytest.mark.captured("langgraph", "graphs", "sub-agents", added="one line", checks=("agents", "calls"))
def test_a_graph_within_a_graph(recording, provider, model):
    """A graph that is a node of another one, and one that a node calls, are sub-agents' sessions; none is taken for its own caller."""
    provider.says(CHAT)
    inner = forecaster(model, weather)
    unnamed = StateGraph(MessagesState)
    unnamed.add_node("inner", inner)
    unnamed.add_node("other", lambda state: {"messages": forecaster(model, weather).invoke(state)["messages"][-1:]})
    unnamed.add_edge(START, "inner")
    unnamed.add_edge("inner", "other")
    nested = StateGraph(MessagesState)
    nested.add_node("both", unnamed.compile())
    nested.add_edge(START, "both")
    ask(nested.compile())
    paths = [session.call_path for session in walk_sessions(recording.tree)]
    assert ["LangGraph", "LangGraph->both", *["LangGraph->both->forecaster"] * 2] == paths
    assert 2 == recording.tree.session.totals.llm_requests


def test_an_interrupt_is_no_error(recording):
    """A graph that stops for a person, and its node, are ok; to go on with it is another run, with what the person said as its turn."""
    graph = StateGraph(Cities)
    graph.add_node("check", lambda _state: {"said": [interrupt("really?")]})
    graph.add_edge(START, "check")
    agent = graph.compile(name="careful", checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "1"}}
    with optree.session("lead"):
        agent.invoke({"said": []}, config)
        assert ["yes"] == agent.invoke(Command(resume="yes"), config)["said"]
    runs = [session for session in walk_sessions(recording.tree) if session.path]
    assert [("careful", "ok"), ("careful", "ok")] == [(run.agent_id, run.status) for run in runs]
    assert "yes" == runs[1].turns[0].prompts["user"]
    assert ["ok", "ok"] == [op.status for op in ops_of(recording, "check")]


@pytest.mark.captured("langchain-core", "chains without a model", "retries", added="one line", checks="calls")
def test_retries_and_fallbacks(recording):
    """Each attempt of a step that is retried is an op, those that failed with their errors; so is what is fallen back from."""
    tried = []

    def unsteady(_asked):
        tried.append(1)
        if len(tried) < 3:
            raise ConnectionError("try again")
        return "It rains"

    def never(_asked):
        raise ValueError("never")

    with optree.session("lead"):
        step = RunnableLambda(unsteady).with_retry(wait_exponential_jitter=False, stop_after_attempt=5)
        assert "It rains" == step.invoke("Weather?")
        assert "well" == RunnableLambda(never).with_fallbacks([RunnableLambda(lambda _asked: "well")]).invoke("Weather?")
    attempts = ops_of(recording, "unsteady")
    assert ["failed", "failed", "ok"] == [op.status for op in attempts][-3:]
    assert ["ValueError: never"] == [op.error for op in ops_of(recording, "never")]


def test_a_model_that_is_not_on_the_wire(recording):
    """A model that calls nobody has an op of what its callbacks tell: messages, answer and tokens, once; its stream too."""
    says = [AIMessage("It rains", usage_metadata=SPENT), AIMessage("It rains again", usage_metadata=SPENT)]
    model = GenericFakeChatModel(messages=iter(says))
    with optree.session("lead") as session, optree.turn(user="Weather?"):
        assert "It rains" == model.invoke("Weather?").content
        assert "It rains again" == "".join(chunk.content for chunk in model.stream("And now?"))
    first, second = calls_of(recording)
    assert ("genericfakechatmodel", [{"role": "user", "content": "Weather?"}]) == (
        first.attributes["provider"], recording.tree.pool.resolve(decode(first.request.payload))["messages"],
    )  # fmt: skip
    assert b"It rains" in bytes(first.response.payload)
    assert b"It rains again" in bytes(second.response.payload)
    assert (3, 2) == (first.accounting[0].tokens.input_tokens, first.accounting[0].tokens.output_tokens)
    assert 2 == session.totals.llm_requests


def test_a_model_in_an_op_of_the_programs(recording):
    """In an open llm op of the program's, such a call is that op, and counts once."""
    model = GenericFakeChatModel(messages=iter([AIMessage("It rains", usage_metadata=SPENT)]))
    with optree.session("lead") as session, optree.turn(user="Weather?"), optree.llm("planner"):
        model.invoke("Weather?")
    [op] = ops_of(recording)
    assert ("planner", 1, 3) == (op.name, session.totals.llm_requests, session.totals.input_tokens)
    assert b"It rains" in bytes(op.response.payload)


@pytest.mark.captured("langgraph", "graphs", "failed", added="one line", checks="calls")
def test_a_model_that_fails(recording, provider, model):
    """A refused call is one failed op, and the program gets its client's exception."""
    provider.says(REFUSED)
    with pytest.raises(openai.NotFoundError):
        ask(forecaster(model, weather))
    assert ["failed"] == [op.status for op in calls_of(recording)]
    assert "failed" == recording.tree.session.status
    assert "NotFoundError" in recording.tree.session.error


def test_a_retriever(recording):
    """A retriever is a tool's op, with the query and the documents."""

    class Shelf(BaseRetriever):
        def _get_relevant_documents(self, query, *, run_manager):  # noqa: ARG002 - as it is called
            return [Document(f"about {query}")]

    with optree.session("lead"):
        Shelf().invoke("rain")
    [op] = ops_of(recording)
    assert ("tool", "Shelf", {"query": "rain"}) == (op.kind, op.name, decode(op.request.payload))
    assert b"about rain" in bytes(op.response.payload)


@pytest.mark.captured("langchain-core", "models and tools", "tools", added="one line", checks="calls")
def test_a_loop_of_the_programs_own(recording, provider, model):
    """A program that calls model and tools itself, without a session, has one, with the tool in the turn that asked for it."""
    provider.says(CHAT_TOOL, CHAT)
    bound = model.bind_tools([weather])
    messages = [("user", "Weather?"), bound.invoke("Weather?")]
    messages += [weather.invoke(call) for call in messages[-1].tool_calls]
    assert isinstance(messages[-1], ToolMessage)
    assert "It rains" == bound.invoke(messages).content
    [turn] = recording.tree.session.turns
    assert ["llm", "tool", "tool", "llm"] == [op.kind for op in turn.ops]


CASES = {"plain": [CHAT], "tools": [CHAT_TOOL, CHAT], "refused": [REFUSED], "nonsense": [Reply(b"{")], "broken off": [Reply(b"{", short=9)]}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tools", [weather, broken.model_copy(update={"name": "weather"})], ids=["weather", "broken"])
def test_the_program_sees_no_difference(provider, model, case, tools):
    """What a program gets, returned or raised, and what the provider is sent, is the same with the hooks and without."""

    def result():
        provider.requests.clear()
        provider.says(*CASES[case])
        return outcome(lambda: ask(forecaster(model, tools))), [path for path, _ in provider.requests]

    assert result() == with_hooks(result)


def test_a_fault_of_ours_is_none_of_the_programs(recording, provider, model, monkeypatch):
    """A handler that raises leaves the run as it is, and calls are recorded."""
    provider.says(CHAT_TOOL, CHAT)
    survives("optree._capture.frameworks.langchain._RUNS.above", recording, monkeypatch, lambda: ask(forecaster(model, weather)))


def test_uninstrumented_nothing_is_recorded(provider, model):
    """Once the hooks are taken out nothing is recorded; put in again, each call is recorded once."""
    provider.says(CHAT)
    instrument()
    uninstrument()
    with capture() as recording:
        ask(forecaster(model, weather))
        assert not recording.records
        instrument()
        instrument()
        ask(forecaster(model, weather))
        uninstrument()
    assert 1 == recording.tree.session.totals.llm_requests


PROGRAM = """
import os, signal, sys
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

@tool
def weather(city: str) -> str:
    "Tell the weather."
    import optree
    print(optree.flush(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

model = ChatOpenAI(model="gpt-5", base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0).bind_tools([weather])
graph = StateGraph(MessagesState)
graph.add_node("agent", lambda state: {"messages": [model.invoke(state["messages"])]})
graph.add_node("tools", ToolNode([weather]))
graph.add_edge(START, "agent")
graph.add_conditional_edges("agent", tools_condition)
print(graph.compile(name="forecaster").invoke({"messages": [("user", "Weather?")]}))
"""


@pytest.mark.captured("langgraph", "graphs", "tools", "killed", added="--auto", checks=("agents", "calls"))
def test_a_kill_keeps_the_tree(provider, killed):
    """A program that does not name optree and is killed in a tool leaves the same tree, with what was open not ended."""
    provider.says(CHAT_TOOL)
    session = killed(PROGRAM)
    assert ("forecaster", None, {"user": "Weather?"}) == (session.agent_id, session.ended_at, session.turns[0].prompts)
    ops = {op.name: op for _, _, op in walk_ops(session)}
    assert ({"city": "Athens"}, None) == (decode(ops["weather"].request.payload), ops["weather"].ended_at)
    assert (ops["tools"].path, None) == (ops["weather"].parent_op, ops["tools"].ended_at)
    assert (1, 8) == (session.totals.llm_requests, session.totals.input_tokens)
