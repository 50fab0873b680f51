"""The options of a process: from `configure`, else from another process that wrapped a function, the environment, or the defaults."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypedDict, get_args

from msgspec import Struct
from msgspec.structs import replace

from optree._builder.core import Cycles
from optree._builder.stream import Write
from optree._interrupts import new_rlock, pass_on
from optree._providers.prices import PRICES, read_table
from optree._store.journal import Sync
from optree._store.reading.directory import SUFFIXES, Directory
from optree.errors import SetupError
from optree.redaction import VARIABLE, Redaction, settings, use


class Config(Struct, frozen=True):
    """The options of a process, as `configure` takes and returns them; each has a variable ``OPTREE_<NAME>`` of the environment."""

    enabled: bool = True
    """Whether anything is recorded. Its variable is ``OPTREE_DISABLED=1``, which switches off. The program runs on, and what is open is
    recorded to its end; what begins later is not."""
    base_dir: str | Path | None = None
    """Where sessions and ledger are kept, unless the next two say otherwise; by default ``~/.optree``."""
    sessions_dir: str | Path | None = None
    """Where sessions are kept; by default ``sessions`` in *base_dir*."""
    billing_file: str | Path | None = None
    """The ledger; by default ``accounting.jsonl`` in *base_dir*."""
    compression: str = "zstd"
    """How snapshots are compressed: ``zstd``, ``gzip`` or ``none``; all are read."""
    sync: Sync = "interval"
    """When data is forced to the disk, so that a loss of power cannot take it: ``interval`` each second, ``turn`` at each turn's end,
    ``op`` at each operation's end, ``write`` never."""
    write: Write = "structure"
    """What the operating system has when a call returns, so that the end of the process cannot take it: ``structure`` (begins, ends,
    accounting, messages), ``all`` (also logs and reasoning), ``deferred`` (nothing)."""
    redact: Redaction = Redaction()
    """What is replaced in all that is shown, exported or saved redacted, beside known credentials. ``OPTREE_REDACT`` is JSON."""
    redacted_save: bool = False
    """Whether credentials are replaced before anything is written; by default the disk has all, in files private to their owner."""
    content: bool = True
    """Whether it is recorded what is said: prompts, messages, answers, reasoning, arguments and results of tools, final reports. Without it
    the tree has models, parameters, names, sizes, tokens, costs, times, errors, log lines and attributes; *redacted_save* is on with it."""
    cycles: Cycles = "mark"
    """Whether an agent that calls itself, also through others, is marked (``mark``) or refused with `CycleError` (``block``)."""
    verbose: bool = False
    """Whether stderr gets a line for each request and response; otherwise warnings and errors only."""
    trace_llm: bool = False
    """Whether the lines hold the payloads of LLM calls, capped and redacted."""
    trace_tools: bool = False
    """Whether the lines hold the payloads of tool calls, capped and redacted."""
    console: bool = True
    """Whether lines are printed on stderr at all."""
    prices: bool | str | Path | None = None
    """Whether a call whose tokens are known gets the cost that nobody gave, by genai-prices; or the path of a file with prices of your own,
    JSON or TOML, that come first. By default it does while `instrument` records this program, if genai-prices is installed."""
    otel: Literal["auto", "on", "off"] | Mapping[str, Any] = "auto"
    """Whether sessions are sent to OpenTelemetry: ``auto`` (if ``OTEL_EXPORTER_OTLP_ENDPOINT`` is set), ``on``, ``off``, or options, which
    mean ``on``:
    `endpoint`, `protocol`, `exporter`, `profile`, `live`, `trace_per_turn`, `openinference`, `content`, `services`, `parent`,
    `deliver_at_exit`, `sampler`, `sampler_arg`, `sample_failed`."""


class OtelOptions(TypedDict, total=False):
    """What `configure(otel={…})` takes; None is as if it were not given."""

    endpoint: str | None
    protocol: Literal["http/protobuf", "grpc"] | None
    exporter: Any
    """``otlp`` (the default), ``sdk``, or a SpanExporter or SpanProcessor of opentelemetry-sdk, or a list of them."""
    profile: Literal["default", "jaeger", "tempo", "phoenix", "victoriatraces", "mlflow", "logfire"] | None
    live: bool | None
    trace_per_turn: bool | None
    openinference: bool | None
    content: Literal["no_content", "span_only", "event_only", "span_and_event"] | bool | None
    services: Literal["auto", "always", "never"] | None
    parent: Literal["child", "link", "ignore"] | None
    deliver_at_exit: bool | None
    sampler: (
        Literal["always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"]
        | None
    )
    sampler_arg: float | str | None
    sample_failed: bool | None


