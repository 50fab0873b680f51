"""Single values as YAML that every reader takes for the same, whichever version of YAML it follows.

A text stands bare only if it can be nothing else; ``no``, ``012``, ``2025-12-30``, ``a: b`` and ``->`` are quoted. Three backticks never
stand in a row, so no query for fenced blocks is misled by what a text says.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from optree.exporting import clean

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,63}")
_WORDS = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null", "none", "nil", "nan", "inf", "infinity", "undefined"])
_ESCAPE = re.compile(r'```|["\\\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "```": "``\\x60"}
_UNESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([0abtnvfre\"/\\N_LP \t]))")
_LONG = {
    "0": "\0", "a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", "e": "\x1b", '"': '"', "/": "/", "\\": "\\",
    "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029", " ": " ", "\t": "\t",
}  # fmt: skip
_NO_BLOCK = re.compile(
    r"```|[^\n\t\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]|[ \t]+(?:\n|$)|\n[ \t]*\t"
)
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NAMED: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
_MAX_DIGITS = 400
_LAST = 0x10FFFF


class NotOurs(Exception):  # noqa: N818 - a turn in the road, not an error
    """The text has a form that we do not write."""


def inline(value: Any) -> str:
    """Return a value that is no filled container, on one line."""
    if isinstance(value, str):
        return bare_or_quoted(value)
    if isinstance(value, float):
        return _number(value)
    if not value and isinstance(value, (dict, list)):
        return "[]" if isinstance(value, list) else "{}"
    return json.dumps(value)


def bare_or_quoted(said: str) -> str:
    """Return a text, in quotes where it needs them."""
    return said if _BARE.fullmatch(said) and said.lower() not in _WORDS else quoted(said)


def quoted(said: str) -> str:
    """Return a text in double quotes, on one line."""
    return f'"{_ESCAPE.sub(_escape, clean(said))}"'


def unquoted(written: str) -> str:
    """Return what stands between double quotes, as `quoted` writes it. Raises `NotOurs` for a code that is no character's."""
    return clean(_UNESCAPE.sub(_unescape, written)) if "\\" in written else written


def block(said: str) -> tuple[str, list[str]] | None:
    """Return a text of several lines as the header of a block and its lines; None if it must be quoted."""
    if "\n" not in said or said[0] in " \t\n" or said.endswith("\n\n") or _NO_BLOCK.search(said):
        return None
    return ("|", said[:-1].split("\n")) if said.endswith("\n") else ("|-", said.split("\n"))


def bare(written: str) -> Any:
    """Return what a bare scalar means: YAML 1.2's core, in which dates and ``yes`` are texts; so are numbers with leading zeros."""
    if written in _NAMED:
        return _NAMED[written]
    if len(written) < _MAX_DIGITS:
        if _INT.fullmatch(written):
            return int(written)
        if _FLOAT.fullmatch(written):
            return float(written)
    return written


def _number(value: float) -> str:
    """Return a float; with a point before its exponent, without which YAML 1.1 takes it for a text."""
    if not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    mantissa, e, exponent = repr(value).partition("e")
    return f"{mantissa}.0{e}{exponent}" if e and "." not in mantissa else f"{mantissa}{e}{exponent}"


def _escape(found: re.Match[str]) -> str:
    said = found[0]
    code = ord(said[0])
    return _SHORT.get(said) or (f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}")  # noqa: PLR2004 - what two digits hold


def _unescape(found: re.Match[str]) -> str:
    digits = found[1] or found[2] or found[3]
    if not digits:
        return _LONG[found[4]]
    code = int(digits, 16)
    if code > _LAST:
        raise NotOurs
    return chr(code)
