"""Hooks: they see what an agent is about to do, or to hear, and may deny or change it. What they did is visible in the log."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from optree.conversation.strings import LoggedString, causes_of, identity_of

if TYPE_CHECKING:
    from optree.conversation.protocol import AnyAgent


class ToolCall(NamedTuple):
    """One call of a tool by an agent."""

    id: str
    """The call's id, as the model gave it."""
    name: str
    """The tool's name."""
    arguments: dict[str, Any]
    """The arguments, decoded."""
    cause: str | None
    """What names the call in the log: its message, or ``<message>.<call>`` where that has several; None without a session."""


class Hook:
    """Base of hooks, in `Agent.hooks`: sees each tool call and each text that is delivered, and may deny or change it. Does nothing itself.

    ```python
    from optree.conversation import Hook


    class NoShell(Hook):
        async def denies(self, agent, call):
            return "no shell here" if call.name == "shell" else None
    ```
    """

    async def denies(self, agent: AnyAgent, call: ToolCall) -> str | None:  # noqa: ARG002 - for overriding
        """Return why an agent may not make a tool call; None if it may. The reason is the call's result."""
        return None

    async def passes(self, source: AnyAgent, target: AnyAgent, text: str) -> str | None:  # noqa: ARG002 - for overriding
        """Return the text to deliver from *source* to *target*; None if nothing is to be."""
        return text


Verdict = Callable[[Any, ToolCall, str], str | None]
"""Says from an agent, its call and what the judge said why the call is denied; None if it is not."""


def verdict_by_words(agent: AnyAgent, call: ToolCall, said: str) -> str | None:  # noqa: ARG001 - a `Verdict`
    """Take the judge at its word: an answer that begins with DENY denies, for the reason that follows."""
    told = said.strip()
    return told.removeprefix("DENY").lstrip(" .:,-\n") or "no reason was given" if told.startswith("DENY") else None


class ApprovalHook(Hook):
    """Has another agent approve tool calls before they are made; the question and its answer are in its transcript."""

    def __init__(self, judge: AnyAgent, tools: Collection[str] = ("task",), verdict: Verdict = verdict_by_words) -> None:
        """Make the hook.

        Args:
            judge: The agent that is asked.
            tools: The names of the tools whose calls need approval.
            verdict: Returns from agent, call and answer why the call is denied, or None; by default an answer that begins with DENY denies.
        """
        self._judge = judge
        self._tools = tools
        self._verdict = verdict

    async def denies(self, agent: AnyAgent, call: ToolCall) -> str | None:
        """Ask the judge, if the call needs approval."""
        if call.name not in self._tools or agent is self._judge:
            return None
        self._judge.harken(_question(agent, call))
        return self._verdict(agent, call, str(await self._judge.response()))


class RedactingHook(Hook):
    """Replaces what a regular expression matches in all texts that are delivered."""

    def __init__(self, pattern: str, replacement: str = "[REDACTED]") -> None:
        """Make the hook, with a regular expression, and what stands for a match."""
        self._pattern = re.compile(pattern)
        self._replacement = replacement

    async def passes(self, source: AnyAgent, target: AnyAgent, text: str) -> str | None:  # noqa: ARG002 - what it overrides has them
        """Return the text with each match replaced."""
        return self._pattern.sub(self._replacement, text)


async def deliver(source: AnyAgent, target: AnyAgent, text: str) -> None:
    """Send a text from one agent to another, through the hooks of both; a text that a hook changed is logged as a copy of the original."""
    told: str = text
    for hook in {id(hook): hook for agent in (source, target) for hook in _hooks(agent)}.values():
        passed = await hook.passes(source, target, told)
        if passed is None:
            return
        told = told if passed == told else LoggedString(passed, identity_of(text), causes_of(text))
    source.inform(target, told)


async def denied(agent: AnyAgent, call: ToolCall) -> str | None:
    """Return the error that the agent's hooks answer a call with; None if they let it pass."""
    hooks: dict[str, Hook] = getattr(agent, "hooks", {})
    for name, hook in hooks.items():
        reason = await hook.denies(agent, call)
        if reason is not None:
            return f"Error: Action blocked by hook '{name}': {reason}"
    return None


def _hooks(agent: AnyAgent) -> list[Hook]:
    found: dict[str, Hook] = getattr(agent, "hooks", {})
    return [*found.values()]


def _question(agent: AnyAgent, call: ToolCall) -> str:
    count = f"Current subagent count: {len(agent.subagents)}."
    if call.name == "task":
        return f"Agent '{agent.agent_id}' is attempting to create subagent '{call.arguments.get('name')}'. {count} Approve?"
    told = json.dumps(call.arguments, ensure_ascii=False, default=str)
    return f"Agent '{agent.agent_id}' is attempting to use '{call.name}' with {told}. {count} Approve?"
