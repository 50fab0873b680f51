"""The shapes of nodes and entries, with the field names of seed 004: snake_case in Python, camelCase in files.

Times are epoch milliseconds (floats), durations milliseconds, money US dollars. An attribute block or payload is kept as the
JSON bytes it had when it was recorded (`msgspec.Raw`), and decoded when asked for: no garbage collector walks it.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from msgspec import UNSET, Raw, Struct, UnsetType, field

from optree._values import decode, is_object

OpKind = Literal["llm", "tool", "session", "system"]
Severity = Literal["VRB", "WRN", "ERR", "TRC", "THK", "FIN"]
Status = Literal["ok", "failed", "cancelled", "interrupted"]
"""How a node ended: `interrupted` is given on resume to what a crash left open; a node still open has no status."""


AS_TOLD = "ai-agent"
"""Attribute of a node, and member of a log line's details: what a file of the original ai-agent says of it beside the fields here."""


def parts_of_name(name: str) -> tuple[str | None, str | None]:
    """Return the two parts of an llm op's name (``provider:model``); None for one that names neither."""
    provider, colon, model = name.partition(":")
    return (provider, model) if colon else (None, None)


class _Leaf(Struct, rename="camel", omit_defaults=True, gc=False):
    """An entry: flat and without containers, so that a million of them do not slow the collector."""


def _attributes(block: Raw | UnsetType) -> dict[str, Any]:
    """Return attributes decoded; none where a file has something else in their place."""
    found: Any = None if block is UNSET else decode(block)
    return found if is_object(found) else {}


class _Node(Struct, rename="camel", omit_defaults=True, gc=False):
    """A node. Nothing in a tree points upwards, so the collector has no cycle to find; entries are in tuples, which it forgets."""


class LogEntry(_Leaf):
    """A log line of an operation; `flatten` gives it with its path."""

    timestamp: float
    """Epoch milliseconds."""
    severity: str
    """``VRB``, ``WRN``, ``ERR``, ``TRC``, ``THK`` or ``FIN``."""
    message: str
    """The text."""
    direction: Literal["request", "response"] | None = None
    """Whether it is about what was sent or what came back."""
    details: Raw | UnsetType = UNSET
    """A JSON object that the program gave with it."""


class ReasoningChunk(_Leaf):
    """One piece of streamed reasoning, as emitted."""

    text: str
    ts: float


class Tokens(_Leaf):
    """Tokens of one LLM attempt in parts that add up: *total_tokens* = input + output + cache read + cache write.

    So *input_tokens* are those that neither came from the provider's cache nor went to it. What is shown anywhere is `all_input_tokens`.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_write_input_tokens: int = 0
    total_tokens: int = 0
    reasoning_output_tokens: int = 0
    """Those of the output that were reasoning."""

    @property
    def all_input_tokens(self) -> int:
        """All that was sent: fresh, from the cache, and to the cache."""
        return self.input_tokens + self.cache_read_input_tokens + self.cache_write_input_tokens


class AccountingEntry(_Leaf):
    """What one request to a model, or one tool call, took."""

    id: str
    """Unique in all sessions: ``<txn>:<path>#<number>``, or ``#open`` of a call that nobody had accounted for when it was broken off."""
    timestamp: float
    """Epoch milliseconds."""
    type: Literal["llm", "tool"]
    """Whether a model or a tool was called."""
    status: Literal["ok", "failed"] = "ok"
    """Whether the call succeeded."""
    latency: float | None = None
    """Milliseconds."""
    provider: str | None = None
    """Who was asked."""
    model: str | None = None
    """The model that was asked for."""
    actual_provider: str | None = None
    """Who answered, if the provider says it."""
    actual_model: str | None = None
    """The model that answered, if the provider says it."""
    tokens: Tokens | None = None
    """Tokens sent and received; None for a call that took none, or did not say."""
    cost_usd: float | None = None
    """US dollars; None if nobody gave a cost."""
    upstream_inference_cost_usd: float | None = None
    """US dollars that a router paid to the provider behind it."""
    mcp_server: str | None = None
    """The MCP server of a tool."""
    command: str | None = None
    """The tool's name."""
    characters_in: int | None = None
    """Bytes of a tool's arguments as JSON."""
    characters_out: int | None = None
    """Size of a tool's result."""
    error: str | None = None
    """What went wrong."""
    details: Raw | UnsetType = UNSET
    """What else was said of it, as a JSON object: members of a provider's usage, and figures under names that optree does not know."""
    retried: bool = False
    """True for what counts as no call: an attempt that failed and was made again, or what is billed beside the calls that are known."""
    replay_of: str | None = None
    """``<txn>:<path>`` of the op whose recorded answer the call got: nobody was paid."""


