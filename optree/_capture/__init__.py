"""Calls of models that a program makes through libraries, recorded without a change of the program.

`instrument` puts hooks into the libraries that are installed, at once into those that are imported, into others when they are.
What comes in is what passes between program and provider; what goes out are llm ops. Libraries and the program see no difference.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, NamedTuple, TypeVar

from optree._interrupts import new_rlock, pass_on
from optree._providers.prices import PRICES
from optree._tracing.faults import fault, guarded, unless_faulty
from optree._tracing.runtime import RUNTIME
from optree._values import own_members
from optree.errors import SetupError

__all__ = ["instrument", "instrument_client", "uninstrument", "uninstrument_client"]

C = TypeVar("C")


class Library(NamedTuple):
    """A package that is hooked."""

    tried: str
    """The release that was tried."""
    too_new: int
    """The first number of those that may be too new."""
    modules: Mapping[str, str]
    """Modules of it that are hooked, and what knows how: `module:function` of `optree._capture`."""


_SENDING: Final = frozenset({"httpx", "httpx2", "aiohttp", "botocore", "websockets"})
"""Packages by which clients and frameworks send what they ask a model."""
_OLDEST: Final = {"websockets": 16}
"""The first number of the oldest releases that were tried, where several were."""
LIBRARIES: Final = {
    "httpx": Library("0.28", 1, {"httpx": "clients.httpx:http_client"}),
    "httpx2": Library("2.16", 3, {"httpx2": "clients.httpx:http_client"}),
    "openai": Library(
        "3.54",
        4,
        {"openai._base_client": "clients.httpx:sdk_client", "openai.lib.responses_tool_runner": "frameworks.sdk_tools:openai_functions"},
    ),
    "anthropic": Library(
        "2.12",
        3,
        {
            "anthropic._base_client": "clients.httpx:sdk_client",
            "anthropic.lib.tools._beta_functions": "frameworks.sdk_tools:anthropic_functions",
            "anthropic.lib.tools._beta_builtin_memory_tool": "frameworks.sdk_tools:anthropic_memories",
        },
    ),
    "google-genai": Library("3.4", 4, {"google.genai._extra_utils": "frameworks.sdk_tools:gemini_functions"}),
    "aiohttp": Library("3.14", 4, {"aiohttp.client": "clients.aiohttp:client", "aiohttp.client_ws": "clients.websockets:aiohttp_client"}),
    "websockets": Library(
        "17.4",
        18,
        {
            "websockets.asyncio.connection": "clients.websockets:asyncio_connection",
            "websockets.asyncio.client": "clients.websockets:asyncio_connect",
            "websockets.sync.connection": "clients.websockets:sync_connection",
            "websockets.sync.client": "clients.websockets:sync_connect",
        },
    ),
    "botocore": Library("1.44", 2, {"botocore.client": "clients.botocore:client"}),
    "mcp": Library("2.3", 3, {"mcp.client.session": "frameworks.mcp:client", "mcp.server.runner": "frameworks.mcp:server"}),
    "openai-agents": Library(
        "0.24",
        1,
        {
            "agents.run": "frameworks.openai_agents:runs",
            "agents.run_internal.tool_execution": "frameworks.openai_agents:invocations",
            "agents.tracing.spans": "frameworks.openai_agents:spans",
            "agents.tracing.traces": "frameworks.openai_agents:traces",
        },
    ),
    "pydantic-ai-slim": Library(
        "2.68",
        3,
        {
            "pydantic_ai.agent": "frameworks.pydantic_ai:agents",
            "pydantic_ai.tool_manager": "frameworks.pydantic_ai:tools",
            "pydantic_ai.capabilities.combined": "frameworks.pydantic_ai:outputs",
            "pydantic_ai._agent_graph": "frameworks.pydantic_ai:models",
            "pydantic_ai.models._continuation": "frameworks.pydantic_ai:streams",
        },
    ),
    "crewai": Library(
        "1.15",
        2,
        {
            "crewai.events.event_bus": "frameworks.crewai:events",
            "crewai.crew": "frameworks.crewai:crews",
            "crewai.flow.runtime": "frameworks.crewai:flows",
            "crewai.agent.core": "frameworks.crewai:agents",
            "crewai.llms.base_llm": "frameworks.crewai:models",
            "crewai.tools.base_tool": "frameworks.crewai:tools",
            "crewai.tools.structured_tool": "frameworks.crewai:tools",
        },
    ),
    "agno": Library(
        "3.1",
        4,
        {
            "agno.agent._run": "frameworks.agno:runs",
            "agno.agent._hooks": "frameworks.agno:guards",
            "agno.agent._managers": "frameworks.agno:later",
            "agno.agent._messages": "frameworks.agno.calls:knowledge",
            "agno.team._run": "frameworks.agno:runs",
            "agno.team._hooks": "frameworks.agno:guards",
            "agno.team._managers": "frameworks.agno:later",
            "agno.workflow.workflow": "frameworks.agno:runs",
            "agno.workflow.step": "frameworks.agno:steps",
            "agno.workflow.steps": "frameworks.agno:steps",
            "agno.workflow.parallel": "frameworks.agno:steps",
            "agno.workflow.loop": "frameworks.agno:steps",
            "agno.workflow.condition": "frameworks.agno:steps",
            "agno.workflow.router": "frameworks.agno:steps",
            "agno.tools.function": "frameworks.agno.calls:tools",
            "agno.models.base": "frameworks.agno.calls:models",
        },
    ),
    "llama-index-core": Library(
        "0.14",
        1,
        {
            "llama_index_instrumentation.dispatcher": "frameworks.llama_index:spans",
            "llama_index.core.agent.workflow.base_agent": "frameworks.llama_index:tools",
            "llama_index.core.agent.workflow.multi_agent_workflow": "frameworks.llama_index:tools",
        },
    ),
    "langchain-core": Library(
        "1.7",
        2,
        {
            "langchain_core.tracers.context": "frameworks.langchain:callbacks",
            "langchain_core.tools.base": "frameworks.langchain:tools",
            "langchain_core.runnables.base": "frameworks.langchain:chains",
        },
    ),
    "langgraph": Library("1.2", 2, {"langgraph.pregel.main": "frameworks.langchain:graphs"}),
    "google-adk": Library(
        "2.13",
        3,
        {
            "google.adk.runners": "frameworks.adk:runs",
            "google.adk.agents.base_agent": "frameworks.adk:agents",
            "google.adk.plugins.plugin_manager": "frameworks.adk:tools",
            "google.adk.flows.llm_flows.tools._caller": "frameworks.adk:calls",
            "google.adk.flows.llm_flows.tools._error_handler": "frameworks.adk:cancelled",
            "google.adk.flows.llm_flows.base_llm_flow": "frameworks.adk:models",
        },
    ),
    "smolagents": Library(
        "1.26",
        2,
        {
            "smolagents.agents": "frameworks.smolagents:agents",
            "smolagents.tools": "frameworks.smolagents:tools",
            "smolagents.models": "frameworks.smolagents.models:models",
            "smolagents.local_python_executor": "frameworks.smolagents:executors",
            "smolagents.remote_executors": "frameworks.smolagents:executors",
        },
    ),
    "dspy": Library(
        "3.4",
        4,
        {
            "dspy.primitives.module": "frameworks.dspy:modules",
            "dspy.clients.base_lm": "frameworks.dspy:models",
            "dspy.clients.execution": "frameworks.dspy:answers",
            "dspy.adapters.types.tool": "frameworks.dspy:tools",
            "dspy.retrievers.retrieve": "frameworks.dspy:retrievers",
            "dspy.retrievers.embeddings": "frameworks.dspy:retrievers",
            "dspy.dsp.colbertv2": "frameworks.dspy:retrievers",
            "dspy.primitives.python_interpreter": "frameworks.dspy:interpreters",
            "dspy.primitives.local_interpreter": "frameworks.dspy:interpreters",
            "dspy.utils.parallelizer": "frameworks.dspy:threads",
            "dspy.evaluate.evaluate": "frameworks.dspy:evaluations",
            "dspy.teleprompt": "frameworks.dspy:optimizers",
            "dspy._vendor.lm15.transports._sync": "frameworks.dspy:plain_transport",
            "dspy._vendor.lm15.transports._async": "frameworks.dspy:awaited_transport",
        },
    ),
    "strands-agents": Library(
        "1.62",
        2,
        {
            "strands.agent.agent": "frameworks.strands:agents",
            "strands.multiagent.graph": "frameworks.strands:graphs",
            "strands.multiagent.swarm": "frameworks.strands:swarms",
            "strands.tools.executors._executor": "frameworks.strands:tools",
            "strands.event_loop.event_loop": "frameworks.strands:models",
        },
    ),
    "claude-agent-sdk": Library(
        "0.2",
        1,
        {
            "claude_agent_sdk._internal.query": "frameworks.claude_agent_sdk:queries",
            "claude_agent_sdk.client": "frameworks.claude_agent_sdk:clients",
        },
    ),
}
"""By name of the package as it is installed."""
_PACKAGES: Final = {module: package for package, library in LIBRARIES.items() for module in library.modules}
"""By module that is hooked."""
START: Final = str(Path(__file__).with_name("start"))
"""The folder for PYTHONPATH that has each Python call `instrument` where OPTREE_AUTO is set."""


_Hooks = Callable[[ModuleType, Callable[[], bool]], list[tuple[Any, str, Any]]]


class _Finder:
    """Hooks modules as they are imported; at the head of `sys.meta_path`."""

    def __init__(self) -> None:
        self._finding: set[str] = set()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find a module as the others do, and have it hooked when it has been executed."""
        if name not in _PACKAGES or name not in _wanted or name in self._finding:
            return None
        try:
            self._finding.add(name)
            found: ModuleSpec | None = next(
                (spec for finder in list(sys.meta_path) if (spec := _spec(finder, name, path, target)) is not None), None
            )
        finally:
            self._finding.discard(name)
        if found is not None and found.loader is not None:
            found.loader = _Loader(found.loader)  # type: ignore[assignment]
        return found


