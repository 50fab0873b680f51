"""Where in a text a value ends, and values under a credential's name that are no credential: a schema, a reference, code, a path.

Texts are read as they are, not parsed: the quotes of JSON inside JSON are told by the backslashes before them, and so a text that was
cut, or has JSON somewhere inside, is looked through like any other.
"""

from __future__ import annotations

import re
from collections import Counter
from math import log2
from typing import Any, NamedTuple

from optree._patterns import Pattern

REDACTED = "[REDACTED]"
NEAR = 200
"""Characters by which is judged what stands at a place; bounded, so that no text is judged again and again."""
QUOTE = Pattern(r"(?:[bfruBFRU]{1,2})?(\\{0,15})(\"{3}|'{3}|[\"'`])")

_FURTHER = 1024
"""Characters in which the end of a quoted text is looked for behind its first line."""
_TRIPLE = 3
_LONGEST_TRIPLE = 4096
_LONGEST_BLOCK = 8192
"""Characters of a block in a text inside JSON."""
_NO_LINE = Pattern(r"\n[ \t]*\r?\n")
_BEHIND_QUOTE = Pattern(r"[\s,;:.+)}\]]|$")
_STRUCTURE = Pattern(r"[\"\[\]{}]")
_LINES = Pattern(r"(?:([|>])[-+0-9]{0,2}[ \t]{0,8})?(\r?\n|(?:\\{1,15}r)?(\\{1,15})n)([ \t]{1,64})(?=[^\s\\])")
_INDENT = Pattern(r"[ \t]*")
_WHOLE_LINE = Pattern(r"([^\s\\\"'`,;<>]{1,512})(?=[ \t]{0,64}(?:\r?\n|[\\\"]|$))")
_END_OF_LINE = Pattern(r"\\{0,15}[\"'`][ \t]{0,64}(?:\r?\n|\\|\"|$)")
USERS = frozenset(("user", "username", "userName", "user_name", "login", "email", "uid"))
"""Names beside which "pass" is a password."""
PRIVATE = frozenset(("d", "p", "q", "dp", "dq", "qi", "k"))
"""Private members of a JSON Web Key (RFC 7518, 6)."""
SHORTEST = 6
"""Characters of what looks random, or of a password."""
_BITS = 2.0
"""Of information in each character of what looks random."""
_TYPES = frozenset(("string", "number", "integer", "boolean", "object", "array", "null"))
_COMBINED = ("anyOf", "oneOf", "allOf", "$ref", "enum")
_KEYWORDS = frozenset(
    {"type", "title", "description", "format", "items", "properties", "required", "additionalProperties", "default", "const", "examples"}
    | {
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "uniqueItems",
        "pattern",
        "nullable",
        "writeOnly",
        "readOnly",
        "deprecated",
        *_COMBINED,
    }
)
"""Of JSON Schema."""
_TELLING = ("title", "description", "pattern", "format", "$ref")
_SCHEMA = Pattern(
    rf"\{{\s{{0,64}}(\\{{0,15}}[\"'])(?:type\1\s{{0,8}}:\s{{0,8}}(?:\[|\1(?:{'|'.join(sorted(_TYPES))})\1)"
    rf"|(?:{'|'.join(sorted(map(re.escape, _KEYWORDS - {'type'})))})\1\s{{0,8}}:)"
)
_EXAMPLE = Pattern(r"(?:default|const|examples|enum)\\{0,15}[\"']\s{0,8}:\s{0,8}\[?\s{0,64}\\{0,15}[\"']([^\"'\\]{6,256})")
_LONGEST_SCHEMA = 4096
_CODE = Pattern(
    r"[A-Za-z_][\w.]*[(\[{](?![^()\[\]{}]{0,200}[)\]}][A-Za-z0-9])"
    r"|(?:self|this|os|process|config|settings|args|env|options|request)\.|[A-Za-z_.]+\.(?:get|env)\b"
)
_SYMBOLS = "([{<%*|?"
_REFERENCE = Pattern(r"\$(?:\W|\d?$|[A-Z_][A-Z0-9_]*(?![\w!#%^*+])|[a-z_][A-Za-z_]*\d?(?:$|[-.:/\[({]))|![A-Za-z:./!]*$")
"""A variable of a shell or of PHP, or a tag of YAML."""
_PLACEHOLDERS = frozenset(
    ("any", "bool", "bytes", "int", "none", "null", "optional", "required", "str", "string", "true", "false", "undefined")
)
FIELD = "[[ ## "
_BEHIND_FIELDS = "Respond with the corresponding output field"
_NO_VALUE = Pattern(
    r"(?:\{{1,2}[^{}\n]{0,128}\}{1,2}|\$\{[^{}\n]{0,128}\}|<[^<>\n]{0,128}>)(?=\s|\\|$)"
    r"|(?:None|[Nn]ull|[Tt]rue|[Ff]alse|Not supplied for this particular example\.)$"
)
"""A placeholder, a note behind which may follow, or what is no credential."""
_TAGS = Pattern(r"<[^<>]{0,200}>")
_DIRECTORY = Pattern(r"(?:~|[A-Za-z]:)?(?:[/\\]+[\w.@+~-]+){2,}[/\\]?|~?(?:/[a-z_.-]*)?")
_TEXT_TOKEN = Pattern(r"(?:[\W_ĠĊ]|\\{1,15}(?:[nrt]|u[0-9a-fA-F]{4})){0,4}(?:[A-Z]?[^\W\d_A-Z]{0,15}|[A-Z]{1,8}|\d{1,3})[\W_]{0,4}")
_FETCHED = ("include", "omit", "same-origin")


