"""The reference agent's tools, and hooks: they see what an agent is about to do, or to hear, and may deny or change it.

Others are added by the same pattern: a coroutine that takes the agent, the call, and the call's arguments, and returns its result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from optree._values import encode, is_list, is_object
from optree.conversation.model import AnyAgent
from optree.conversation.strings import LoggedString, causes_of, identity_of

if TYPE_CHECKING:
    from optree.conversation.model import AnyAgent
_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "array": is_list,
    "object": is_object,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "null": lambda value: value is None,
}
_TEXT = {"type": "string"}
_NAMES = {"type": "array", "items": _TEXT}


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
"""Takes an agent, its call and the judge's answer; returns why the call is denied, None if it is allowed."""


def verdict_by_words(agent: AnyAgent, call: ToolCall, said: str) -> str | None:  # noqa: ARG001 - a `Verdict`
    """Take the judge at its word: an answer that begins with DENY denies, for the reason that follows."""
    answer = said.strip()
    return answer.removeprefix("DENY").lstrip(" .:,-\n") or "no reason was given" if answer.startswith("DENY") else None


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

    async def passes(self, source: AnyAgent, target: AnyAgent, text: str) -> str | None:  # noqa: ARG002 - the overridden method has them
        """Return the text with each match replaced."""
        return self._pattern.sub(self._replacement, text)


async def deliver(source: AnyAgent, target: AnyAgent, text: str) -> None:
    """Send a text from one agent to another, through the hooks of both; a text that a hook changed is logged as a copy of the original."""
    delivered: str = text
    for hook in {id(hook): hook for agent in (source, target) for hook in _hooks(agent)}.values():
        passed = await hook.passes(source, target, delivered)
        if passed is None:
            return
        delivered = delivered if passed == delivered else LoggedString(passed, identity_of(text), causes_of(text))
    source.inform(target, delivered)


async def denied(agent: AnyAgent, call: ToolCall) -> str | None:
    """Return the error that the agent's hooks answer a call with; None if they let it pass."""
    hooks: dict[str, Hook] = getattr(agent, "hooks", {})
    for name, hook in hooks.items():
        reason = await hook.denies(agent, call)
        if reason is not None:
            return f"Error: Action blocked by hook '{name}': {reason}"
    return None


def _hooks(agent: AnyAgent) -> list[Hook]:
    hooks: dict[str, Hook] = getattr(agent, "hooks", {})
    return [*hooks.values()]


def _question(agent: AnyAgent, call: ToolCall) -> str:
    count = f"Current subagent count: {len(agent.subagents)}."
    if call.name == "task":
        return f"Agent '{agent.agent_id}' is attempting to create subagent '{call.arguments.get('name')}'. {count} Approve?"
    arguments = json.dumps(call.arguments, ensure_ascii=False, default=str)
    return f"Agent '{agent.agent_id}' is attempting to use '{call.name}' with {arguments}. {count} Approve?"


class ParentAgent(AnyAgent, Protocol):
    """What the tools here ask of the agent that calls them; `Agent` is one."""

    def create(self, name: str, system_prompt: str | None = None, *, cause: str | None = None) -> Any:
        """Return a new sub-agent."""
        ...

    def subagent(self, name: str) -> Any:
        """Return the sub-agent of that name. Raises `NotFoundError`."""
        ...

    def piece_of_text(self, text: str, call: ToolCall) -> str:
        """Return a text of a call's arguments, logged and with its id."""
        ...


