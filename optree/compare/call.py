"""What is told of one LLM call and its context."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from optree.compare.details import Change
from optree.compare.messages import Messages
from optree.nodes import Status


class CallContext(Struct, rename="camel"):
    """One LLM call against the one that it goes on from. Messages count from 0; bytes are those of JSON; money is US dollars.

    Where there is no *previous* call, or the messages of one are not known (*note* says why), *messages* is None and nothing is compared.
    Tokens are those of the call's accounting, all attempts together, None where there is none. What is said of the cache is about the last
    attempt.
    """

    path: str
    agent: str
    model: str
    status: Status | None
    previous: str | None
    """Path of the call that it goes on from (`optree.compare.previous` says which one that is)."""
    note: str | None = None
    count: int | None = None
    """Messages that it sent."""
    bytes: int | None = None
    """Bytes of the messages that it sent."""
    messages: Messages | None = None
    """What became of the previous call's messages."""
    parts: list[Change] = []
    """What else changed that a cache's key depends on: the `model`, and what `optree.compare.prompts.PARTS` names."""
    input_tokens: int | None = None
    """All tokens that were sent, with those read from the cache and written to it."""
    cache_read_input_tokens: int | None = None
    cache_write_input_tokens: int | None = None
    cost_usd: float | None = None
    cache: Literal["first", "unknown", "kept", "broken", "missed"] = "unknown"
    """`kept`: nothing was lost, or too little to tell. `broken`: something differs in front of what could have been read.

    `missed`: less was read though nothing differs. `first`: there is no previous call. `unknown`: there are no figures, no call of the
    model (or the previous call's) tells of a cache, or only the end was edited.
    """
    reusable_tokens: int | None = None
    """Tokens of the previous call that are in this one too; None if unknown."""
    estimated: bool = False
    """True if *reusable_tokens* and *lost_tokens* are a share, by bytes of text, of the previous call's tokens; else measured."""
    expired: bool = False
    """True if the wait since the previous call was longer than the provider keeps an entry: it may be lost for that alone."""
    lost_tokens: int = 0
    """Tokens that could have been read from the cache and were not."""
    lost_usd: float | None = None
    """What that cost more, None if no price is known."""
    cause: str | None = None
    """What differs first of what is surely in a cache's key, else of what may be; or why tokens may not have been read otherwise."""

    def add_note(self, note: str) -> None:
        """Say one thing more."""
        self.note = note if self.note is None else f"{self.note}; {note}"
