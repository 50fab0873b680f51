"""A small reference agent. Its transcript is its state; without a session it does the same, and logs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from typing import Any, ClassVar

from msgspec import DecodeError

from optree._builder import Op
from optree._providers.messages import answered
from optree._values import decode, encode, is_object
from optree.conversation.model import Model
from optree.conversation.registry import AgentRecord
from optree.conversation.session import ConversationSession, SessionLogger
from optree.conversation.strings import LoggedString, MessageString, causes_of, identity_of
from optree.conversation.tools import TOOLS, Hook, Tool, ToolCall, denied
from optree.errors import NotFoundError, SetupError

LANGUAGE_MODEL = "anthropic/claude-sonnet-4-5-20250929"
"""The model's name of an agent without a model, as in the seeds."""
NO_OBJECT = "the arguments are no JSON object"
MAX_STEPS = 16
"""Messages with tool calls that one response may take."""


class Agent:
    """An agent with a transcript, sub-agents, tools and hooks. Its transcript is its state.

    ```python
    import tempfile

    from optree.conversation import Agent, Session

    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        session = Session(file.name)
        root = Agent(session, "You are brief.", agent_id=session.create_agent())
        root.begin()
        root.harken("Hello")
        print(root.say("Hi").message_id)
    ```
    """

    _next_id: ClassVar[int] = 1

    def __init__(
        self,
        session: ConversationSession | None = None,
        system_prompt: str | None = None,
        init_prompt: Sequence[Mapping[str, Any]] | None = None,
        *,
        model: Model | None = None,
        name: str | None = None,
        language_model: str | None = None,
        tools: Mapping[str, Tool] = TOOLS,
        agent_id: str | None = None,
    ) -> None:
        """Make an agent; nothing is logged yet. Whoever makes it logs its creation, and then calls `begin`; `create` does both.

        Args:
            session: Where all is logged; without it the agent does the same and logs nothing.
            system_prompt: The first message of its transcript.
            init_prompt: Messages that were logged before, of an agent that existed.
            model: What `response` asks.
            name: What its parent calls it; by default its id.
            language_model: The model's name in the log; by default that of *model*.
            tools: The tools that the model may call, by name.
            agent_id: The id of an agent that exists in the session; by default a new one.
        """
        self.session: ConversationSession | None = session
        """Where all is logged."""
        self.agent_id: str = agent_id or self._new_id(session)
        """Its id in the session."""
        self.name: str = name or self.agent_id
        """What its parent calls it."""
        self.model: Model | None = model
        """What `response` asks."""
        self.language_model: str = language_model or (model.name if model is not None else LANGUAGE_MODEL)
        """The model's name in the log."""
        self.tools: dict[str, Tool] = dict(tools)
        """The tools that the model may call, by name."""
        self.hooks: dict[str, Hook] = {}
        """What sees its tool calls, and the texts to and from it, by name."""
        self.subagents: dict[str, Any] = {}
        """Its sub-agents in memory, by name."""
        self.transcript: list[dict[str, Any]] = [dict(message) for message in init_prompt or ()]
        """Its messages, as a provider takes them."""
        self._unlogged: list[dict[str, Any]] = []
        self._calls: dict[str, str] = {}
        """The message of each tool call, by the call's id."""
        self._logger: SessionLogger | None = None
        if system_prompt is not None:
            self._unlogged = [{"role": "system", "content": str(system_prompt)}]
            self.transcript = [*self._unlogged, *self.transcript]
        if session is not None:
            session.agents[self.agent_id] = self

    # What all agents do

    def harken(self, input: str, /) -> None:  # noqa: A002 - the seeds name it so
        """Hear a text: it enters the transcript as the user's.

        Args:
            input: The text. A `LoggedString` or `MessageString` is logged as a copy of the message that it stands for.
        """
        self._add({"role": "user", "content": str(input)}, identity_of(input))

    async def response(self) -> LoggedString | MessageString:
        """Ask the model, make the tool calls that it asks for, and ask again, until it answers with text.

        Returns:
            The answer, with its id. The session can be resumed from here.

        Raises:
            SetupError: The agent has no model. What the model raises is raised too.
        """
        with self._turn():
            for _ in range(MAX_STEPS):
                message = await self._ask([tool.described(name) for name, tool in self.tools.items()])
                message_id = self._add(message)
                if not message.get("tool_calls"):
                    break
                await self._make_calls(message, message_id)
            else:
                message = await self._ask([])
                message_id = self._add(message)
        return self._logged(message.get("content"), message_id)

    def inform(self, dst: Any, txt: str, /) -> None:
        """Send a text to another agent, with the id that it carries; with `deliver`, hooks see it on its way."""
        dst.harken(txt)

    # What a program may do in the model's place

    def say(self, text: str) -> LoggedString | MessageString:
        """Say something, without asking the model; returns the text with its id."""
        return self._logged(text, self._add({"role": "assistant", "content": str(text)}))

    async def act(self, *calls: tuple[str, Mapping[str, Any]]) -> list[str]:
        """Call tools in one message, as if the model had asked for it.

        Args:
            *calls: The name of a tool and its arguments, for each call.

        Returns:
            The results, in the order of the calls; what went wrong is a result that begins with ``Error:``.
        """
        start = 1 + sum(len(message.get("tool_calls") or ()) for message in self.transcript)
        tool_calls = [
            {
                "id": f"{self.agent_id}_c{number}",
                "type": "function",
                "function": {"name": name, "arguments": encode(dict(arguments)).decode()},
            }
            for number, (name, arguments) in enumerate(calls, start)
        ]
        message = {"role": "assistant", "content": None, "tool_calls": tool_calls}
        with self._turn():
            return await self._make_calls(message, self._add(message))

    async def discuss(
        self, prompt: str | None = None, speakers: Sequence[str] | None = None, listeners: Sequence[str] | None = None
    ) -> str:
        """Call the tool ``discuss``, as if the model had asked for it; returns its result."""
        arguments = {"prompt": prompt, "speakers": speakers, "listeners": listeners}
        [result] = await self.act(("discuss", {key: value for key, value in arguments.items() if value is not None}))
        return result

    # What tools need

    def create(self, name: str, system_prompt: str | None = None, *, cause: str | None = None) -> Agent:
        """Make a sub-agent, with this one's model and tools, and log its creation and its system prompt.

        Args:
            name: What this agent calls it.
            system_prompt: The first message of its transcript.
            cause: The id of the message with the call that brings it about.
        """
        identity = None if self.session is None else self.session.create_agent(cause, name, self.language_model)
        options: dict[str, Any] = {"model": self.model, "language_model": self.language_model, "tools": self.tools}
        child = type(self)(self.session, system_prompt, name=name, agent_id=identity, **options)
        child._logger = self._logger  # noqa: SLF001 - of the same class
        child.begin()
        self.subagents[name] = child
        return child

    def begin(self) -> None:
        """Log the system prompt, if that is not done; the agent's first message does it too."""
        pending, self._unlogged = self._unlogged, []
        for message in pending:
            self._log(message)

    def subagent(self, name: str) -> Any:
        """Return a sub-agent by name; one that was evicted is made anew.

        Raises:
            NotFoundError: There is none of that name.
        """
        if name not in self.subagents and self.session is not None:
            known = next((record for record in reversed(self.session.children(self.agent_id)) if record.label == name), None)
            if known is not None:
                self.subagents[name] = self.session.revive(known.agent_id, self._restored)
        if name not in self.subagents:
            raise NotFoundError(f"{self.name} has no subagent {name!r}; there are: {', '.join(self.subagents) or 'none'}")
        return self.subagents[name]

    def piece_of_text(self, text: str, call: ToolCall) -> str:
        """Log a text that a tool made for other agents to hear; returns it with its id."""
        if self.session is None:
            return text
        return self._logged(text, self.session.log_piece_of_text(self.agent_id, text, call.cause))

    @property
    def logger(self) -> SessionLogger:
        """What logs, where seed 000's logger was attached; there is no such attribute otherwise."""
        if self._logger is None:
            raise AttributeError(f"{self.name} has no logger: agent.logger = SessionLogger(file) attaches one")
        return self._logger

    @logger.setter
    def logger(self, logger: SessionLogger) -> None:
        self._logger = logger
        self.session = logger.session
        self.session.agents[self.agent_id] = self

    # Inside

    async def _ask(self, tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Ask the model; in a traced session the call is an op."""
        if self.model is None:
            raise SetupError(
                f"{self.name} has no model to ask: give it one, Agent(session, model=ChatModel(…)), or speak for it with say()"
            )
        self.begin()
        messages = answered(self.transcript)
        with self._op("llm", self.language_model) as op:
            if op is not None:
                op.request(messages=messages)
            message, usage = await self.model(messages, tools)
            if op is not None:
                op.account(usage)
                op.response(message)
        return message

    async def _make_calls(self, message: dict[str, Any], message_id: str | None) -> list[str]:
        """Make a message's tool calls in their order, each the cause of its result."""
        several = len(message["tool_calls"]) > 1
        results: list[str] = []
        for tool_call in message["tool_calls"]:
            function: dict[str, Any] = member if is_object(member := tool_call.get("function")) else {}
            call_id, name = str(tool_call.get("id")), str(function.get("name"))
            if message_id is not None:
                self._calls[call_id] = message_id
            cause = self._find_msg_with_tool_call(call_id)
            exactly = f"{cause}.{call_id}" if cause and several else cause
            arguments = _arguments(function.get("arguments"))
            result = await self._made(ToolCall(call_id, name, arguments or {}, exactly), None if arguments is not None else NO_OBJECT)
            answer = {"role": "tool", "tool_call_id": call_id, "name": name, "content": str(result)}
            self._add(answer, identity_of(result), causes_of(result))
            results.append(result)
        return results

    async def _made(self, call: ToolCall, wrong: str | None = None) -> str:
        """Make one call; what goes wrong is its result, for the model to read, as is what is *wrong* with it already."""
        with self._op("tool", call.name) as op:
            if op is not None:
                op.request(arguments=call.arguments)
            blocked = await denied(self, call)
            if blocked is not None:
                result: str = blocked
            elif call.name not in self.tools:
                result = f"Error: there is no tool {call.name!r}; there are: {', '.join(self.tools)}"
            elif (refused := wrong or self.tools[call.name].refusal(call.arguments)) is not None:
                result = f"Error: {call.name}: {refused}"
            else:
                result = await self._run(self.tools[call.name], call)
            if op is not None:
                op.response(result)
        return result

    async def _run(self, tool: Tool, call: ToolCall) -> str:
        try:
            signature(tool.run).bind(self, call, **call.arguments)
        except TypeError as error:
            return f"Error: {call.name}: {error}"
        try:
            return await tool.run(self, call, **call.arguments)
        except NotFoundError as error:
            return f"Error: {error}"

    def _add(self, message: dict[str, Any], substance: str | None = None, cause: Sequence[str] = ()) -> str | None:
        """Put a message into the transcript, and into the log; returns its id there."""
        self.begin()
        self.transcript.append(message)
        return self._log(message, substance, cause)

    def _log(self, message: dict[str, Any], substance: str | None = None, cause: Sequence[str] = ()) -> str | None:
        if self.session is None:
            return None
        return self.session.log_transcript_entry(self.agent_id, message, substance, cause=None if substance else cause)

    def _find_msg_with_tool_call(self, tool_call_id: str) -> str | None:
        return self._calls.get(tool_call_id)

    def _logged(self, content: Any, message_id: str | None) -> LoggedString | MessageString:
        return LoggedString(content, message_id) if self._logger is None else MessageString(content, message_id)

    def _turn(self) -> AbstractContextManager[None]:
        return nullcontext() if self.session is None else self.session.turn(self.agent_id)

    def _op(self, kind: Any, name: str) -> AbstractContextManager[Op | None]:
        return nullcontext() if self.session is None else self.session.op(self.agent_id, kind, name)

    def _restored(self, session: ConversationSession, record: AgentRecord | None, transcript: list[dict[str, Any]], /) -> Agent:
        return restored(session, record, transcript, model=self.model)

    @classmethod
    def count_from(cls, number: int) -> None:
        """Give agents without a session numbers from here on, or higher."""
        Agent._next_id = max(Agent._next_id, number)

    @classmethod
    def _new_id(cls, session: ConversationSession | None) -> str:
        if session is not None:
            return session.allocate_agent_id()
        number, Agent._next_id = Agent._next_id, Agent._next_id + 1
        return f"agent_{number:03d}"


def restored(
    session: ConversationSession,
    record: AgentRecord | None,
    transcript: list[dict[str, Any]],
    /,
    *,
    model: Model | None = None,
    **options: Any,
) -> Agent:
    """Return an `Agent` as it was saved; the default of `load_session`. With `functools.partial` it is given a model.

    Args:
        session: The session that it belongs to.
        record: What is known of it; None makes a new agent.
        transcript: Its messages.
        model: The model that it goes on with.
        **options: Further arguments of `Agent`, for a new one.
    """
    if record is None:
        return Agent(session, model=model, **options)
    return Agent(session, None, transcript, model=model, name=record.name, language_model=record.language_model, agent_id=record.agent_id)


ConversationSession.restored = staticmethod(restored)


def _arguments(arguments: Any) -> dict[str, Any] | None:
    """Return a call's arguments: an empty object without any, None for arguments that are not an object."""
    if arguments is None or arguments == "":
        return {}
    try:
        decoded: Any = decode(arguments.encode()) if isinstance(arguments, str) else arguments
    except (DecodeError, UnicodeError, RecursionError):
        return None
    return decoded if is_object(decoded) else None
