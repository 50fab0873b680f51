"""Conversations of several agents on a real model: a talk in a cafe, an inner voice, hooks that deny and redact, an event from outside.

    python examples/conversations.py                               # starts the demo's model by itself
    python examples/conversations.py --base-url http://127.0.0.1:PORT/v1

A model this small does not call tools reliably, so the program decides which tools are called; the words are the model's own.
The run is one traced session, and its events are written to a file as well: one line for everything that was said, heard or created.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import optree
from optree.conversation import (
    Agent,
    ApprovalHook,
    ChatModel,
    LoggedString,
    RedactingHook,
    Session,
    ToolCall,
    deliver,
    line,
    load_traced,
    restored,
)

MODEL = "smollm2-135m-instruct"
SETTINGS: dict[str, Any] = {"max_tokens": 24, "temperature": 0, "frequency_penalty": 0.6, "seed": 1}
MAX_SUBAGENTS = 3
GREETING = "You meet in a cafe. Introduce yourselves."


async def cafe(root: Agent) -> None:
    """Two agents meet. Their parent's prompt is one piece of text, that both hear; each hears what the other says."""
    root.harken("Create Jack and Jill for a cafe discussion")
    await root.act(("task", {"name": "Jack", "system_prompt": "You are Jack. You work in HR. Answer in one short sentence."}))
    await root.act(("task", {"name": "Jill", "system_prompt": "You are Jill, an aspiring author. Answer in one short sentence."}))
    await root.discuss(GREETING, speakers=["Jack", "Jill"])


async def inner_monologue(root: Agent) -> None:
    """One of them has an inner voice, that nobody else hears: what it says is in its own transcript and in hers."""
    jack, jill = root.subagent("Jack"), root.subagent("Jill")
    spoken = await jack.response()
    await deliver(jack, jill, LoggedString(f"[Jack]: {spoken}", spoken.message_id))
    await jill.act(("task", {"name": "Inner", "system_prompt": "You are Jill's inner voice. Answer in one short sentence."}))
    await jill.discuss("Jack just spoke to me. What should I say?", speakers=["Inner"])
    answer = await jill.response()
    await deliver(jill, jack, LoggedString(f"[Jill]: {answer}", answer.message_id))


async def hooks(root: Agent) -> None:
    """One hook asks an agent of its own before another sub-agent is made, and denies it; another one redacts what is delivered."""
    await root.act(("task", {"name": "ResourceMonitor", "system_prompt": "You watch how many agents there are. Be brief."}))
    root.hooks["ResourceMonitor"] = ApprovalHook(root.subagent("ResourceMonitor"), verdict=too_many)
    await root.act(("task", {"name": "Searcher4"}))
    jack, jill = root.subagent("Jack"), root.subagent("Jill")
    jack.hooks["Censor"] = RedactingHook(r"\d{4}")
    secret = jack.say("The password: 1234")
    await deliver(jack, jill, LoggedString(f"[Jack]: {secret}", secret.message_id))


def too_many(agent: Agent, call: ToolCall, said: str) -> str | None:  # noqa: ARG001 - a verdict is given all three
    """Deny by number, whatever the model said: its reasoning stays to be read in the monitor's transcript."""
    return f"Maximum subagents ({MAX_SUBAGENTS}) already reached." if len(agent.subagents) >= MAX_SUBAGENTS else None


async def external_trigger(root: Agent) -> None:
    """Something happens outside: an agent hears of it as of anything else."""
    del root.hooks["ResourceMonitor"]
    await root.act(("task", {"name": "Watcher", "system_prompt": "You watch files. Answer in one short sentence."}))
    watcher = root.subagent("Watcher")
    watcher.harken("File changed: data.json")
    await watcher.response()


async def run(address: str, events: Path) -> None:
    """Run all four in one traced session, and write its events."""
    model = ChatModel(MODEL, address, with_tools=False, **SETTINGS)
    with optree.session("root") as traced:
        root, conversation = load_traced(traced, functools.partial(restored, model=model))
        for example in (cafe, inner_monologue, hooks, external_trigger):
            with optree.turn(user=example.__name__.replace("_", " ")):
                await example(root)
        conversation.close()
        write(conversation, events)
        print(f"traced as {traced.txn}; its events are in {events}")
    await model.aclose()


def write(conversation: Session, events: Path) -> None:
    """Write the conversation's events, one a line, as seed 001 has them."""
    with events.open("xb") as file:
        file.writelines(line(event) + b"\n" for event in conversation.events())


@contextlib.contextmanager
def server(address: str | None) -> Generator[str]:
    """The address that was given, or that of the demo's model, which runs as long."""
    if address is not None:
        yield address
        return
    from demo import model_server

    with model_server() as started:
        yield started


def main() -> int:
    """Run the examples; returns the exit code."""
    parser = argparse.ArgumentParser(description="Let agents talk, on a real model.")
    parser.add_argument("--base-url", default=os.environ.get("OPENAI_BASE_URL"), help="default: $OPENAI_BASE_URL, else a model of its own")
    parser.add_argument("--events", type=Path, default=Path(".demo/conversation.events.jsonl"), help="a new file for the events")
    args = parser.parse_args()
    if args.events.exists():
        parser.error(f"{args.events} is there already: name a new file with --events")
    args.events.parent.mkdir(exist_ok=True)
    with server(args.base_url) as address:
        asyncio.run(run(address, args.events))
    return 0


if __name__ == "__main__":
    sys.exit(main())
