"""The wire schema: one flat record for everything that happens, one line of the journal each.

A line is a JSON object whose last member is a checksum of fixed width, so it can be checked without parsing::

    {"t":"op.begin","path":"1.2","ts":1760000000123.25,"kind":"llm",…,"n":42,"c":"9a3f01bc"}

`t` names the record, `n` counts the records of one writer without a gap, `c` is the CRC-32 of all bytes before ``,"c"``, seeded with
the checksum of the file's header line, so that bytes of another file cannot pass. Entries carry the position (`at`) at which they stand
in their node's list: applying a record twice changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast
from zlib import crc32

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from optree import _nodes as nodes
from optree._interrupts import pass_on
from optree._values import MAX_TEXT, TypedDecoder, clean, cut, dumps, text
from optree.errors import FormatError

FORMAT = 1
"""Version of the journal. A reader refuses a file whose `minReader` is above this number."""


class Record(Struct, tag_field="t", rename="camel", omit_defaults=True, kw_only=True, gc=False):
    """Base of all records: one thing that happened. Where a record has a position *at*, -1 is the end."""

    n: int = 0
    """Its number in its journal, from 1; 0 until it is written."""


class Header(Record, tag="journal"):
    """First line of a file: whose it is, and where it goes on from."""

    format: int
    min_reader: int
    txn: str
    writer: str
    segment: int
    first: int
    created: float
    optree: str
    pid: int = 0
    host: str = ""
    base: int = 0
    """Number added to turn and op indices that this writer gives in sessions it does not own."""


class SessionBegin(Record, tag="session.begin"):
    """A session began."""

    path: str
    """Empty for the root session, else the path of the operation that the session is in."""
    ts: float
    """Epoch milliseconds."""
    agent: str
    """The agent's name."""
    call_path: str
    """The agents from the root to this one, joined by ``->``."""
    attributes: Raw | UnsetType = UNSET
    """A JSON object."""
    id: str | None = None
    """Its id, in a file that others wrote; None if it follows from the txn and the path."""


class SessionSet(Record, tag="session.set"):
    """A title or a status line for people was set, a session's result, or more of its attributes: they are merged into those it began with.

    *ended_at*: something in it ended after it had; it lasted until then. *prices*: an object of those by which calls were billed, by name.
    """

    path: str
    ts: float
    title: str | None = None
    latest_status: str | None = None
    attributes: Raw | UnsetType = UNSET
    ended_at: float | None = None
    prices: Raw | UnsetType = UNSET
    final_report: Raw | UnsetType = UNSET


class SessionResume(Record, tag="session.resume"):
    """The session goes on in a new process: it is open again."""

    path: str
    ts: float


class SessionEnd(Record, tag="session.end"):
    """A session ended."""

    path: str
    """The session's path."""
    ts: float
    """Epoch milliseconds."""
    status: nodes.Status | None
    """How it ended; None, here and for turns and operations, if a file did not say it."""
    error: str | None = None
    """What went wrong."""
    final_report: Raw | UnsetType = UNSET
    """What the session gave as its result, as JSON."""


class MessageAdded(Record, tag="message"):
    """An entry of the session's transcript."""

    path: str
    at: int
    message: nodes.Message


class TurnBegin(Record, tag="turn.begin"):
    """A turn began."""

    path: str
    """The turn's path."""
    ts: float
    """Epoch milliseconds."""
    prompts: dict[str, str] | None = None
    """The prompts in force, under ``system`` and ``user``."""
    attributes: Raw | UnsetType = UNSET
    """A JSON object."""
    id: str | None = None
    """Its id, in a file that others wrote; None if it follows from the txn and the path."""


class TurnSet(Record, tag="turn.set"):
    """What the assistant said before its tool calls, or at the end; prompts that were set after the begin; *ended_at* as of a session."""

    path: str
    assistant: dict[str, str] | None = None
    prompts: dict[str, str] | None = None
    ended_at: float | None = None


