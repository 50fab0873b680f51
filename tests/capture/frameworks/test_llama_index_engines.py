"""Query and chat engines of LlamaIndex: what they do is within their ops, which end with the answer, be it streamed."""

import asyncio
import threading
from importlib.util import find_spec

import pytest

if find_spec("llama_index") is None:
    pytest.skip("llama-index-core is tried in an environment of its own: make test-frameworks", allow_module_level=True)

from llama_index.core.base.base_selector import BaseSelector, SelectorResult, SingleSelection
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.query_engine import RouterQueryEngine
from llama_index.core.schema import QueryBundle
from llama_index.core.tools import QueryEngineTool
from pydantic import BaseModel

import optree
from optree._capture.calls.program import program_name
from optree._values import decode
from tests.capture.frameworks.llamas import (  # noqa: F401 - two are fixtures
    MARKS,
    Own,
    ask,
    call,
    engine_of,
    forecaster,
    model_of_llama_index,
    nothing_is_left,
    scripted,
)
from tests.capture.provider import EVENTS, Reply
from tests.capture.recordings import ops_of
from tests.capture.sdk_calls import CHAT, CHAT_EVENTS

pytestmark = MARKS


@pytest.mark.captured("llama-index-core", "query engines", "plain", "streamed", added="one line", checks=("calls", "answers", "tools"))
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("kind", ["http", "own"])
def test_a_query_engine(recording, provider, model, streaming, kind):
    """A query is an op with question and answer, in it what was retrieved and the call; it ends with a stream that is read."""
    provider.says(CHAT_EVENTS if streaming else CHAT)
    engine = engine_of(model if kind == "http" else Own(), streaming=streaming)
    with optree.session("lead") as session, optree.turn(user="Weather?"):
        assert "It rains" == str(engine.query("Weather?"))
        with optree.tool("speaker") as behind:
            pass
    query, retriever, answer = ops_of(recording)[:3]
    assert ("system", "RetrieverQueryEngine", {"query": "Weather?"}, "It rains") == (
        query.kind, query.name, decode(query.request.payload), decode(query.response.payload),
    )  # fmt: skip
    assert ("tool", "VectorIndexRetriever", {"query": "Weather?"}) == (retriever.kind, retriever.name, decode(retriever.request.payload))
    [found] = decode(retriever.response.payload)
    assert ({"text": "Athens is rainy", "metadata": {"page": 1}}, "query") == (
        {name: one for name, one in found.items() if name != "score"}, query.attributes["type"],
    )  # fmt: skip
    assert 0.0 <= found["score"] <= 1.0
    assert ("llm", [query.path] * 2, None) == (answer.kind, [retriever.parent_op, answer.parent_op], behind.node.parent_op)
    assert (1, 8 if kind == "http" else 3) == (session.totals.llm_requests, session.totals.input_tokens)


@pytest.mark.parametrize("kind", ["http", "own"])
def test_an_asynchronous_query(recording, provider, model, kind):
    """An awaited query is the same, with a stream that another task reads."""
    provider.says(CHAT_EVENTS)

    async def asking():
        answer = await engine_of(model if kind == "http" else Own(), streaming=True).aquery("Weather?")

        async def read():
            return "".join([piece async for piece in answer.async_response_gen()])

        return await asyncio.create_task(read())

    assert "It rains" == asyncio.run(asking())
    session = recording.tree.session
    assert (program_name(), "ok", "It rains") == (session.agent_id, session.status, decode(session.final_report))
    assert ({"user": "Weather?"}, ["tool", "llm"], 1) == (
        session.turns[0].prompts, [op.kind for op in session.turns[0].ops], session.totals.llm_requests,
    )  # fmt: skip


def test_a_stream_that_is_not_read_to_its_end(recording, provider, model):
    """An answer that the program reads in part is cancelled with its call; one that it does not read asked no model."""
    first, *rest = CHAT_EVENTS.pieces
    closed = threading.Event()
    provider.says(Reply(first, b"".join(rest), kind=EVENTS, hold=closed))
    for engine in (engine_of(model, streaming=True), engine_of(Own(), streaming=True)):
        answer = engine.query("Weather?")
        assert "It" == next(answer.response_gen).strip()
        answer.response_gen.close()
        engine.query("Weather?")
    closed.set()
    runs = [one.tree.session for one in recording.sessions]
    assert ["cancelled"] * 4 == [run.status for run in runs]
    assert [["cancelled"], [], ["cancelled"], []] == [[op.status for op in run.turns[0].ops if op.kind == "llm"] for run in runs]
    assert optree.current_session() is None


async def _chatted(chat, method):
    found = await getattr(chat, method)("Weather?")
    return "".join([piece async for piece in found.async_response_gen()]) if "stream" in method else str(found)


def chatted(chat, method):
    """Say something to a chat engine; return the text of the answer."""
    if method[0] == "a":
        return asyncio.run(_chatted(chat, method))
    found = getattr(chat, method)("Weather?")
    return "".join(found.response_gen) if "stream" in method else str(found)


