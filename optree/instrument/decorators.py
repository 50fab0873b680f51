"""`session`, `turn`, `llm`, `tool`: each a decorator, with and without arguments, and a context manager."""

from __future__ import annotations

from typing import Any, overload

from optree.errors import SetupError
from optree.instrument.scopes import OpScope, SessionScope, TurnScope
from optree.instrument.wrapping import F


@overload
def session(function: F, /) -> F: ...
@overload
def session(agent: str | None = None, **attributes: Any) -> SessionScope: ...
def session(agent: Any = None, **attributes: Any) -> Any:
    """Record a run of an agent: a root session, or a sub-agent's session when another session is open here.

    It is a decorator, with and without arguments, for functions, coroutines, generators and async generators, and a context manager,
    whose `with` gives an `optree.Session`. The session ends when the block or the function ends: ``ok``, or ``failed`` with the exception,
    which goes on to the caller, or ``cancelled``. A root session is saved under its txn; started by ``optree load TXN -- …``, the first
    root session of the program goes on with that one.

    ```python
    import optree


    @optree.session(agent="reader")
    def read(page: str) -> str:
        return page.upper()


    with optree.session("lead", ticket="A-17") as session:
        read("tides")  # a session inside the session
    print(session.txn, session.totals.tools_run)
    ```

    Args:
        agent (str | None): The agent's name; by default the name of the decorated function, or ``agent``.
        **attributes: What else is known of the run, for its node: anything that JSON can hold.

    Raises:
        SetupError: The agent's name is not a text.
        CycleError: The agent calls itself, directly or through others, and `configure` was given ``cycles="block"``.
    """
    if _decorates(agent):
        return SessionScope(None, {})(agent)
    return SessionScope(_name("session", agent), attributes)


@overload
def turn(function: F, /) -> F: ...
@overload
def turn(*, user: str | None = None, system: str | None = None, **attributes: Any) -> TurnScope: ...
def turn(function: Any = None, /, *, user: str | None = None, system: str | None = None, **attributes: Any) -> Any:
    """Record a turn of the session that is open here: one request of the user, and all that is done to answer it.

    It is a decorator and a context manager, whose `with` gives an `optree.Turn`. Operations outside of a turn get one of their own.

    Args:
        function (Callable): The function, where the decorator has no arguments.
        user: The user's prompt as the agent got it.
        system: The system prompt in force.
        **attributes: What else is known of the turn, for its node.

    Raises:
        SetupError: Something other than a function is given by position.
    """
    if function is not None and not _decorates(function):
        raise SetupError(f"turn({function!r}) is not possible: write turn(user=…) or use @turn on a function")
    scope = TurnScope(user, system, attributes)
    return scope if function is None else scope(function)


@overload
def llm(function: F, /) -> F: ...
@overload
def llm(name: str | None = None, /, *, provider: str | None = None, model: str | None = None, **attributes: Any) -> OpScope: ...
def llm(name: Any = None, /, *, provider: str | None = None, model: str | None = None, **attributes: Any) -> Any:
    """Record one request to a model. A retry is another operation.

    It is a decorator and a context manager, whose `with` gives an `optree.Op`. Decorated, the function's arguments are the request, with
    ``messages``, ``model`` and ``provider`` understood, and what it returns or streams is the response: answers of OpenAI, Anthropic,
    Gemini, Ollama and LangChain are read for model, tokens, text, reasoning and tool calls. In a `with` block you say these yourself.

    ```python
    import optree

    with optree.session("lead"), optree.turn(user="Why is the sky blue?"):
        with optree.llm(provider="openai", model="gpt-4o") as op:
            op.request(messages=[{"role": "user", "content": "Why is the sky blue?"}])
            op.response("Rayleigh scattering.")
            op.account(input_tokens=12, output_tokens=4, cost_usd=0.0001)
    ```

    Args:
        name (str | None): The operation's name, where neither *provider* nor *model* is given; by default the function's.
        provider: Who is asked, such as ``openai``.
        model: Which model, such as ``gpt-4o``. The operation's name is then ``provider:model``.
        **attributes: What else is known of the request, for its node.

    Raises:
        SetupError: A name is not a text.
    """
    if _decorates(name):
        return OpScope("llm", None, {})(name)
    label = ":".join(part for part in (_name("llm", provider), _name("llm", model)) if part) or _name("llm", name)
    known = {"provider": provider, "model": model, **attributes}
    return OpScope("llm", label, {key: value for key, value in known.items() if value is not None})


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(name: str | None = None, /, *, provider: str | None = None, **attributes: Any) -> OpScope: ...
def tool(name: Any = None, /, *, provider: str | None = None, **attributes: Any) -> Any:
    """Record one call of a tool.

    It is a decorator and a context manager, whose `with` gives an `optree.Op`. Decorated, the function's arguments are the request, and
    what it returns or yields is the response.

    Args:
        name (str | None): The tool's name; by default the function's.
        provider: Where the tool is from, such as an MCP server. The operation's name is then ``provider:name``.
        **attributes: What else is known of the call, for its node.

    Raises:
        SetupError: The name is not a text.
    """
    if _decorates(name):
        return OpScope("tool", None, {})(name)
    known = {"provider": provider, **attributes}
    label = _name("tool", name)
    full = f"{provider}:{label}" if provider and label else label
    return OpScope("tool", full, {key: value for key, value in known.items() if value is not None})


def _decorates(value: object) -> bool:
    return callable(value) or isinstance(value, classmethod)


def _name(what: str, name: object) -> str | None:
    if name is None or isinstance(name, str):
        return name
    raise SetupError(f"{what}({name!r}) is not possible: a name is text; write {what}('name') or use @{what} on a function")
