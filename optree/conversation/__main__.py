"""Talk to an agent, and go on later: ``python -m optree.conversation [--resume FILE]``.

Each session is a file of events in the working directory. After each answer it can be resumed, with all sub-agents.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import sys
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from optree.conversation.agent import Agent, restored
from optree.conversation.loading import load_session
from optree.conversation.model import ChatModel
from optree.conversation.session import ConversationSession
from optree.errors import OptreeError

PROMPT = "> "


def main(argv: Sequence[str] | None = None) -> int:
    """Talk until the input ends; returns the exit code."""
    options = _options(argv)
    try:
        model = ChatModel(options.model, options.base_url, with_tools=not options.no_tools)
        root, session, name = _opened(options, model)
    except (OptreeError, OSError) as error:
        print(f"optree.conversation: {error}", file=sys.stderr)  # noqa: T201 - a program
        return 1
    with contextlib.suppress(ImportError):  # not everywhere, and only for comfort
        importlib.import_module("readline")
    with session, contextlib.suppress(EOFError, KeyboardInterrupt):
        asyncio.run(_talk(root, model))
    print(f"\ngo on with: python -m optree.conversation --resume {name}", file=sys.stderr)  # noqa: T201
    return 0


async def _talk(agent: Agent, model: ChatModel) -> None:
    try:
        while True:
            agent.harken(input(PROMPT))  # noqa: ASYNC250 - nothing else runs meanwhile
            try:
                print(await agent.response())  # noqa: T201 - what the program is for
            except Exception as error:  # noqa: BLE001 - whatever the model's server does, the user may ask again
                print(f"no answer: {error!r}", file=sys.stderr)  # noqa: T201
    finally:
        await model.aclose()


def _opened(options: argparse.Namespace, model: ChatModel) -> tuple[Agent, ConversationSession, Path]:
    """Return the root agent of the session to resume, or of a new one."""
    if options.resume is None:
        name = Path(f"session_{datetime.now().astimezone():%Y%m%d_%H%M%S}.jsonl")
        root, session = load_session(name, partial(restored, model=model, system_prompt=options.system))
        return root, session, name
    options.resume.stat()  # a new file is not what was meant
    root, session = load_session(options.resume, partial(restored, model=model))
    for note in [*session.notes, *(f"line {fault.line} {fault.said}" for fault in session.faults)]:
        print(f"{options.resume}: {note}", file=sys.stderr)  # noqa: T201
    print(f"Session resumed from {options.resume}", file=sys.stderr)  # noqa: T201
    return root, session, options.resume


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m optree.conversation", description=__doc__)
    parser.add_argument("--resume", metavar="FILE", type=Path, help="go on with the session in this file")
    parser.add_argument("--base-url", help="of an OpenAI-compatible server; default: $OPENAI_BASE_URL")
    parser.add_argument("--model", default="gpt-4o-mini", help="name of the model")
    parser.add_argument("--system", help="system prompt of a new session's agent")
    parser.add_argument("--no-tools", action="store_true", help="do not tell the model of the tools")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