def _spec(finder: Any, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    find = getattr(finder, "find_spec", None)
    return None if find is None or finder is FINDER else find(name, path, target)


class _Loader:
    """Another loader, which hooks the module at last."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _hook(module.__name__, module)


FINDER: Final = _Finder()
"""Hooks what is imported from now on, once `instrument` was called."""
_MOST_WRAPPED: Final = 100
_lock = new_rlock()
_wanted: set[str] = set()
_hooked: dict[str, list[tuple[Any, str, Any, Any]]] = {}
"""By module: owner, name, what stood there, and what stands there now."""


def instrument(only: Sequence[str] | None = None, *, exclude: Sequence[str] = ()) -> list[str]:
    """Record the calls of models that this program makes from now on, by clients made before too. A second call adds nothing.

    Args:
        only: Names of packages to hook, as `optree instrument` lists them; by default all. A call of a model is recorded by what sends it:
            httpx, httpx2, aiohttp, botocore and websockets are hooked too, unless some of them are named.
        exclude: Names of packages to leave alone.

    Returns:
        The modules that are hooked by now; others are when they are imported.

    Raises:
        SetupError: There is no such package to hook.
    """
    return unless_faulty(functools.partial(_instrument, only, exclude), [])


def _check(names: Sequence[str]) -> None:
    """Raise `SetupError` for a name that is none; a text is a sequence of letters, none of which is."""
    unknown = [names] if isinstance(names, str) else [name for name in names if name not in LIBRARIES]
    if unknown:
        what = "is no list of names" if isinstance(names, str) else "cannot be hooked"
        raise SetupError(f"instrument(): {', '.join(map(repr, unknown))} {what}; choose from {', '.join(LIBRARIES)}")


def _instrument(only: Sequence[str] | None, exclude: Sequence[str]) -> list[str]:
    _check(only or ())
    _check(exclude)
    with _lock:
        if only and _SENDING.isdisjoint(only):
            only = [*only, *_SENDING]
        chosen = {name for name, package in _PACKAGES.items() if (only is None or package in only) and package not in exclude}
        _wanted.update(chosen)
        if FINDER not in sys.meta_path:
            sys.meta_path.insert(0, FINDER)
    PRICES.captures(on=True)
    if RUNTIME.sessions:  # else the first one does, before it begins
        PRICES.load()
    for name in sorted(chosen):
        if name in sys.modules:
            try:
                _hook(name, importlib.import_module(name))  # which waits for another thread that is importing it
            except ImportError as error:  # it is taken out, or cannot be imported
                pass_on(error)
                continue
    return sorted(_hooked)


@guarded
def uninstrument() -> None:
    """Take the hooks out again; calls that are under way are recorded to their end."""
    with _lock:
        _wanted.clear()
        if FINDER in sys.meta_path:
            sys.meta_path.remove(FINDER)
        for made in _hooked.values():
            _take_out(made)
        _hooked.clear()
    PRICES.captures(on=False)


def instrument_client(client: C) -> C:
    """Record the calls of models that one client makes from now on; nothing else in the program is hooked. A second call adds nothing.

    ```python
    import httpx
    import optree

    client = optree.instrument_client(httpx.Client())
    ```

    Args:
        client: A client of httpx or httpx2, synchronous or asynchronous, or an SDK's that has one, as OpenAI's, Anthropic's and Groq's.
            To other SDKs a client of the program's own is given, where they take one (``http_client=…``).

    Returns:
        The same client. It is of a subclass now, which has its class's name.

    Raises:
        SetupError: It is none of these.
    """
    _change(client, is_recorded=True)
    return client


def uninstrument_client(client: object) -> None:
    """Record nothing more of what a client sends, unless `instrument` has hooked all. Raises `SetupError` as `instrument_client` does."""
    _change(client, is_recorded=False)


@guarded
def _change(client: object, *, is_recorded: bool) -> None:
    from optree._capture.clients import httpx

    if is_recorded:
        httpx.instrument_client(client)
        PRICES.captures(on=True)
    else:
        httpx.uninstrument_client(client)


def _take_out(made: list[tuple[Any, str, Any, Any]]) -> None:
    for owner, name, before, now in made:
        if own_members(owner).get(name) is now:  # else somebody has hooked it after us
            setattr(owner, name, before)


def _is_on(name: str, made: list[tuple[Any, str, Any, Any]]) -> bool:
    """Tell whether hooks do anything, which are those of a module that were put in last.

    Older ones that another library has taken hold of cannot be taken out, and stay there idle.
    """
    return name in _wanted and _hooked.get(name) is made


def _is_there(module: ModuleType, owner: Any, name: str, now: Any) -> bool:
    """Tell whether a hook stands where it was put in, in the module as it was imported last, or what another library wraps it in."""
    known = module if isinstance(owner, ModuleType) else getattr(module, owner.__name__, owner)  # a class may be of another module
    found = own_members(owner).get(name) if known is owner else None
    for _ in range(_MOST_WRAPPED):
        if found is now or found is None:
            break
        found = getattr(found, "__wrapped__", None)
    return found is now


def _hook(name: str, module: ModuleType) -> None:
    with _lock:
        known = _hooked.get(name, [])
        is_there = [_is_there(module, owner, attribute, now) for owner, attribute, _, now in known]
        if name not in _wanted or (known and all(is_there)):
            return
        try:
            where, _, function = LIBRARIES[_PACKAGES[name]].modules[name].partition(":")
            hooks_of: _Hooks = getattr(importlib.import_module(f"optree._capture.{where}"), function)
            _take_out(known)  # what is there of it: all that is not was taken by others, or an interrupt left it half done
            made = list[tuple[Any, str, Any, Any]]()
            hooks = hooks_of(module, functools.partial(_is_on, name, made))
            made += [(owner, attribute, own_members(owner)[attribute], now) for owner, attribute, now in hooks]
        except Exception as error:  # noqa: BLE001 - another release of it, or it is half imported: the program goes on without
            fault(error)
            return
        _hooked[name] = made  # first: whatever is there of it can be taken out
        for owner, attribute, _before, now in made:
            setattr(owner, attribute, now)
        _warn(_PACKAGES[name])


def _warn(package: str) -> None:
    """Say that a release is newer than those that were tried."""
    release, tried = release_of(package), LIBRARIES[package].tried
    if compared(package, release) == "newer":
        RUNTIME.problems.report(f"{package} {release} is newer than what optree was tried with ({tried}): calls may not be recorded whole")


def compared(package: str, release: str | None) -> Literal["older", "newer"] | None:
    """Tell whether a release is older or newer than those that were tried, by its first number."""
    tried, too_new, _ = LIBRARIES[package]
    first = (release or "").partition(".")[0]
    if not first.isdecimal():
        return None
    return "newer" if int(first) >= too_new else "older" if int(first) < _OLDEST.get(package, int(tried.partition(".")[0])) else None


def release_of(package: str) -> str | None:
    """Return which release of a package is installed; None without one."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


if os.environ.get("OPTREE_REPLAY"):
    importlib.import_module("optree._capture.replay")  # tools that are called get what was recorded, whatever else is imported