_PLACEHOLDER = "#open"


def placeholder_of(op_id: str) -> str:
    """Return the id of the placeholder for a call that was not accounted for when what it is in ended: a later entry replaces it."""
    return op_id + _PLACEHOLDER


def is_placeholder(identity: str) -> bool:
    """Tell whether an accounting entry's id is that of a placeholder."""
    return identity.endswith(_PLACEHOLDER)


def is_counted(entry: AccountingEntry) -> bool:
    """Tell whether an entry stands for a call by itself: that went well, or tells tokens, or its place is kept."""
    return entry.status == "ok" or bool(entry.tokens and entry.tokens.total_tokens) or is_placeholder(entry.id)


def has_open_attempt(op: OperationNode) -> bool:
    """Tell whether an op has no accounting entry for its call, or for the attempt behind one that failed and was made again."""
    return not op.accounting or was_made_again(op.accounting[-1])


def was_made_again(entry: AccountingEntry) -> bool:
    """Tell whether an entry is of an attempt that failed, behind which another was made: it says nothing of how the call ended."""
    return entry.retried and entry.status == "failed"


SNAPSHOT = "pricingSnapshot"
"""The attribute of a session that holds the prices by which entries in it, and below it, were billed, by name (seed 004)."""
FROM_CACHE = "from the cache"
"""The log of an op whose result came from a cache of the program's own framework."""
REPLAY_OF = "replay.of"
"""The attribute of an op that got a recorded answer: ``<txn>:<path>`` of the op that has it."""
PARTIAL = "partial"
"""The member of a usage, and of an entry's details, that is true where a stream broke off before it told all that the call took."""
USAGE_AT_START = "usage_at_start"
"""The attribute of an llm op with the tokens that its provider reported as a stream began: all that is known of one that breaks off."""
BROKEN_OFF_CALLS = "response.tool_calls"
"""The attribute of an op whose answer broke off that has the function calls in it, as far as they had come: they are content."""
ERROR_BODY = "error.body"
"""The attribute that has all that a provider said of a failure. Its message is content, as an answer is."""
ATTRIBUTES_WITH_CONTENT = frozenset({BROKEN_OFF_CALLS, ERROR_BODY, "permission_denials", "deferred_tool_use"})
"""The last two are what Claude Code tells of tools that it did not run."""
NOT_RECORDED = "[not recorded]"
"""Stands in the place of a text in a session that is recorded without content."""
CONTENT_RECORDED = "content_recorded"
"""The attribute of a root session that is false where nothing of what was said in it is recorded."""
PIECE_OF_TEXT = "piece_of_text"
"""The role of a text that is in nobody's transcript: made on the way, and heard by others (seeds 000 and 001)."""


class Message(_Leaf):
    """One entry of a session's transcript: the message as given to or by the provider, as JSON.

    It is new content, with a *cause*, or stands for the content of another message, its *substance*; never both.
    """

    timestamp: float
    """Epoch milliseconds."""
    role: str
    """``user``, ``assistant``, ``tool``, ``system``, or `PIECE_OF_TEXT`."""
    body: Raw
    """The message as JSON; `optree.Session.history` decodes it."""
    id: str | None = None
    """The message's id, unique in the whole tree."""
    substance: str | None = None
    """Id of the message whose content this one represents."""
    cause: tuple[str, ...] = ()
    """Ids of the messages that this one came from; ``<message>.<tool call>`` names one call of several."""