class Options(TypedDict, total=False):
    """What `configure` takes: the fields of `Config`, each by its name."""

    enabled: bool
    base_dir: str | Path | None
    sessions_dir: str | Path | None
    billing_file: str | Path | None
    compression: Literal["zstd", "gzip", "none"]
    sync: Sync
    write: Write
    redact: Redaction | Mapping[str, Any]
    redacted_save: bool
    content: bool
    cycles: Cycles
    verbose: bool
    trace_llm: bool
    trace_tools: bool
    console: bool
    prices: bool | str | Path | None
    otel: Literal["auto", "on", "off"] | OtelOptions


_CHOICES = {
    "compression": tuple(SUFFIXES),
    "sync": get_args(Sync),
    "write": get_args(Write),
    "cycles": get_args(Cycles),
    "otel": ("auto", "on", "off"),
}
_SWITCH: dict[str, bool] = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}
_PATHS = ("base_dir", "sessions_dir", "billing_file")
DISABLED = "OPTREE_DISABLED"
"""The variable that switches optree off."""
VARIABLES = {name: DISABLED if name == "enabled" else f"OPTREE_{name.upper()}" for name in Config.__struct_fields__}
"""The variable of each option."""
PATHS = {name: VARIABLES[name] for name in _PATHS}
"""Those that say where sessions are."""


def is_disabled(environment: Mapping[str, str] = os.environ) -> bool:
    """Tell whether the environment switches optree off."""
    return is_on(environment.get(DISABLED, ""))


def is_on(value: str) -> bool:
    """Tell whether a variable's value is on."""
    return value.lower() in ("1", "true", "yes", "on")


def from_environment(environment: Mapping[str, str] = os.environ) -> tuple[Config, list[str]]:
    """Return what ``OPTREE_<NAME>`` variables say, and texts about those that are passed over."""
    options: dict[str, Any] = {"enabled": not is_disabled(environment)}
    problems: list[str] = []
    for name in Config.__struct_fields__:
        value = environment.get(VARIABLES[name])
        if value is None or name in _PATHS or name == "enabled":  # `Directory.of` reads these
            continue
        if name == "redact":
            try:
                options[name] = Redaction.of(value)
            except SetupError as error:
                problems.append(f"{VARIABLE} is passed over, and only what is known by default is replaced: {error}")
        elif name == "prices":
            options[name] = _SWITCH.get(value.lower(), value) if value else None  # the file is read later
        elif name not in _CHOICES:
            options[name] = is_on(value)
        elif value in _CHOICES[name]:
            options[name] = value
        else:
            choices = ", ".join(_CHOICES[name])
            problems.append(f"{VARIABLES[name]}={value!r} is not possible and passed over; choose one of {choices}")
    return Config(**options), problems


def in_effect(config: Config) -> Config:
    """Return a config with what its options entail."""
    return config if config.content else replace(config, redacted_save=True)


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as error:  # it is removed
        pass_on(error)
        return Path()


_BEGAN_IN: Final = _working_directory()
"""Where a relative path in the environment is: the program may go into another directory."""


def directory_of(config: Config) -> Directory:
    """Return where sessions are kept."""
    directory = Directory.of(config.base_dir, config.sessions_dir, config.billing_file)
    if directory.sessions.is_absolute() and directory.billing.is_absolute():
        return directory
    return Directory(_BEGAN_IN / directory.sessions, _BEGAN_IN / directory.billing)


def variables(config: Config, directory: Directory) -> dict[str, str]:
    """Return the environment that gives another process what was configured here, but for redaction's callback and a mapping of `otel`."""
    before, _ = from_environment()
    values: dict[str, str] = {}
    for name in Config.__struct_fields__:
        value = getattr(config, name)
        if name == "prices" and isinstance(value, (str, Path)):
            value = str(Path(value).expanduser().absolute())
        elif name == "prices" and value is None:
            value = True if PRICES.on else "" if before.prices is not None else None  # what it comes to here
        if name == "enabled":
            values |= {DISABLED: str(int(not value))} if value != before.enabled else {}
        elif name == "redact":  # whatever variable the other process has
            values |= {VARIABLE: config.redact.to_json()} if config.redact != Redaction() or before.redact != Redaction() else {}
        elif name not in _PATHS and isinstance(value, (bool, str)) and value != getattr(before, name):
            values[VARIABLES[name]] = str(int(value)) if isinstance(value, bool) else value
    paths = filter(None, map(os.environ.get, PATHS.values()))
    if any(getattr(config, name) for name in _PATHS) or not all(path.startswith("~") or Path(path).is_absolute() for path in paths):
        values |= {"OPTREE_SESSIONS_DIR": str(directory.sessions), "OPTREE_BILLING_FILE": str(directory.billing)}
        values |= {"OPTREE_BASE_DIR": str(Path(config.base_dir).expanduser())} if config.base_dir else {}
    return values