@pytest.mark.parametrize("kind", ["http", "own"])
@pytest.mark.parametrize("method", ["chat", "stream_chat", "achat", "astream_chat"])
def test_a_chat_engine(recording, provider, model, method, kind):
    """What is said to a chat engine is the turn of a session, whose stream a thread reads, or a task."""
    provider.says(CHAT_EVENTS if "stream" in method else CHAT)
    index = engine_of(Own())._retriever._index
    chat = index.as_chat_engine(llm=model if kind == "http" else Own(), chat_mode="context")
    assert "It rains" == chatted(chat, method)
    session = recording.tree.session
    assert (program_name(), {"user": "Weather?"}, "ok", "It rains") == (
        session.agent_id, session.turns[0].prompts, session.status, decode(session.final_report),
    )  # fmt: skip
    assert (["tool", "llm"], 1) == ([op.kind for op in session.turns[0].ops], session.totals.llm_requests)


def test_between_the_pieces_of_an_answer(recording):
    """What the program does while it has a piece of an answer is beside the query, in which the pieces are made."""
    with optree.session("lead"):
        for _ in engine_of(Own(), streaming=True).query("Weather?").response_gen:
            with optree.tool("speaker"):
                pass
    [query], [call] = ops_of(recording, "RetrieverQueryEngine"), ops_of(recording, "own")
    assert (query.path, [None, None]) == (call.parent_op, [op.parent_op for op in ops_of(recording, "speaker")])


def test_between_the_pieces_outside_of_all(recording):
    """Outside of all sessions the query's own is none of the program's while that has a piece of an answer."""
    answer = engine_of(Own(), streaming=True).query("Weather?")
    assert [None, None, None] == [optree.current_session(), *(optree.current_session() for _ in answer.response_gen)]
    session = recording.tree.session
    assert ("ok", "It rains", ["tool", "llm"]) == (session.status, decode(session.final_report), [op.kind for op in session.turns[0].ops])


def test_a_chat_in_a_session(recording):
    """Within a session a chat is an op, with what is said and the answer."""
    with optree.session("lead"):
        engine_of(Own())._retriever._index.as_chat_engine(llm=Own(), chat_mode="context").chat("Weather?")
    chat = ops_of(recording)[0]
    assert ("system", "chat", {"query": "Weather?"}, "It rains") == (
        chat.kind, chat.attributes["type"], decode(chat.request.payload), decode(chat.response.payload),
    )  # fmt: skip


def test_a_query_that_is_no_text(recording):
    """A query may be an object of LlamaIndex's, and its answer one of the program's type."""

    class Forecast(BaseModel):
        rain: bool

    engine = engine_of(scripted(call("Forecast", rain=True)), output_cls=Forecast)
    with optree.session("lead"):
        assert engine.query(QueryBundle("Weather?")).response.rain
    query = ops_of(recording, "RetrieverQueryEngine")[0]
    assert ({"query": "Weather?"}, {"rain": True}) == (decode(query.request.payload), decode(query.response.payload))


@pytest.mark.parametrize("method", ["query", "aquery"])
def test_engines_in_engines(recording, method):
    """What an engine has another one answer is in its op, beside what sorts out what was found."""
    inner = engine_of(Own(), node_postprocessors=[SimilarityPostprocessor(similarity_cutoff=9.0)])
    router = RouterQueryEngine.from_defaults(
        [QueryEngineTool.from_defaults(inner, name="almanac", description="Knows")], llm=Own(), selector=First()
    )
    with optree.session("lead"):
        found = getattr(router, method)("Weather?")
        assert "Empty Response" == str(asyncio.run(found) if method == "aquery" else found)
    assert [
        ("RouterQueryEngine", None),
        ("RetrieverQueryEngine", "1.1"),
        ("VectorIndexRetriever", "1.2"),
        ("SimilarityPostprocessor", "1.2"),
    ] == [(op.name, op.parent_op) for op in ops_of(recording)]
    [sorts_out] = ops_of(recording, "SimilarityPostprocessor")
    assert ("postprocessor", []) == (sorts_out.attributes["type"], decode(sorts_out.response.payload))


class First(BaseSelector):
    """Choose the first engine."""

    def _select(self, choices, query):  # noqa: ARG002 - as it is called
        return SelectorResult(selections=[SingleSelection(index=0, reason="It is the first")])

    async def _aselect(self, choices, query):
        return self._select(choices, query)

    def _get_prompts(self):
        return {}

    def _update_prompts(self, prompts):
        """There are none."""


def test_an_engine_as_a_tool(recording):
    """A query engine that an agent has as a tool is in the op of that."""
    tool = QueryEngineTool.from_defaults(engine_of(Own()), name="almanac", description="Knows")
    assert "It rains" == ask(forecaster(scripted(call("almanac", input="Weather?"), "It rains"), tool))
    [op], [query] = ops_of(recording, "almanac"), ops_of(recording, "RetrieverQueryEngine")
    assert ({"input": "Weather?"}, "It rains", op.path) == (decode(op.request.payload), decode(op.response.payload), query.parent_op)
