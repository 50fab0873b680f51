"""Programs on Strands Agents, with models that are scripted: what its tests run. Imported only where it is installed."""

import asyncio
import json

from pydantic import BaseModel
from strands import Agent, tool
from strands.models import Model
from strands.models.openai import OpenAIModel
from strands.multiagent import GraphBuilder

from optree._tree import walk_sessions
from tests.capture import tools
from tests.capture.provider import events
from tests.capture.recordings import ops_of
from tests.capture.sdk_calls import USAGE

_CHUNK = {"id": "chat-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5-2026"}


def streamed(delta, reason="stop"):
    """Return an answer of OpenAI's chat as a stream."""
    choice = {"index": 0, "delta": {"role": "assistant", "content": None} | delta, "finish_reason": None}
    end = {"index": 0, "delta": {}, "finish_reason": reason}
    return events(_CHUNK | {"choices": [choice]}, _CHUNK | {"choices": [end]}, _CHUNK | {"choices": [], "usage": USAGE})


def says(text):
    """Return an answer that is a text."""
    return streamed({"content": text})


def asks(*tools):
    """Return an answer that asks for tools, each by name and arguments."""
    told = [
        {"index": at, "id": f"call-{at}", "type": "function", "function": {"name": name, "arguments": json.dumps(sent)}}
        for at, (name, sent) in enumerate(tools)
    ]
    return streamed({"tool_calls": told}, "tool_calls")


ASKS, RAINS = asks(("weather", {"city": "Athens"})), says("It rains")


def served_by(provider, **more):
    """Return a model that the provider answers for."""
    return OpenAIModel(client_args={"base_url": f"{provider.url}/v1", "api_key": "none", "max_retries": 0, **more}, model_id="gpt-5")


class Scripted(Model):
    """A model that calls nobody, as Strands' documentation has one of the program's own."""

    def __init__(self, *answers, usage=None, **config):
        self.answers, self.config = list(answers), {"model_id": "parrot-1", "temperature": 0.5, **config}
        self.usage = usage or {"inputTokens": 12, "outputTokens": 2, "totalTokens": 14}

    def update_config(self, **config):
        """Change it."""
        self.config.update(config)

    def get_config(self):
        """Return it."""
        return self.config

    async def structured_output(self, output_model, prompt, system_prompt=None, **more):  # noqa: ARG002 - as Strands calls it
        """Give an output."""
        yield {"output": output_model(**self.answers.pop(0))}

    async def stream(self, messages, tool_specs=None, system_prompt=None, **more):  # noqa: ARG002 - as above
        """Say what is next, the last thing again and again: a text, or calls of tools by name and arguments."""
        said = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        said = await said(messages) if callable(said) else said
        if isinstance(said, BaseException):
            raise said
        yield {"messageStart": {"role": "assistant"}}
        for at, one in enumerate([said] if isinstance(said, str) else said):
            for event in _text(one) if isinstance(one, str) else _call(at, *one):
                yield event
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if isinstance(said, str) else "tool_use"}}
        yield {"metadata": {"usage": self.usage, "metrics": {"latencyMs": 1}}}


def _text(said):
    yield {"contentBlockStart": {"start": {}}}
    thought, _, rest = said.rpartition("</think>")
    if thought:
        yield {"contentBlockDelta": {"delta": {"reasoningContent": {"text": thought}}}}
        yield {"contentBlockStop": {}}
        yield {"contentBlockStart": {"start": {}}}
    for piece in (rest[:3], rest[3:]):
        yield {"contentBlockDelta": {"delta": {"text": piece}}}


def _call(at, name, sent):
    yield {"contentBlockStart": {"start": {"toolUse": {"toolUseId": f"call-{at}", "name": name}}}}
    yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(sent)}}}}


CALL = ("weather", {"city": "Athens"})


weather, broken = tool(tools.weather), tool(tools.broken)


class Forecast(BaseModel):
    """The weather."""

    rain: bool


def agent(model, *tools, name="forecaster", **more):
    """Return an agent that prints nothing."""
    return Agent(model=model, tools=list(tools), name=name, callback_handler=None, **more)


def graph_of(nodes, edges=(), **more):
    """Return a graph of agents by name, each a model or a node's executor."""
    builder = GraphBuilder()
    for name, one in nodes.items():
        builder.add_node(agent(one, name=name) if isinstance(one, Model) else one, name)
    for pair in edges:
        builder.add_edge(*pair)
    for name in nodes.keys() - {target for _, target in edges}:
        builder.set_entry_point(name)
    for setting, value in more.items():
        getattr(builder, setting)(value)
    return builder.set_max_node_executions(20).build()


async def texts(run):
    """Return the texts of a stream's events."""
    return [event["data"] async for event in run if "data" in event]


def ask(made, question="Weather?", way="__call__"):
    """Run an agent, a graph or a swarm, in one of the ways that there are; return what it says."""
    if way == "__call__":
        return str(made(question)).removesuffix("\n")
    if way == "invoke_async":
        return str(asyncio.run(made.invoke_async(question))).removesuffix("\n")
    return "".join(asyncio.run(texts(made.stream_async(question))))


def outcome_of(recording):
    """Return each agent's path and status, which its turns have too, and each op's kind, name and status."""
    for one in walk_sessions(recording.tree):
        assert {(one.status, one.error)} >= {(turn.status, turn.error) for turn in one.turns}
    return (
        [(one.call_path, one.status) for one in walk_sessions(recording.tree)],
        [(op.kind, op.name.rpartition(":")[2], op.status) for op in ops_of(recording)],
    )