def changed(config: Config, options: dict[str, Any]) -> Config:
    """Return a config with other options; raises `SetupError` for one that does not exist or cannot have that value."""
    for name, value in options.items():
        if name not in Config.__struct_fields__:
            raise SetupError(f"configure() has no option {name!r}; the options are {', '.join(sorted(Config.__struct_fields__))}")
        if name == "otel" and isinstance(value, Mapping):
            continue
        if name == "redact":
            options = options | {"redact": Redaction.of(value)}
            continue
        if name in _CHOICES and value not in _CHOICES[name]:
            raise SetupError(f"{name}={value!r} is not possible; choose one of {', '.join(_CHOICES[name])}")
        if name in _PATHS and not isinstance(value, (str, Path, type(None))):
            raise SetupError(f"{name}={value!r} is not possible; give a path")
        if name in _PATHS and value and not str(value).startswith("~"):
            options = options | {name: Path(value).absolute()}  # the program may go into another directory
            continue
        if name == "prices" and (value is None or isinstance(value, (str, Path))):
            options = options | {"prices": None if value is None else _prices(value)}
            continue
        if name not in _CHOICES and name not in _PATHS and not isinstance(value, bool):
            raise SetupError(f"{name}={value!r} is not possible; give True or False")
    return replace(config, **options)


def _prices(value: str | Path) -> bool | str | Path:
    """Return whether prices are used, or the path of a file of them. Raises `SetupError` where that cannot be read."""
    known = _SWITCH.get(value.lower()) if isinstance(value, str) else None
    if known is None:
        read_table(value)
        return value
    return known


_STARTED: Final = os.urandom(8)
"""Forked processes have the same."""
_FLAW: Final = "redact: the callback of the process that wrapped a function cannot be taken over"
_OWN: Final = f"{_FLAW}, and the one of this process is used: give a function that can be imported"
_NONE: Final = f"{_FLAW}, and texts are replaced whole: give a function that can be imported, or call configure in this process too"
_NOT_PICKLED: Final = b""
_MOST_CALLBACKS: Final = 64
_callbacks: dict[bytes, Callable[[str], str]] = {}
"""By token, the last callbacks that were set here, or before a fork: a forked process has them without pickling."""
_carried: tuple[tuple[object, ...], CarriedOptions] | None = None
"""What was carried last, with what it was worked out of."""


class CarriedOptions(NamedTuple):
    """The options of a process at a time, as they go to another one."""

    process: tuple[bytes, int]
    values: dict[str, str]
    """What it uses, as variables of the environment."""
    environment: dict[str, str]
    """What stood in its environment itself."""
    callback: bytes | None
    """That of redaction, pickled; empty if it cannot be."""
    token: bytes = b""
    """What names it in the process that set it, and in those that this forked since."""


def carry(config: Config, directory: Directory) -> CarriedOptions:
    """Return the options of this process for another one; worked out once as long as they stay, but for a callback, which may change."""
    global _carried  # noqa: PLW0603 - the last of them
    environment = _variables()
    of = _process(), config, directory, environment, PRICES.on
    if _carried is None or _carried[0] != of:
        values = environment | variables(config, directory) | {VARIABLE: config.redact.to_json()}  # the default too: never less
        _carried = of, CarriedOptions(of[0], values, environment, None)
    callback = config.redact.callback
    return _carried[1] if callback is None else _carried[1]._replace(callback=_pickled(callback), token=_token_of(callback))


