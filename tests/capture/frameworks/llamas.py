"""Programs on LlamaIndex as its documentation writes them, and models of the program's own."""

import asyncio

import pytest
from llama_index.core import Document, MockEmbedding, VectorStoreIndex
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ToolCallBlock
from llama_index.core.llms import ChatMessage, CompletionResponse, CustomLLM, LLMMetadata
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.llms.openai import OpenAI

import optree
from optree._capture.frameworks.llama_index import _SPANS
from tests.capture.provider import Reply, events
from tests.capture.sdk_calls import USAGE

MARKS = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # what pydantic says of LlamaIndex
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # its memories and clients are never closed
]
REFUSED = Reply({"error": {"message": "no such model"}}, status=404)
_CHUNK = {"id": "chat-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5-2026"}


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Have nothing of a run be known when that is over."""
    kept = (_SPANS.parents, _SPANS.runs, _SPANS.calls, _SPANS.going, _SPANS.late, _SPANS.written)
    before = [set(one) for one in kept]
    yield
    assert before == [set(one) for one in kept]


def asks_for(*calls):
    """Return a stream that asks for tools."""
    asked = [
        {"index": at, "id": f"call-{at}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for at, (name, arguments) in enumerate(calls)
    ]
    return events(
        *({**_CHUNK, "choices": [{"index": 0, "delta": {"role": "assistant", "content": None, "tool_calls": [one]}}]} for one in asked),
        {**_CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        {**_CHUNK, "choices": [], "usage": USAGE},
    )


TOOL_EVENTS = asks_for(("weather", '{"city": "Athens"}'))


def served_by(provider):
    """Return a model that the provider answers for."""
    return OpenAI(model="gpt-5", api_base=f"{provider.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(name="model")
def model_of_llama_index(provider):
    """Return the same."""
    return served_by(provider)


def call(tool, **arguments):
    """Return an answer that asks for a tool."""
    return ChatMessage(role="assistant", blocks=[ToolCallBlock(tool_call_id="call-1", tool_name=tool, tool_kwargs=arguments)])


def scripted(*says):
    """Return a model for agents that calls nobody, and says this."""
    left = [ChatMessage(role="assistant", content=one) if isinstance(one, str) else one for one in says]

    def answer(messages, **_more):
        said = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(said, BaseException):
            raise said
        return said(messages) if callable(said) else said

    return MockFunctionCallingLLM(is_chat_model=True, response_generator=answer)


class Own(CustomLLM):
    """A model of the program's own, as the documentation has it."""

    says: str = "It rains"

    @property
    def metadata(self):
        """What it is."""
        return LLMMetadata(model_name="own")

    @llm_completion_callback()
    def complete(self, prompt, formatted=False, **_more):  # noqa: ARG002, FBT002 - as LlamaIndex calls it
        """Say it."""
        return CompletionResponse(text=self.says, raw={"usage": {"prompt_tokens": 3, "completion_tokens": 2}})

    @llm_completion_callback()
    def stream_complete(self, prompt, formatted=False, **_more):  # noqa: ARG002, FBT002 - as above
        """Say it word by word."""

        def said():
            text = ""
            for word in self.says.split(" "):
                piece = f" {word}" if text else word
                text += piece
                yield CompletionResponse(text=text, delta=piece, raw={"usage": {"prompt_tokens": 3, "completion_tokens": 2}})

        return said()


def forecaster(model, *tools, **more):
    """Return an agent."""
    known = {"name": "forecaster", "description": "Tells the weather", "system_prompt": "You tell the weather."}
    return FunctionAgent(llm=model, tools=list(tools), **known | more)


def ask(workflow, question="Weather?", **more):
    """Run an agent, or several; return the text of the answer."""

    async def asking():
        before = optree.current_session()
        found = await workflow.run(user_msg=question, **more)
        assert before is optree.current_session()
        return str(found)

    return asyncio.run(asking())


def engine_of(model, **more):
    """Return what answers questions by one document."""
    documents = [Document(text="Athens is rainy", metadata={"page": 1})]
    return VectorStoreIndex.from_documents(documents, embed_model=MockEmbedding(embed_dim=2)).as_query_engine(llm=model, **more)