class TurnEnd(Record, tag="turn.end"):
    """A turn ended."""

    path: str
    """The turn's path."""
    ts: float
    """Epoch milliseconds."""
    status: nodes.Status | None
    """How it ended."""
    error: str | None = None
    """What went wrong."""


class OpBegin(Record, tag="op.begin"):
    """An operation began."""

    path: str
    """The operation's path."""
    ts: float
    """Epoch milliseconds."""
    kind: nodes.OpKind
    """``llm``, ``tool``, ``session`` or ``system``."""
    name: str
    """``provider:model``, the tool's name, or the agent's."""
    parent_op: str | None = None
    """The path of the operation of the same turn that it began in."""
    attributes: Raw | UnsetType = UNSET
    """A JSON object."""
    id: str | None = None
    """Its id, in a file that others wrote; None if it follows from the txn and the path."""


class OpSet(Record, tag="op.set"):
    """A name or more attributes of an op, set after its begin: attributes are merged into those it began with.

    *reasoning* is that of an op which has no end, as a whole.
    """

    path: str
    ts: float
    name: str | None = None
    attributes: Raw | UnsetType = UNSET
    reasoning: str | None = None


AT_THE_END = -1
"""The place of entries in a list that another process may hold as well."""
BESIDE = -2
"""The place of text that came of an op's answer in another process than the one that began the op, and closes the answer."""


class Entries(Record, tag="entries"):
    """Log lines, reasoning chunks and the text of the answer that came for one op since the last such record.

    `*_at` says where the first of each stands; of the text, behind how many characters; or `AT_THE_END`, or for the text `BESIDE`.
    """

    path: str
    logs_at: int = 0
    logs: Sequence[nodes.LogEntry] = ()
    chunks_at: int = 0
    chunks: Sequence[nodes.ReasoningChunk] = ()
    text_at: int = 0
    text: str = ""


class Accounted(Record, tag="accounting"):
    """An accounting entry of an op; its id makes it count once."""

    path: str
    entry: nodes.AccountingEntry


class Requested(Record, tag="request"):
    """What an op sent."""

    path: str
    ts: float
    request: nodes.Payload


class Responded(Record, tag="response"):
    """What an op got back."""

    path: str
    ts: float
    response: nodes.Payload


class OpEnd(Record, tag="op.end"):
    """An operation ended."""

    path: str
    """The operation's path."""
    ts: float
    """Epoch milliseconds."""
    status: nodes.Status | None
    """How it ended."""
    latency: float | None = None
    """Milliseconds."""
    error: str | None = None
    """What went wrong."""
    reasoning: str | None = None
    """The reasoning as a whole."""
    attributes: Raw | UnsetType = UNSET
    """A JSON object, merged into the attributes that it began with."""


class Pooled(Record, tag="pool"):
    """Content stored once for all that refer to it; see `nodes.Pool`."""

    blobs: dict[str, Raw] = {}
    links: list[tuple[str, str, str]] = []


class Gap(Record, tag="gap"):
    """Records were lost before this one, since the disk would not take them."""

    ts: float
    dropped: int
    reason: str = ""
    omitted: list[tuple[int, int]] = []
    """Of those that had a number already, since a sync that failed lost them: first and last number of each row of them."""


AnyRecord = (
    Header | SessionBegin | SessionSet | SessionResume | SessionEnd | MessageAdded | TurnBegin | TurnSet | TurnEnd
    | OpBegin | OpSet | Entries | Accounted | Requested | Responded | OpEnd | Pooled | Gap
)  # fmt: skip

_decode: TypedDecoder[Record] = TypedDecoder(AnyRecord)
_SAFE = frozenset({int, float, bool, Raw, UnsetType})
TRAILER = len(',"c":"00000000"}')
_CARRIED = re.compile(rb',"c":"([0-9a-f]{8})"\}\Z')
_FLIPPED = re.compile(rb',"[^"]":"[^"]{8}"\}\Z')
_POLYNOMIAL, _UNSHIFTED, _ONE_BYTE_BACK = 0xEDB88320, 1 << 31, 0x6567CB95
"""CRC-32's; the polynomials 1 and x^-8."""