class Credential(NamedTuple):
    """A credential in a text: its start and stop, its replacement, and where the name or sign before it begins."""

    start: int
    stop: int
    instead: str
    context: int
    is_open: bool = False
    """More text may show that it is longer."""


def quoted(text: str, at: int, begun: int) -> Credential | None:
    """Return the content of a quoted text, *begun* being where its name or sign begins; None where nothing is quoted."""
    match = QUOTE.match(text, at)
    if match is None:
        return None
    start, level, quote = match.end(), len(match[1]), match[2]
    is_open = False
    if len(quote) == _TRIPLE:
        stop = text.find(quote, start, start + _LONGEST_TRIPLE)
        if stop < 0:
            is_open = len(text) < start + _LONGEST_TRIPLE
            stop = _end_of_line(text, start)
    else:
        stop = closing(text, start, level, quote)
        if text.startswith("\n", stop):
            stop, is_open = _further(text, stop, level, quote)
    return Credential(start, stop, REDACTED, begun, is_open) if stop > start else None


def closing(text: str, at: int, level: int, quote: str, *, over_lines: bool = False) -> int:
    """Return where a quoted text ends, before its closing quote and the backslashes of that; at the line's end where it has none."""
    begun = at
    while (place := text.find(quote, at)) >= 0:
        if not over_lines and (line := text.find("\n", at, place)) >= 0:
            return line
        if (slashes := _slashes(text, place, begun)) <= level or (slashes - level) // (level + 1) % 2 == 0:
            return max(place - slashes, place - level)
        at = place + 1
    return len(text) if over_lines else _end_of_line(text, at)


def _further(text: str, line: int, level: int, quote: str) -> tuple[int, bool]:
    """Return where a text ends whose quote is not on its first line, and whether more text may show another end.

    That is at the first quote, when it stands like a closing one and before an empty line; else at the end of the first line.
    """
    limit = line + _FURTHER
    empty = _NO_LINE.search(text, line, limit)
    until = limit if empty is None else empty.start()
    at = line
    while (place := text.find(quote, at, until)) >= 0:
        at = place + 1
        if _slashes(text, place, line) == level:
            is_closing = text[place - level - 1] not in " \t([{,:=<" and _BEHIND_QUOTE.match(text, at) is not None
            return (place - level, False) if is_closing else (line, False)
    return line, empty is None and len(text) < limit


def _slashes(text: str, at: int, begun: int) -> int:
    start = at
    while start > begun and text[start - 1] == "\\":
        start -= 1
    return at - start


def _end_of_line(text: str, at: int) -> int:
    return len(text) if (line := text.find("\n", at)) < 0 else line


def end_of_container(text: str, at: int, level: int) -> int:
    """Return where a JSON object or array ends; at the end of the text where it was cut."""
    depth = 0
    while (match := _STRUCTURE.search(text, at)) is not None:
        at = match.end()
        if match[0] == '"':
            at = min(len(text), closing(text, at, level, '"', over_lines=True) + level + 1)
        else:
            depth += 1 if match[0] in "[{" else -1
            if depth <= 0:
                return at
    return len(text)


class Lines(NamedTuple):
    """What YAML gives to a name in lines of their own, with more indent than the name's: as a block (``|``), or as one value."""

    credential: Credential
    is_bare: bool = False


def lines(text: str, at: int, begun: int) -> Lines | None:
    """Return the value in the lines behind a name and its colon, *begun* being the name's place; None where there is no value."""
    match = _LINES.match(text, at)
    if match is None:
        return None
    block, newline, slashes, indent = match.groups()
    start, own = match.end(), _indent(text, begun, newline)
    if len(indent) <= own:
        return None
    if block:
        return Lines(_block(text, start, begun, own, newline, len(slashes or "")))
    if QUOTE.match(text, start) is not None:
        credential = quoted(text, start, begun)
        return Lines(credential) if credential is not None and _END_OF_LINE.match(text, credential.stop) is not None else None
    whole = _WHOLE_LINE.match(text, start)
    return None if whole is None or whole[1][-1] == ":" else Lines(Credential(start, whole.end(), REDACTED, begun), is_bare=True)