class Totals(_Leaf):
    """Sums over a session and all sub-agents' sessions below it, each accounting entry counted once."""

    input_tokens: int = 0
    """Tokens sent, without those from and to the provider's cache."""
    output_tokens: int = 0
    """Tokens received, with those of reasoning."""
    cache_read_input_tokens: int = 0
    """Tokens that came from the provider's cache."""
    cache_write_input_tokens: int = 0
    """Tokens written to it."""
    cost_usd: float = 0.0
    """US dollars, of the entries that say what they cost."""
    upstream_inference_cost_usd: float = 0.0
    """US dollars that routers paid to the providers behind them."""
    llm_requests: int = 0
    """Calls of models that are accounted for; attempts of one count once."""
    llm_failed: int = 0
    """Those of them that failed."""
    tools_run: int = 0
    """Tool calls, whether they have ended or not."""
    tools_failed: int = 0
    """Tool calls that failed."""
    characters_in: int = 0
    """Sizes of tools' arguments."""
    characters_out: int = 0
    """Sizes of tools' results."""
    reasoning_output_tokens: int = 0
    """Tokens of the output that were reasoning."""
    known_costs: int = 0
    """How many entries have a known cost, which may be 0."""
    unknown_costs: int = 0
    """How many requests to models, and tool calls that took tokens, have an unknown cost."""

    @property
    def all_input_tokens(self) -> int:
        """All that was sent: fresh, from the cache, and to the cache."""
        return self.input_tokens + self.cache_read_input_tokens + self.cache_write_input_tokens


class Reasoning(_Node):
    """Streamed reasoning of an op."""

    chunks: tuple[ReasoningChunk, ...] = ()
    final: str | None = None

    @property
    def text(self) -> str:
        """The reasoning as a whole: what was given so, else its chunks."""
        return self.final or "".join(chunk.text for chunk in self.chunks)


class Payload(_Leaf):
    """A request or a response. *size* counts the bytes of its JSON, histories in full; of a plain text its characters."""

    payload: Raw
    kind: str | None = None
    size: int | None = None
    truncated: bool | None = None
    partial: bool | None = None
    """True for a response of which only some came: the text that was streamed so far, or until it broke off."""


