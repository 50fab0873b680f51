"""What stands in an event's payload, and beside it, for what a record says."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, DecodeError, Raw, UnsetType

from optree.exporting import OpBegin, Status, decode
from optree_formats.transcript.wire import ContentBlock, StepPayload, ToolPayload

NULL = Raw(b"null")


def beside_begin(begin: OpBegin) -> dict[str, Any]:
    """Return what the seed's members do not tell of an op's begin."""
    parent = {} if begin.parent_op is None else {"parentOp": begin.parent_op}
    return {**parent, **beside(begin.attributes)}


def beside(block: Raw | UnsetType) -> dict[str, Any]:
    """Return a block of attributes as it stands beside the seed's members."""
    return {} if block is UNSET else {"attributes": block}


def beside_end(payload: StepPayload | ToolPayload, status: Status | None, error: str | None) -> dict[str, Any]:
    """Write an end's error into its payload; returns what the seed's members do not tell of it."""
    if status != "ok":
        payload.error = error or status or ""
    exact = (status == "ok" and error is None) or (status == "failed" and bool(error))
    return {} if exact else {"status": status, "error": error}


def text_block(text: str) -> ContentBlock:
    """Return a prompt as a block."""
    return ContentBlock(type="text", fidelity="router", text=text)


def result_of(value: Raw | UnsetType) -> Raw | UnsetType:
    """Return a step's result; one that is null is left out."""
    return UNSET if value is UNSET or bytes(value).strip() == b"null" else value


def decoded(data: Raw) -> Any:
    """Return a payload's value; as text where it is none, as JSON may be that others wrote."""
    try:
        return decode(data)
    except (DecodeError, RecursionError):
        return bytes(data).decode("utf-8", "replace")


def given(value: Raw | UnsetType) -> Raw:
    """Return a tool's input or output, null where there is none."""
    return NULL if value is UNSET else value
