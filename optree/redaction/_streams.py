"""Texts that are still being written: passed on as soon as no credential can lie over the end."""

from __future__ import annotations

from optree.patterns import Pattern
from optree.redaction._engine import Engine

HELD = 8192
"""Characters that are held back, about, before all but the last words are passed on without waiting for the line's end."""

_KEPT = 1024
_KEY_END = Pattern(r"-----END[A-Z0-9 ]{0,60}-----")
_OPEN_END = Pattern(r"[:,=\[{(>\\]\s*$")


class Holding:
    """What of a text that is being written is held back, and what may be passed on."""

    def __init__(self) -> None:
        self._held = ""

    def add(self, text: str, engine: Engine) -> str:
        """Take more text; return what may be shown now."""
        self._held += text
        if "\n" not in text and len(self._held) <= HELD:
            return ""
        held = self._held
        spans = [(found.context, found.stop) for found in engine.spans(held)]
        at = min(_last_line(held, spans), _open_key(held))
        if len(held) - at > HELD:
            at = max(at, _last_words(held, spans))
        self._held = held[at:]
        if len(self._held) > HELD and spans and spans[-1][1] == len(held):  # one credential: its middle tells nothing
            self._held = self._held[:_KEPT] + self._held[-_KEPT:]
        return engine.text(held[:at])

    def rest(self, engine: Engine) -> str:
        """Return what was held back."""
        passed, self._held = self._held, ""
        return engine.text(passed)


def _open_key(held: str) -> int:
    """Return where the line of a private key begins that has not ended; the text's end where there is none."""
    begun = held.rfind("-----BEGIN")
    return len(held) if begun < 0 or _KEY_END.search(held, begun) is not None else held.rfind("\n", 0, begun) + 1


def _last_line(held: str, spans: list[tuple[int, int]]) -> int:
    """Return where the last line begins before which nothing is open: no credential, and no name that waits for its value."""
    at = held.rfind("\n") + 1
    while at > 0:
        over = [context for context, stop in spans if context < at < stop]
        if over:
            at = held.rfind("\n", 0, min(over)) + 1
        elif _OPEN_END.search(held, max(0, at - 64), at) is not None:
            at = held.rfind("\n", 0, at - 1) + 1
        else:
            return at
    return 0


def _last_words(held: str, spans: list[tuple[int, int]]) -> int:
    """Return where a word begins some way before the end, within no credential."""
    blank = held.rfind(" ", 0, len(held) - _KEPT)
    at = blank + 1 if blank >= 0 else len(held) - _KEPT
    return min([at, *(context for context, stop in spans if context < at < stop)])