class ConfigInUse:
    """Joins the options of this process's own program with those that it has taken over.

    What the program gave to `configure`, and variables of the environment that are others than where the function was wrapped, win; but
    redaction is never less than there.
    """

    def __init__(self, own: Config, changed_to: Callable[[Config], None]) -> None:
        """Begin with what the environment says; *changed_to* is called with what holds, after each change."""
        use(own.redact)
        self._own, self._changed_to = own, changed_to
        self._environment = _variables()
        self._given: set[str] = set()
        self._given_in = _process()
        self._taken: CarriedOptions | None = None
        self._theirs: dict[str, Any] = {}
        self._lock = new_rlock()

    def give(self, options: dict[str, Any]) -> Config:
        """Set options of this process's program; raises `SetupError`. Returns what holds then."""
        with self._lock:
            self._own = changed(self._own, options)
            if self._given_in != _process():  # what was given before a fork is the parent's
                self._given, self._given_in = set(), _process()
            self._given |= options.keys()
            return self._hold()

    def take(self, carried: CarriedOptions) -> list[str]:
        """Take over options of another process in place of those taken before; returns texts about what cannot be."""
        with self._lock:
            if carried == self._taken or carried.process == _process():
                return []
            config, problems = from_environment(carried.values)
            theirs = {name: getattr(config, name) for name, variable in VARIABLES.items() if variable in carried.values}
            theirs |= {name: carried.values[variable] for name, variable in PATHS.items() if variable in carried.values}
            if carried.callback is not None:
                callback, flaws = self._callback(carried, carried.callback)
                problems += flaws
                theirs["redact"] = replace(config.redact, callback=callback)
            self._taken, self._theirs = carried, theirs
            self._hold()
            return problems

    def _hold(self) -> Config:
        config = self._own
        if self._taken is not None:
            said = self._said(self._taken)
            options = {name: value for name, value in self._theirs.items() if name not in said}
            if "redact" in self._theirs and ("redact" in said or config.redact != Redaction()):  # also what a process before a fork set
                options["redact"] = _both(self._theirs["redact"], config.redact)
            options["redacted_save"] = self._theirs.get("redacted_save", False) or config.redacted_save
            options["content"] = self._theirs.get("content", True) and config.content
            config = replace(config, **options)
        config = in_effect(config)
        if config.redact.callback is not None:
            _token_of(config.redact.callback)
        if config.redact != settings():
            use(config.redact)
        self._changed_to(config)
        return config

    def _said(self, carried: CarriedOptions) -> set[str]:
        """Return the options that this process's own program or environment set."""
        here = {**self._environment, **{variable: os.environ[variable] for variable in PATHS.values() if variable in os.environ}}
        said = {name for name, variable in VARIABLES.items() if variable in here and here[variable] != carried.environment.get(variable)}
        if self._given_in == _process():
            said |= self._given
        return said | PATHS.keys() if said & PATHS.keys() else said

    def _callback(self, carried: CarriedOptions, pickled: bytes) -> tuple[Callable[[str], str] | None, list[str]]:
        """Return the callback of another process, or what stands in for it and a text that says so."""
        from pickle import loads  # which whoever wraps for another process has

        if pickled == _NOT_PICKLED and (known := _callbacks.get(carried.token)) is not None:
            return known, []
        try:
            callback = loads(pickled)  # noqa: S301 - it came as the function itself did
        except Exception as error:  # noqa: BLE001 - the program's own code
            pass_on(error)
        else:
            return callback, []
        if "redact" in self._said(carried) and self._own.redact.callback is not None:
            return None, [_OWN]
        return withhold, [_NONE]


def withhold(text: str) -> str:
    """Stand in for a callback that this process cannot have: where one raises, the whole text is replaced."""
    if text != _NONE:
        raise LookupError(_FLAW)
    return text


class _InTurn(Struct, frozen=True):
    """Two callbacks, one after the other."""

    first: Callable[[str], str]
    second: Callable[[str], str]

    def __call__(self, text: str) -> str:
        return self.second(self.first(text))


def _both(theirs: Redaction, own: Redaction) -> Redaction:
    """Return settings that replace what either does."""
    added = {name: (*getattr(theirs, name), *getattr(own, name)) for name in ("patterns", "names", "mask")}
    callback = own.callback if theirs.callback is None else theirs.callback
    if theirs.callback is not None and own.callback is not None and theirs.callback != own.callback:
        callback = _InTurn(theirs.callback, own.callback)
    return Redaction(
        **{name: tuple(dict.fromkeys(values)) for name, values in added.items()},
        disable=tuple(one for one in own.disable if one in theirs.disable),
        callback=callback,
    )


def _pickled(callback: Callable[[str], str] | None) -> bytes | None:
    from pickle import dumps

    if callback is None:
        return None
    try:
        return dumps(callback)
    except Exception as error:  # noqa: BLE001 - the program's own code
        pass_on(error)
        return _NOT_PICKLED


def _token_of(callback: Callable[[str], str]) -> bytes:
    token = next((token for token, known in list(_callbacks.items()) if known is callback), b"")
    if not token:
        _callbacks[token := os.urandom(8)] = callback
        while len(_callbacks) > _MOST_CALLBACKS:
            _callbacks.pop(next(iter(_callbacks)), None)
    return token


def _process() -> tuple[bytes, int]:
    return _STARTED, os.getpid()


def _variables() -> dict[str, str]:
    """Return those variables of options that the environment has."""
    return {variable: os.environ[variable] for variable in VARIABLES.values() if variable in os.environ}
