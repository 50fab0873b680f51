"""Texts that are still being written: passed on as soon as no credential can lie over the end."""

from __future__ import annotations

from optree._patterns import Pattern
from optree.redaction._engine import Engine

HELD = 8192
"""Characters that are held back, about, before all but the last words are passed on without waiting for the line's end."""

_KEPT = 1024
_KEY_END = Pattern(r"-----END[A-Z0-9 ]{0,60}-----")
_OPEN_END = Pattern(
    r"(?:[:,=\[{(>\\]| ## \]\]|:[ \t]{1,8}\|[-+0-9]{0,2}|:[ \t]{1,8}>[-+0-9]{1,2}"
    r"|\b(?:machine|login|account)(?:[ \t]{1,8}[^\s\\]{1,100})?|\bpassword)\s*$"
)
"""What a line ends with whose last name may be given a value by the next; also in a netrc file, which gives a word at a time."""


class Holding:
    """What of a text that is being written is held back, and what may be passed on."""

    def __init__(self) -> None:
        self._held = ""
        self._known = 0
        """Up to where no line can be passed on, as far as is held."""

    def add(self, text: str, engine: Engine) -> str:
        """Take more text; return what may be shown now."""
        self._held += text
        if len(self._held) <= HELD and ("\n" not in text or self._waits()):
            return ""
        held = self._held
        spans = [(credential.context, len(held) + 1 if credential.is_open else credential.stop) for credential in engine.spans(held)]
        at = min(_last_line(held, spans), _open_key(held))
        if len(held) - at > HELD:
            at = max(at, _last_words(held, spans))
        self._held, self._known = held[at:], len(held) - at
        if len(self._held) > HELD and spans and spans[-1][1] >= len(held):  # one credential: its middle is not needed
            self._held, self._known = self._held[:_KEPT] + self._held[-_KEPT:], 0
        return engine.text(held[:at])

    def rest(self, engine: Engine) -> str:
        """Return what was held back."""
        passed, self._held, self._known = self._held, "", 0
        return engine.text(passed)

    def _waits(self) -> bool:
        """Tell whether after each line that is new a name may wait for its value, so that nothing can be passed on."""
        held, at = self._held, self._known
        while (line := held.find("\n", at) + 1) > 0:
            if not _is_open(held, line):
                return False
            self._known = at = line
        return True


def _open_key(held: str) -> int:
    """Return where the line of a private key begins that has not ended; the text's end where there is none."""
    begun = held.rfind("-----BEGIN")
    return len(held) if begun < 0 or _KEY_END.search(held, begun) is not None else held.rfind("\n", 0, begun) + 1


def _last_line(held: str, spans: list[tuple[int, int]]) -> int:
    """Return where the last line begins before which nothing is open: no credential, and no name that waits for its value."""
    at = held.rfind("\n") + 1
    rest = sorted(spans, key=_stop)
    while at > 0:
        over = len(held)
        while rest and rest[-1][1] > at:
            over = min(over, rest.pop()[0])
        if over < at:
            at = held.rfind("\n", 0, over) + 1
        elif _is_open(held, at):
            at = held.rfind("\n", 0, at - 1) + 1
        else:
            return at
    return 0


def _stop(span: tuple[int, int]) -> int:
    return span[1]


def _is_open(held: str, line: int) -> bool:
    return _OPEN_END.search(held, max(0, line - 128), line) is not None


def _last_words(held: str, spans: list[tuple[int, int]]) -> int:
    """Return where a word begins some way before the end, within no credential."""
    blank = held.rfind(" ", 0, len(held) - _KEPT)
    at = blank + 1 if blank >= 0 else len(held) - _KEPT
    return min([at, *(context for context, stop in spans if context < at < stop)])
