"""A small research team of language-model agents that reads this repository and answers a question about it.

    python examples/model_server.py                               # prints the base URL of a local model
    python examples/research_team.py --base-url http://127.0.0.1:PORT/v1

The lead plans, two readers work at the same time, a critic looks at their reports, the lead answers on stdout.
Each agent's whole state is its transcript: given a saved one, an agent skips the steps whose results it holds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import httpx

REPOSITORY = Path(__file__).resolve().parent.parent
TEXT_SUFFIXES = {".md", ".py"}
PASSAGE_CHARACTERS = 500
QUESTION = "How does this project keep its records safe, and how does it count money?"

log = logging.getLogger("research_team")


class Message(TypedDict):
    """One entry of a transcript; `name` marks the result of a finished step."""

    role: str
    content: str
    name: NotRequired[str]


Transcript = list[Message]


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


def read_file(name: str, limit: int, first_line: int = 1) -> str:
    """At most `limit` characters of a file, from a line on."""
    lines = inside_repository(name).read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    return "".join(lines[first_line - 1 :])[:limit]


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


async def chat(client: httpx.AsyncClient, messages: Transcript, *, agent: str, max_tokens: int) -> str:
    """Send a transcript to the model and return the text of its reply."""
    request = {
        "model": "smollm2-135m-instruct",
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "frequency_penalty": 0.6,
        "seed": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    deltas: list[str] = []
    async with client.stream("POST", "chat/completions", json=request) as response:
        response.raise_for_status()
        async for event in stream_events(response):
            for choice in event["choices"]:
                deltas.append(choice["delta"].get("content") or "")
            if usage := event.get("usage"):
                cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
                log.info(
                    "%s: %d tokens in (%d cached), %d out",
                    agent, usage["prompt_tokens"], cached, usage["completion_tokens"],
                )
    return "".join(deltas).strip()


def result_of(messages: Transcript, step: str) -> str | None:
    """What a finished step left in a transcript, or None if the step is still to do."""
    return next((message["content"] for message in messages if message.get("name") == step), None)


async def ask(
    client: httpx.AsyncClient,
    messages: Transcript,
    step: str,
    question: Callable[[], str],
    *,
    agent: str,
    max_tokens: int = 70,
) -> str:
    """One turn: the model's answer to a question, taken from the transcript if the step is finished there."""
    finished = result_of(messages, step)
    if finished is not None:
        return finished
    waiting = messages[-1]["role"] == "user" and "name" not in messages[-1]
    if not waiting:
        messages.append({"role": "user", "content": question()})
    answer = await chat(client, messages, agent=agent, max_tokens=max_tokens)
    messages.append({"role": "assistant", "content": answer, "name": step})
    return answer


def introduce(messages: Transcript, task: str) -> None:
    """Begin an empty transcript with the agent's task."""
    if not messages:
        messages.append({"role": "system", "content": f"{task} Answer in short, plain sentences."})


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


async def reader(client: httpx.AsyncClient, topic: Topic, messages: Transcript) -> str:
    """Read the documents and the code about one topic, and report."""
    introduce(messages, "You explain software documents.")
    questions: dict[str, Callable[[], str]] = {
        "overview": lambda: f"Lines that mention it:\n{mentions(topic.word, 'docs')}\n\nIn two sentences, what do they say about {topic.word}?",
        "documents": lambda: f"From the documents:\n{passage(topic.word, 'docs')}\n\nExplain this in two sentences.",
        "code": lambda: f"From the code:\n{passage(topic.word, 'optree')}\n\nWhat is this code for?",
        "report": lambda: f"Now say in two sentences {topic.subject}.",
    }
    for step, question in questions.items():
        answer = await ask(client, messages, step, question, agent=topic.reader)
    return answer


async def critic(client: httpx.AsyncClient, reports: list[str], messages: Transcript) -> str:
    """Say what the reports leave open."""
    introduce(messages, "You check the reports of your colleagues.")
    joined = "\n\n".join(reports)
    await ask(client, messages, "doubt", lambda: f"{joined}\n\nWhat is missing in these reports?", agent="critic")
    return await ask(client, messages, "advice", lambda: "Give one piece of advice in one sentence.", agent="critic")


async def delegate(client: httpx.AsyncClient, topic: Topic, lead_messages: Transcript, messages: Transcript) -> str:
    """A reader's report, entered into the lead's transcript as soon as it is there."""
    step = f"report on {topic.word}"
    finished = result_of(lead_messages, step)
    if finished is not None:
        return finished
    text = await reader(client, topic, messages)
    lead_messages.append({"role": "user", "content": f"Report on {topic.subject}: {text}", "name": step})
    return text


async def lead(client: httpx.AsyncClient, question: str, transcripts: dict[str, Transcript]) -> str:
    """Plan, let two readers work at the same time, have their reports criticised, and answer."""
    messages = transcripts["lead"]
    introduce(messages, "You lead a small team that studies a software project.")
    subjects = " and ".join(topic.subject for topic in TOPICS)
    plan = f"{question} Two readers will find out {subjects}. Say in two sentences what they should read."
    await ask(client, messages, "plan", lambda: plan, agent="lead")

    reports = await asyncio.gather(
        *(delegate(client, topic, messages, transcripts[topic.reader]) for topic in TOPICS)
    )
    if result_of(messages, "critique") is None:
        critique = await critic(client, reports, transcripts["critic"])
        messages.append({"role": "user", "content": f"Advice of the critic: {critique}", "name": "critique"})
    final = f"With the reports, answer in three sentences: {question}"
    return await ask(client, messages, "answer", lambda: final, agent="lead", max_tokens=120)


async def main() -> None:
    parser = argparse.ArgumentParser(description="Answer a question about this repository with a team of agents.")
    parser.add_argument("question", nargs="?", default=QUESTION)
    parser.add_argument("--base-url", default=os.environ.get("OPENAI_BASE_URL"), help="default: $OPENAI_BASE_URL")
    parser.add_argument("--verbose", action="store_true", help="log each model call on stderr")
    args = parser.parse_args()
    if args.base_url is None:
        parser.error("give --base-url or set OPENAI_BASE_URL")
    logging.basicConfig(level=logging.WARNING)
    log.setLevel(logging.INFO if args.verbose else logging.WARNING)
    # Reused connections to llama.cpp's server were seen to close without an answer.
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=args.base_url, timeout=300, limits=limits) as client:
        print(await lead(client, args.question, defaultdict(list)))


if __name__ == "__main__":
    asyncio.run(main())