def line(record: Record, seed: int) -> bytes:
    """Return the record as a line of the journal, newline included. Text that JSON cannot hold is marked (U+FFFD)."""
    try:
        body = dumps(record)[:-1]
        if len(body) > MAX_TEXT and _cut_entries(record):
            body = dumps(record)[:-1]
    except Exception as error:  # noqa: BLE001 - lone surrogates, or a value of a wrong type: never lose the record for it
        pass_on(error)
        body = dumps(sanitize(record))[:-1]
    return summed(body, seed)


def summed(body: bytes, seed: int = 0) -> bytes:
    """Return a line of JSON, newline included, with its checksum: *body* is an object without its closing brace."""
    return b'%b,"c":"%08x"}\n' % (body, crc32(body, seed))


def _cut_entries(record: Record) -> bool:
    """Cut texts that are too long, in the tree as well; looked at only where a line came out long, to spare the hot path."""
    if not isinstance(record, Entries):
        return False
    for entry in record.logs:
        entry.message = cut(entry.message)
    for chunk in record.chunks:
        chunk.text = cut(chunk.text)
    return True


def header_line(header: Header) -> tuple[bytes, int]:
    """Return a file's first line and the seed for the checksums of the lines that follow."""
    written = line(header, 0)
    return written, crc32(written)


def check(data: bytes, seed: int = 0) -> bool:
    """Tell whether a line (without its newline) carries the right checksum."""
    return data[-TRAILER:-10] == b',"c":"' and data[-10:] == b'%08x"}' % crc32(data[:-TRAILER], seed)


def is_summed(data: bytes) -> bool:
    """Tell whether a line (without its newline) carries a checksum: the right one, another, or one with a flipped bit."""
    return _FLIPPED.search(data) is not None


def seed_of(data: bytes) -> int | None:
    """Return the only seed with which a line (without its newline) carries the right checksum; None if it carries none."""
    if (carried := _CARRIED.search(data)) is None:
        return None
    apart = int(carried[1], 16) ^ crc32(data[:-TRAILER])
    shift, back = _UNSHIFTED, _ONE_BYTE_BACK
    size = len(data) - TRAILER
    while size:  # each byte has moved the seed on by one step: as many steps back, by squaring
        if size & 1:
            shift = _product(shift, back)
        back, size = _product(back, back), size >> 1
    return _product(apart, shift)


def _product(left: int, right: int) -> int:
    """Multiply two polynomials as CRC-32 does: bits in reverse order, modulo its polynomial."""
    product = 0
    for bit in range(31, -1, -1):
        product ^= right if left >> bit & 1 else 0
        right = right >> 1 ^ (_POLYNOMIAL if right & 1 else 0)
    return product


def parse(data: bytes) -> Record | None:
    """Return the record of a checked line; None for a type that this version does not know.

    Raises `FormatError` for a line that is not a record of ours.
    """
    try:
        return _decode(data)
    except msgspec.ValidationError as error:
        if "Invalid value" in str(error) and "`$.t`" in str(error):
            return None
        raise FormatError(f"a journal line does not follow the schema: {error}") from error
    except msgspec.DecodeError as error:
        raise FormatError(f"a journal line is not JSON: {error}") from error


def sanitize(value: Any) -> Any:
    """Return a record, entry or container with all its texts made encodable; Structs are changed in place."""
    kind = type(cast("object", value))
    if kind is str:
        return clean(value)
    if isinstance(value, Struct):
        for name in value.__struct_fields__:
            setattr(value, name, sanitize(getattr(value, name)))
        return value
    if kind is list or kind is tuple:
        items = [sanitize(item) for item in value]
        return items if kind is list else tuple(items)
    if kind is dict:
        return {text(key): sanitize(item) for key, item in value.items()}
    return value if value is None or kind in _SAFE else text(value)