class Tool(NamedTuple):
    """A tool: what it does, and its description for models."""

    run: Callable[..., Awaitable[str]]
    """Called with the agent, the `ToolCall`, and the call's arguments by keyword."""
    about: str
    """What it is for, as the model reads it."""
    parameters: dict[str, Any]
    """JSON schemas of the arguments, by name; those that must be given are marked ``"required": True``."""

    def described(self, name: str) -> dict[str, Any]:
        """Return the tool's description in OpenAI's form, under a name."""
        members = {key: {k: v for k, v in schema.items() if k != "required"} for key, schema in self.parameters.items()}
        required = [key for key, schema in self.parameters.items() if schema.get("required")]
        parameters = {"type": "object", "properties": members, "required": required}
        return {"type": "function", "function": {"name": name, "description": self.about, "parameters": parameters}}

    def refusal(self, arguments: Mapping[str, Any]) -> str | None:
        """Return what is wrong with a call's arguments; None if they are as declared (``type`` and ``items`` are checked)."""
        missing = [key for key, schema in self.parameters.items() if schema.get("required") and key not in arguments]
        if missing:
            return f"{', '.join(missing)} must be given"
        optional = {key for key, schema in self.parameters.items() if not schema.get("required")}
        values = {key: value for key, value in arguments.items() if key in self.parameters and not (value is None and key in optional)}
        return next((problem for key, value in values.items() if (problem := _misfit(self.parameters[key], value, key))), None)


async def task(agent: ParentAgent, call: ToolCall, name: str, system_prompt: str | None = None) -> str:
    """Create a sub-agent: it is logged before anything that it hears."""
    child = agent.create(name, system_prompt, cause=call.cause)
    return f"Created subagent: {child.name}"


async def discuss(
    agent: ParentAgent,
    call: ToolCall,
    prompt: str | None = None,
    speakers: Sequence[str] | None = None,
    listeners: Sequence[str] | None = None,
) -> str:
    """Give the same prompt to all, then let the speakers speak in turn, each heard by all others. Returns what was said."""
    named = [*(speakers or ()), *(listeners or ())]
    everyone = {name: agent.subagent(name) for name in named}
    if prompt is not None:
        piece = agent.piece_of_text(prompt, call)
        for member in everyone.values():
            await deliver(agent, member, piece)
    utterances: list[tuple[str, str]] = []
    for name in speakers or ():
        utterance = await everyone[name].response()
        spoken = LoggedString(f"[{name}]: {utterance}", identity_of(utterance))
        for member_name, member in everyone.items():
            if member_name != name:
                await deliver(everyone[name], member, spoken)
        utterances.append((name, utterance))
    return _compiled(utterances)


async def whisper(agent: ParentAgent, call: ToolCall, speaker: str, listener: str) -> str:  # noqa: ARG001 - all tools take the call
    """Let one say something that only one other hears; not even their parent does."""
    source, target = agent.subagent(speaker), agent.subagent(listener)
    utterance = await source.response()
    await deliver(source, target, LoggedString(f"[{speaker}]: {utterance}", identity_of(utterance)))
    return f"{speaker} whispered to {listener}."


def _misfit(schema: Mapping[str, Any], value: Any, where: str) -> str | None:
    """Return in what a value is not of a schema's type."""
    kind: Any = schema.get("type")
    kinds: list[Any] = kind if is_list(kind) else [kind]
    if all(item in _TYPES and not _TYPES[item](value) for item in kinds):
        return f"{where} is to be of type {' or '.join(kinds)}, not {encode(value).decode()[:80]}"
    inner = schema.get("items")
    if is_object(inner) and is_list(value):
        return next((problem for place, item in enumerate(value) if (problem := _misfit(inner, item, f"{where}[{place}]"))), None)
    return None


def _compiled(utterances: list[tuple[str, str]]) -> str:
    """Return a result that represents the one utterance there is, or that was compiled from several."""
    if len(utterances) == 1:
        return LoggedString(utterances[0][1], identity_of(utterances[0][1]))
    causes = [identity for _, text in utterances if (identity := identity_of(text))]
    return LoggedString("\n".join(f"[{name}]: {text}" for name, text in utterances) or "Delivered.", cause=causes)


TOOLS: dict[str, Tool] = {
    "task": Tool(task, "Create a subagent.", {"name": {**_TEXT, "required": True}, "system_prompt": _TEXT}),
    "discuss": Tool(
        discuss,
        "Give subagents a prompt, and let the speakers among them speak in turn; all others hear it.",
        {"prompt": _TEXT, "speakers": _NAMES, "listeners": _NAMES},
    ),
    "whisper": Tool(
        whisper,
        "Let one subagent say something that only one other hears.",
        {"speaker": {**_TEXT, "required": True}, "listener": {**_TEXT, "required": True}},
    ),
}
"""What an agent has unless it is given others."""