class OperationNode(_Node):
    """One operation of a turn: a request to a model, a tool call, a sub-agent's run, or a step of the system."""

    op_id: str
    """``<txn>:<path>``."""
    path: str
    """Its path in the whole tree, such as ``1.2``."""
    kind: OpKind
    """``llm``, ``tool``, ``session`` or ``system``."""
    name: str
    """``provider:model``, the tool's name, or the agent's."""
    started_at: float
    """Epoch milliseconds."""
    logs: tuple[LogEntry, ...]
    """Its log lines, in the order they were given."""
    accounting: tuple[AccountingEntry, ...]
    """What it took; more than one entry where it was accounted for in parts."""
    ended_at: float | None = None
    """Epoch milliseconds; None while it is open, and after a crash until the session is resumed."""
    status: Status | None = None
    """How it ended."""
    latency: float | None = None
    """Milliseconds, by a clock that is never set back."""
    error: str | None = None
    """What went wrong."""
    parent_op: str | None = None
    """The path of the operation of the same turn that this one began in, if any."""
    attributes_json: Raw | UnsetType = field(name="attributes", default=UNSET)
    """The attributes as JSON."""
    request: Payload | None = None
    """What it sent."""
    reasoning: Reasoning | None = None
    """What the model thought."""
    response: Payload | None = None
    """What it got back."""
    child_session: SessionNode | None = None
    """The sub-agent's session, of an operation of kind ``session``."""

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes, decoded."""
        return _attributes(self.attributes_json)


class TurnNode(_Node):
    """One turn of a session."""

    id: str
    """``<txn>:<path>``."""
    path: str
    """Its path in the whole tree, such as ``1``."""
    index: int
    """Its number in the session, from 1; 0 is the system's turn."""
    started_at: float
    """Epoch milliseconds."""
    ops: list[OperationNode]
    """Its operations, in the order they began."""
    ended_at: float | None = None
    """Epoch milliseconds; None while it is open."""
    status: Status | None = None
    """How it ended."""
    error: str | None = None
    """What went wrong."""
    prompts: dict[str, str] | None = None
    """The prompts in force, under ``system`` and ``user``."""
    assistant: dict[str, str] | None = None
    """What the assistant said, under ``content``."""
    attributes_json: Raw | UnsetType = field(name="attributes", default=UNSET)
    """The attributes as JSON."""

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes, decoded."""
        return _attributes(self.attributes_json)


class SessionNode(_Node):
    """One run of one agent: the root of a tree, or a sub-agent's inside a `session` op."""

    id: str
    """``<txn>`` of the root session, ``<txn>:<path>`` of a sub-agent's."""
    path: str
    """Empty for the root session, else the path of the operation that it is in."""
    trace_id: str
    """The OpenTelemetry trace id, 32 hexadecimal digits."""
    agent_id: str
    """The agent's name."""
    call_path: str
    """The agents from the root to this one, joined by ``->``."""
    origin_txn_id: str
    """The root session's txn."""
    started_at: float
    """Epoch milliseconds."""
    turns: list[TurnNode]
    """Its turns, in the order they began."""
    parent_txn_id: str | None = None
    """The id of the session above."""
    session_title: str | None = None
    """The title, for people."""
    latest_status: str | None = None
    """The latest status line, for people."""
    attributes_json: Raw | UnsetType = field(name="attributes", default=UNSET)
    """The attributes as JSON."""
    messages: list[Message] = []
    """The transcript."""
    ended_at: float | None = None
    """Epoch milliseconds; None while it is open, and after a crash until it is resumed."""
    status: Status | None = None
    """How it ended."""
    success: bool | None = None
    """Whether it ended as ``ok``; None while it is open."""
    error: str | None = None
    """What went wrong."""
    final_report: Raw | UnsetType = UNSET
    """What it gave as its result, as JSON."""
    resumed_at: list[float] = []
    """When it was resumed, in epoch milliseconds."""
    seen_at: float | None = None
    """Of a root session that was interrupted: when its process was last known to live, in epoch milliseconds."""
    totals: Totals = field(default_factory=Totals)
    """Sums over the session and all below it."""

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes, decoded; `ingress` holds how the run started."""
        return _attributes(self.attributes_json)


class Pool(Struct, rename="camel"):
    """Content stored once: *blobs* by content id, *links* ``[id, previous link or "", blob id]`` that chain them to histories."""

    blobs: dict[str, Raw] = {}
    links: dict[str, tuple[str, str]] = {}

    def history(self, head: str) -> list[Any]:
        """Return the values that lead to link *head*, oldest first; a lost link ends the list early."""
        values: list[Any] = []
        seen: set[str] = set()
        while head and head in self.links and head not in seen:
            seen.add(head)
            head, blob = self.links[head]
            values.append(decode(self.blobs.get(blob)))
        values.reverse()
        return values

    def resolve(self, value: Any) -> Any:
        """Return a decoded payload with each ``{"$history": …}`` and ``{"$blob": …}`` replaced by what it stands for.

        Members of the program's own that have these names stay, unless they have the form of a reference too.
        """
        if is_object(value):
            if isinstance(link := value.get("$history"), str):
                return self.history(link)
            if len(value) == 1 and isinstance(blob := value.get("$blob"), str):
                return decode(self.blobs.get(blob))
            return {key: self.resolve(item) for key, item in value.items()}
        return value


def lacks_content(root: SessionNode) -> bool:
    """Tell whether a root session, or a part of it, was recorded without what was said in it."""
    return root.attributes.get(CONTENT_RECORDED) is False


_KINDS: dict[Any, OpKind] = {kind: kind for kind in get_args(OpKind)}


def kind_of(value: Any) -> OpKind | None:
    """Return the kind of an op; None for any other value."""
    return _KINDS.get(value) if isinstance(value, str) else None