def _indent(text: str, at: int, newline: str) -> int:
    """Return by how much the line of a place is indented."""
    near = max(0, at - NEAR)
    line = text.rfind(newline, near, at)
    before = text[near if line < 0 else line + len(newline) : at]
    return len(before) - len(before.lstrip(" \t"))


def _block(text: str, start: int, begun: int, own: int, newline: str, slashes: int) -> Credential:
    """Return a block: up to a line that is not indented more than *own*; in a text inside JSON up to the closing quote of that."""
    limit = start + closing(text[start : start + _LONGEST_BLOCK], 0, slashes - 1, '"') if slashes else len(text)
    stop = at = start
    while (line := text.find(newline, at, limit)) >= 0:
        stop = line if line > at else stop
        content = _INDENT.match(text, line + len(newline))
        at = line + len(newline) if content is None else content.end()
        if at < limit and not text.startswith(newline, at) and at - line - len(newline) <= own:
            return Credential(start, stop, REDACTED, begun)
    return Credential(start, limit if at < limit else stop, REDACTED, begun, not slashes)


def field(text: str, at: int, begun: int, newline: str) -> Credential | None:
    """Return the value of a field in a prompt as DSPy writes it, up to the next field or what is said behind the last; None without one.

    In a text inside JSON, where a *newline* is escaped, it ends with that at last.
    """
    slashes = newline.count("\\", newline.find("r") + 1)
    limit = at + closing(text[at : at + _LONGEST_BLOCK], 0, slashes - 1, '"') if slashes else len(text)
    further = text.find(FIELD, at, limit)
    stop = limit if further < 0 else further
    if (told := text.find(_BEHIND_FIELDS, at, stop)) >= 0:
        stop = told
    is_open = stop == limit
    while text.endswith((newline, " "), at, stop):
        stop -= len(newline) if text.endswith(newline, at, stop) else 1
    while text.startswith(newline, at, stop):
        at += len(newline)
    if at == stop or _NO_VALUE.match(text, at, stop) is not None:
        return None
    if REDACTED in (value := text[at:stop]) and not _TAGS.sub("", value).replace(REDACTED, "").strip():
        return None  # nothing is left of it
    return Credential(at, stop, REDACTED, begun, is_open and not slashes)


def looks_random(value: str) -> bool:
    """Tell whether a text looks like a key or password, not like a word: digits among letters, and many kinds of characters."""
    if len(value) < SHORTEST or not any(map(str.isdigit, value)) or not any(map(str.isalpha, value)):
        return False
    size = len(value)
    return -sum(times / size * log2(times / size) for times in Counter(value).values()) >= _BITS


def is_code(value: str) -> bool:
    """Tell whether a bare value is a reference, a placeholder or code."""
    return value[0] in _SYMBOLS or value.lower() in _PLACEHOLDERS or _CODE.match(value) is not None or _REFERENCE.match(value) is not None


def is_count(name: str) -> bool:
    """Tell whether a number under a name is how many there are: under a plural, such as ``cookies``."""
    return name[-1:] in "sS" and name[-2:-1] not in "sS"


def is_other(name: str, value: str) -> bool:
    """Tell whether a text under the name of a credential is something else.

    That is a path under "PWD", which is also the working directory; a short word or punctuation under "token", as models read and write
    texts; the mode of a request under "credentials".
    """
    if name in ("PWD", "pwd"):
        return _DIRECTORY.fullmatch(value) is not None
    lower = name.lower()
    return (lower == "token" and _TEXT_TOKEN.fullmatch(value) is not None) or (lower == "credentials" and value in _FETCHED)


def is_schema(item: dict[str, Any]) -> bool:
    """Tell whether an object under the name of a credential is a JSON schema that describes it, and gives no example like one."""
    kind = item.get("type")
    is_typed = kind in _TYPES if isinstance(kind, str) else isinstance(kind, list)
    if not item or not (is_typed or any(name in item for name in _COMBINED) or _KEYWORDS.issuperset(item)):
        return False
    candidates = [value for name, value in item.items() if name not in _TELLING]
    listed: list[list[Any]] = [values for values in candidates if isinstance(values, list)]
    candidates += [value for values in listed for value in values]
    return not any(isinstance(value, str) and looks_random(value) for value in candidates)


def begins_schema(text: str, at: int) -> bool:
    """Tell the same of an object in a text, by its beginning."""
    if (match := _SCHEMA.match(text, at)) is None:
        return False
    begun = text[at : at + _LONGEST_SCHEMA]
    begun = begun[: end_of_container(begun, 0, len(match[1]) - 1)]
    return not any(map(looks_random, _EXAMPLE.findall(begun)))
