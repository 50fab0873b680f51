"""A small research team of language-model agents that reads this repository and answers a question about it.

    python examples/model_server.py                               # prints the base URL of a local model
    python examples/research_team.py --base-url http://127.0.0.1:PORT/v1

The lead plans, two readers work at the same time, a critic looks at their reports, the lead answers on stdout.
Each agent's whole state is its transcript: one that finds a saved transcript skips the steps whose results it holds.
What optree adds is marked by its name: a session an agent, a turn a question, an op a call.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import httpx

import optree

REPOSITORY = Path(__file__).resolve().parent.parent
TEXT_SUFFIXES = {".md", ".py"}
PASSAGE_CHARACTERS = 500
QUESTION = "How does this project keep its records safe, and how does it count money?"
MODEL = "smollm2-135m-instruct"
PRICE_IN, PRICE_CACHED, PRICE_OUT = 0.05e-6, 0.01e-6, 0.20e-6
"""US dollars a token; made up for this example, since the model here runs on your own machine."""


class Message(TypedDict):
    """One entry of a transcript; `name` marks the result of a finished step."""

    role: str
    content: str
    name: NotRequired[str]


class Transcript:
    """An agent's messages, each kept by optree as it is added; in a resumed run they are those of before."""

    def __init__(self, session: optree.Session, task: str) -> None:
        self._session = session
        self.messages: list[Message] = session.history()
        if not self.messages:
            self.add({"role": "system", "content": f"{task} Answer in short, plain sentences."})

    def add(self, message: Message) -> None:
        """Add a message."""
        self.messages.append(message)
        self._session.message(message)

    def result_of(self, step: str) -> str | None:
        """What a finished step left, or None if the step is still to do."""
        return next((message["content"] for message in self.messages if message.get("name") == step), None)

    def waits(self) -> bool:
        """Whether the last message is a question that has no answer yet."""
        return self.messages[-1]["role"] == "user" and "name" not in self.messages[-1]


@dataclass(frozen=True)
class Topic:
    """What one reader looks into, and the word that leads it to the right lines."""

    subject: str
    word: str

    @property
    def reader(self) -> str:
        """The name of the agent that reads about this topic."""
        return f"reader of {self.word}"


TOPICS = (
    Topic("how the journal survives a crash", "journal"),
    Topic("how money is counted", "accounting"),
)


def inside_repository(name: str) -> Path:
    """The path that `name` means; raises PermissionError if it leads out of the repository."""
    path = (REPOSITORY / name).resolve()
    if not path.is_relative_to(REPOSITORY):
        raise PermissionError(f"{name} is outside the repository")
    return path


def list_files(folder: str) -> list[str]:
    """The text files under a folder, relative to the repository; empty if there is no such folder."""
    paths = inside_repository(folder).rglob("*")
    return sorted(str(p.relative_to(REPOSITORY)) for p in paths if p.is_file() and p.suffix in TEXT_SUFFIXES)


@optree.tool
def read_file(name: str, limit: int, first_line: int = 1) -> str:
    """At most `limit` characters of a file, from a line on."""
    lines = inside_repository(name).read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    return "".join(lines[first_line - 1 :])[:limit]


@optree.tool
def grep(word: str, folder: str) -> list[str]:
    """The lines under a folder that hold a word, as `file:line:text`."""
    return [
        f"{name}:{number}:{line.strip()}"
        for name in list_files(folder)
        for number, line in enumerate(inside_repository(name).read_text("utf-8", "replace").splitlines(), 1)
        if word in line.lower()
    ]


async def stream_events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects of a server-sent event stream, up to its [DONE]."""
    async for line in response.aiter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


async def chat(client: httpx.AsyncClient, messages: list[Message], max_tokens: int) -> str:
    """Send messages to the model and return the text of its reply."""
    settings = {"max_tokens": max_tokens, "temperature": 0, "frequency_penalty": 0.6, "seed": 1}
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    deltas: list[str] = []
    with optree.llm(provider="llama.cpp", model=MODEL) as op:
        op.request(messages=messages, **settings)
        body = {"model": MODEL, "messages": messages, **settings, **stream}
        async with client.stream("POST", "chat/completions", json=body) as response:
            response.raise_for_status()
            async for event in stream_events(response):
                deltas += [choice["delta"].get("content") or "" for choice in event["choices"]]
                if usage := event.get("usage"):
                    account(op, usage)
        reply = "".join(deltas).strip()
        op.response(reply)
    return reply


def account(op: optree.Op, usage: dict[str, Any]) -> None:
    """Enter what a call used into the tree."""
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    fresh, out = usage["prompt_tokens"] - cached, usage["completion_tokens"]
    cost = fresh * PRICE_IN + cached * PRICE_CACHED + out * PRICE_OUT
    op.account(usage, cost_usd=cost)


async def ask(client: httpx.AsyncClient, transcript: Transcript, step: str, question: Callable[[], str], max_tokens: int = 70) -> str:
    """One turn: the model's answer to a question, taken from the transcript if the step is finished there."""
    finished = transcript.result_of(step)
    if finished is not None:
        return finished
    with optree.turn(user=step):
        if not transcript.waits():
            transcript.add({"role": "user", "content": question()})
        answer = await chat(client, transcript.messages, max_tokens)
    transcript.add({"role": "assistant", "content": answer, "name": step})
    return answer


