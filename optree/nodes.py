"""The shapes of nodes and entries, with the field names of seed 004: snake_case in Python, camelCase in files.

Times are epoch milliseconds (floats), durations milliseconds, money US dollars. An attribute block or payload is kept as the
JSON bytes it had when it was recorded (`msgspec.Raw`), and decoded when asked for: no garbage collector walks it.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Raw, Struct, UnsetType, field

from optree.values import decode, is_object

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


class _Node(Struct, rename="camel", omit_defaults=True, gc=False):
    """A node. Nothing in a tree points upwards, so the collector has no cycle to find; entries are in tuples, which it forgets."""


class LogEntry(_Leaf):
    """One log line of an op. Its path is its op's; `flatten` writes it out."""

    timestamp: float
    severity: str
    message: str
    direction: Literal["request", "response"] | None = None
    details: Raw | UnsetType = UNSET


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
    """What one LLM attempt or one tool call cost. `id` is unique for ever: ``<txn>:<path>#<number>``."""

    id: str
    timestamp: float
    type: Literal["llm", "tool"]
    status: Literal["ok", "failed"] = "ok"
    latency: float | None = None
    provider: str | None = None
    model: str | None = None
    actual_provider: str | None = None
    actual_model: str | None = None
    tokens: Tokens | None = None
    cost_usd: float | None = None
    upstream_inference_cost_usd: float | None = None
    mcp_server: str | None = None
    command: str | None = None
    characters_in: int | None = None
    characters_out: int | None = None
    error: str | None = None
    details: Raw | UnsetType = UNSET
    """What else was said of it, as a JSON object: members of a provider's usage, and figures under names that optree does not know."""


USAGE_AT_START = "usage_at_start"
"""The attribute of an llm op that holds the tokens that its provider told as a stream began: all that is known of one that breaks off."""
PIECE_OF_TEXT = "piece_of_text"
"""The role of a text that is in nobody's transcript: made on the way, and heard by others (seeds 000 and 001)."""


class Message(_Leaf):
    """One entry of a session's transcript: the message as given to or by the provider, as JSON.

    It is new content, with a *cause*, or stands for the content of another message, its *substance*; never both.
    """

    timestamp: float
    role: str
    """``user``, ``assistant``, ``tool``, ``system``, or `PIECE_OF_TEXT`."""
    body: Raw
    id: str | None = None
    """The message's id, unique in the whole tree."""
    substance: str | None = None
    """Id of the message whose content this one represents."""
    cause: tuple[str, ...] = ()
    """Ids of the messages that this one came from; ``<message>.<tool call>`` names one call of several."""


class Totals(_Leaf):
    """Sums over a session and all its child sessions, each accounting entry counted once; tokens in the parts that `Tokens` has."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_write_input_tokens: int = 0
    cost_usd: float = 0.0
    """What the entries cost that say it."""
    upstream_inference_cost_usd: float = 0.0
    llm_requests: int = 0
    """Attempts that are accounted for, several of one op too."""
    llm_failed: int = 0
    tools_run: int = 0
    """Tool ops, whether they have ended or not."""
    tools_failed: int = 0
    characters_in: int = 0
    characters_out: int = 0
    reasoning_output_tokens: int = 0
    known_costs: int = 0
    """Entries that say what they cost, be it 0."""
    unknown_costs: int = 0
    """Entries of LLM attempts, and of calls of tools that took tokens, which do not say it."""

    @property
    def all_input_tokens(self) -> int:
        """All that was sent: fresh, from the cache, and to the cache."""
        return self.input_tokens + self.cache_read_input_tokens + self.cache_write_input_tokens


class Reasoning(_Node):
    """Streamed reasoning of an op."""

    chunks: tuple[ReasoningChunk, ...] = ()
    final: str | None = None


class Payload(_Leaf):
    """A request or a response. *size* counts the bytes of its JSON, histories in full; of a plain text its characters."""

    payload: Raw
    kind: str | None = None
    size: int | None = None
    truncated: bool | None = None
    partial: bool | None = None
    """True for a response of which only some came: the text that was streamed so far, or until it broke off."""


class OperationNode(_Node):
    """One operation of a turn: an LLM attempt, a tool call, a sub-agent's session, or a step of the system."""

    op_id: str
    path: str
    kind: OpKind
    name: str
    started_at: float
    logs: tuple[LogEntry, ...]
    accounting: tuple[AccountingEntry, ...]
    ended_at: float | None = None
    status: Status | None = None
    latency: float | None = None
    error: str | None = None
    parent_op: str | None = None
    """Path of the op that was current when this one began in the same turn, where there was one."""
    attributes_json: Raw | UnsetType = field(name="attributes", default=UNSET)
    request: Payload | None = None
    reasoning: Reasoning | None = None
    response: Payload | None = None
    child_session: SessionNode | None = None

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes, decoded."""
        return {} if self.attributes_json is UNSET else decode(self.attributes_json)


class TurnNode(_Node):
    """One turn of a session; turn 0 is the system's."""

    id: str
    path: str
    index: int
    started_at: float
    ops: list[OperationNode]
    ended_at: float | None = None
    status: Status | None = None
    error: str | None = None
    prompts: dict[str, str] | None = None
    assistant: dict[str, str] | None = None
    attributes_json: Raw | UnsetType = field(name="attributes", default=UNSET)

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes, decoded."""
        return {} if self.attributes_json is UNSET else decode(self.attributes_json)


class SessionNode(_Node):
    """One run of one agent: the root of a tree, or a sub-agent's inside a `session` op."""

    id: str
    path: str
    trace_id: str
    agent_id: str
    call_path: str
    origin_txn_id: str
    started_at: float
    turns: list[TurnNode]
    parent_txn_id: str | None = None
    session_title: str | None = None
    latest_status: str | None = None
    attributes_json: Raw | UnsetType = field(name="attributes", default=UNSET)
    messages: list[Message] = []
    ended_at: float | None = None
    status: Status | None = None
    success: bool | None = None
    error: str | None = None
    final_report: Raw | UnsetType = UNSET
    resumed_at: list[float] = []
    seen_at: float | None = None
    """Of a root session that broke off: when its process was last known to live."""
    totals: Totals = field(default_factory=Totals)

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes, decoded; `ingress` holds how the run started."""
        return {} if self.attributes_json is UNSET else decode(self.attributes_json)


class Pool(Struct, rename="camel"):
    """Content stored once: *blobs* by content id, *links* ``[id, previous link or "", blob id]`` that chain them to histories."""

    blobs: dict[str, Raw] = {}
    links: dict[str, tuple[str, str]] = {}

    def history(self, head: str) -> list[Any]:
        """Return the values that lead to link *head*, oldest first; a lost link ends the list early."""
        found: list[Any] = []
        seen: set[str] = set()
        while head and head in self.links and head not in seen:
            seen.add(head)
            head, blob = self.links[head]
            found.append(decode(self.blobs.get(blob)))
        found.reverse()
        return found

    def resolve(self, value: Any) -> Any:
        """Return a decoded payload with each ``{"$history": …}`` and ``{"$blob": …}`` replaced by what it stands for."""
        if is_object(value):
            if "$history" in value:
                return self.history(value["$history"])
            if "$blob" in value:
                return decode(self.blobs.get(value["$blob"]))
            return {key: self.resolve(item) for key, item in value.items()}
        return value