def mentions(word: str, folder: str) -> str:
    """The first lines under a folder that hold a word, shortened."""
    return "\n".join(line[:100] for line in grep(word, folder)[:5])


def passage(word: str, folder: str) -> str:
    """What the file that holds a word most often says from its first mention on."""
    hits = [line.split(":", 2) for line in grep(word, folder)]
    if not hits:
        return f"(nothing in {folder} mentions {word})"
    favourite, _ = Counter(name for name, _, _ in hits).most_common(1)[0]
    first_line = next(int(number) for name, number, _ in hits if name == favourite)
    return f"{favourite}:\n{read_file(favourite, PASSAGE_CHARACTERS, first_line)}"


async def reader(client: httpx.AsyncClient, topic: Topic) -> str:
    """Read the documents and the code about one topic, and report."""
    questions: dict[str, Callable[[], str]] = {
        "overview": lambda: (
            f"Lines that mention it:\n{mentions(topic.word, 'docs')}\n\nIn two sentences, what do they say about {topic.word}?"
        ),
        "documents": lambda: f"From the documents:\n{passage(topic.word, 'docs')}\n\nExplain this in two sentences.",
        "code": lambda: f"From the code:\n{passage(topic.word, 'optree')}\n\nWhat is this code for?",
        "report": lambda: f"Now say in two sentences {topic.subject}.",
    }
    with optree.session(topic.reader) as session:
        transcript = Transcript(session, "You explain software documents.")
        answers = [await ask(client, transcript, step, question) for step, question in questions.items()]
    return answers[-1]


async def critic(client: httpx.AsyncClient, reports: list[str]) -> str:
    """Say what the reports leave open."""
    joined = "\n\n".join(reports)
    with optree.session("critic") as session:
        transcript = Transcript(session, "You check the reports of your colleagues.")
        await ask(client, transcript, "doubt", lambda: f"{joined}\n\nWhat is missing in these reports?")
        return await ask(client, transcript, "advice", lambda: "Give one piece of advice in one sentence.")


def step_of(topic: Topic) -> str:
    """The step of the lead's that a reader's report is."""
    return f"report on {topic.word}"


async def research(client: httpx.AsyncClient, transcript: Transcript) -> list[str]:
    """The reports of readers that work at the same time, entered in that order: a replay asks the same each time."""
    left = [topic for topic in TOPICS if transcript.result_of(step_of(topic)) is None]
    readers = [asyncio.create_task(reader(client, topic)) for topic in left]
    for topic, working in zip(left, readers, strict=True):
        transcript.add({"role": "user", "content": f"Report on {topic.subject}: {await working}", "name": step_of(topic)})
    return [transcript.result_of(step_of(topic)) or "" for topic in TOPICS]


async def lead(client: httpx.AsyncClient, question: str) -> str:
    """Plan, let two readers work at the same time, have their reports criticised, and answer."""
    subjects = " and ".join(topic.subject for topic in TOPICS)
    plan = f"{question} Two readers will find out {subjects}. Say in two sentences what they should read."
    with optree.session("lead") as session:
        session.title(question)
        transcript = Transcript(session, "You lead a small team that studies a software project.")
        await ask(client, transcript, "plan", lambda: plan)
        with optree.turn(user="research"):
            reports = await research(client, transcript)
            if transcript.result_of("critique") is None:
                critique = await critic(client, reports)
                transcript.add({"role": "user", "content": f"Advice of the critic: {critique}", "name": "critique"})
        final = f"With the reports, answer in three sentences: {question}"
        return await ask(client, transcript, "answer", lambda: final, max_tokens=120)


async def main() -> None:
    """Answer the question on stdout."""
    parser = argparse.ArgumentParser(description="Answer a question about this repository with a team of agents.")
    parser.add_argument("question", nargs="?", default=QUESTION)
    parser.add_argument("--base-url", default=os.environ.get("OPENAI_BASE_URL"), help="default: $OPENAI_BASE_URL")
    args = parser.parse_args()
    if args.base_url is None:
        parser.error("give --base-url or set OPENAI_BASE_URL")
    # Reused connections to llama.cpp's server were seen to close without an answer.
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=args.base_url, timeout=300, limits=limits) as client:
        print(await lead(client, args.question))


if __name__ == "__main__":
    asyncio.run(main())
