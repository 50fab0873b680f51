"""What a text assigns to the name of a credential: in JSON, whole, cut, or as a text inside JSON, in code, headers, URLs and shells.

Texts are read as they are, not parsed: the quotes of JSON inside JSON are told by the backslashes before them, and so a text that was
cut, or has JSON somewhere inside, is looked through like any other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from math import log2
from typing import Any, NamedTuple, cast

from optree.patterns import Pattern

REDACTED = "[REDACTED]"
_JUDGED = 200
"""Characters by which a bare value is told from code and talk; bounded, so that no text is judged again and again."""


class Found(NamedTuple):
    """A credential in a text: from where to where, what stands in its place, and where what tells of it begins."""

    start: int
    stop: int
    instead: str
    context: int


WORDS = {
    "token": r"(?!s?_count|i[sz])(?<!max_token)(?<!put_token)(?<!total_token)(?<!prompt_token)(?<!completion_token)",
    "secret": r"(?!ar[iy])",
    "passw": "",
    "passphrase": "",
    "passcode": "",
    "pass": r"(?![a-z])",
    "pwd": "",
    "key": r"s?(?![a-z])",
    "auth": r"(?![a-z])",
    "authorization": "",
    "bearer": "",
    "cookie": "",
    "cred": r"(?:ential)?s?(?![a-z])",
    "jwt": "",
    "signature": "",
}
"""Each name of a credential has one of these words, in small or great letters or with a capital; and what may not follow it."""

_TAIL = Pattern(r"[A-Za-z0-9_-]{0,128}+(?:\\{0,15}[\"'`]\]?\s{0,8}[:=>,}]|[ \t]{0,4}(?:[:=>]|%3[ADad])|[ \t]{1,4}(?=[^\s-]))")
_BACK = Pattern(r"[A-Za-z0-9_-]*")
_LONGEST = 128
_NAME = Pattern(r"[A-Za-z0-9_-]+")
_FLAG = Pattern(r"(--[A-Za-z][A-Za-z0-9_-]++)[ \t]{1,4}(?=[^\s-])")
_ANNOTATED = r":[ \t]{0,4}(?:str|[sS]tring|SecretStr|bytes|Final|Optional)\b[\w.|\[\] ]{0,40}=(?!=)"
_NAMED = Pattern(
    r"([A-Za-z0-9_-]{2,}+)"
    r"(?:(\\{0,15}[\"'`])\]?\s{0,8}(=>|[:=,])\s{0,8}|[ \t]{0,4}(" + _ANNOTATED + r"|:=|=>|[:=]|%3[AaDd])[ \t]{0,8}|(>))"
)
_QUOTE = Pattern(r"(?:[bfruBFRU]{1,2})?(\\{0,15})([\"'`])")
_BARE = Pattern(r"[^\s\x00-\x1f\x9b\"'`,;&\\<>]+")
_COOKIES = Pattern(r"[^=\r\n\"'\\<>]{1,256}=[^\r\n\"'\\<>]*+")
_SCHEME = Pattern(
    r"(?i:(?:basic|bearer|token|key|apikey|api-key|negotiate|ntlm|sso-key|bot|jwt|sharedkey|sharedkeylite)"
    r"[ \t]{1,4}[^\s\"',;\\<>]{4,}"
    r"|(?:digest|aws4-hmac-sha256|hawk|oauth|signature|googlelogin)[ \t][^\r\n\\]{8,4096})"
)
_NUMBER = Pattern(r"-?\d[\d.eE+-]{0,40}")
_LITERAL = Pattern(r"(?:true|false|null|None|True|False)\b")
_OPENED = Pattern(r"[\[{]")
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
_STRUCTURE = Pattern(r"[\"\[\]{}]")
_CODE = Pattern(r"[A-Za-z_][\w.]*[(\[{]|(?:self|this|os|process|config|settings|args|env|options|request)\.|[A-Za-z_.]+\.(?:get|env)\b")
_IDENTIFIER = Pattern(r"[A-Za-z_.-]+")
_BEFORE_KEY = Pattern(r"(?i:(?:api|access|secret|private|account|encryption|signing|master))[ ]$")
_SAYS = ("is ", "was ", "are ", "is:")
_SAID = Pattern(r"(?:is|was|are):?[ \t]{1,4}[\"'`]?([^\s\"'`,;<>]{6,512})")
_PLACEHOLDERS = frozenset(
    ("any", "bool", "bytes", "int", "none", "null", "optional", "required", "str", "string", "true", "false", "undefined")
)
_MESSAGE = Pattern(
    r"(?i:a(?:ccepted|lready|nother|uthentication|uthorization)|because|cannot|chang(?:ed|ing)|contains|denied|ent(?:ered|ry)|exceeds"
    r"|expire[ds]|fail(?:ed|ure)|forbidden|in(?:correct|valid)|longer|matches|mis(?:match|sing)|needed|permission|please|protected|re(?:jected"
    r"|fused|quired)|sh(?:ould|orter)|un(?:able|changed|known|recognized|supported)|updated|verification|wrong)"
)
"""Words with which messages about a credential begin: "passwd: Authentication token manipulation error"."""
_PATH = Pattern(r"(?:^|[\s\"'`:=(\[])(?:~|\.{1,2})?/(?:[\w.+-]+/)*$")
_FURTHER = Pattern(r"[ \t][A-Za-z\[]")
_DIRECTORY = Pattern(r"(?:~|[A-Za-z]:)?(?:[/\\]+[\w.@+~-]+){2,}[/\\]?|~?(?:/[a-z_.-]*)?")
_SHORTEST, _SHORTEST_GLUED = 6, 4
_BITS = 2.0
"""Of information in each character of what looks random."""

_SYMBOLS = "([{<$%*|?!"


class Places(NamedTuple):
    """Where in a text names may be that are given a value."""

    names: list[int]
    flags: list[int]
    said: list[tuple[int, int]]
    """Where a name begins, and what is said of it: "is"."""


def spellings(word: str) -> list[Pattern]:
    """Return patterns of the ways in which one of `WORDS` is written in names."""
    behind = WORDS.get(word, "")
    return [Pattern(word + behind), Pattern(word.capitalize() + behind), Pattern(word.upper() + behind.upper())]


def places(text: str, words: Iterable[Pattern]) -> Places:
    """Return where names begin that have one of the words and stand before what they may be given."""
    names: set[int] = set()
    flags: set[int] = set()
    found: set[tuple[int, int]] = set()
    for word in words:
        for hit in word.finditer(text):
            tail = _TAIL.match(text, hit.end())
            if tail is None:
                continue
            before = text[max(0, hit.start() - _LONGEST) : hit.start()]
            start = hit.start() - len(cast("re.Match[str]", _BACK.match(before[::-1]))[0])
            if tail[0][-1] not in " \t":
                names.add(start)
            elif text.startswith("--", start):
                flags.add(start)
            elif text.startswith(_SAYS, tail.end()):
                found.add((start, tail.end()))
    return Places(sorted(names), sorted(flags), sorted(found))


def assigned(text: str, where: Places, is_secret: Callable[[str], bool]) -> Iterator[Found]:
    """Yield what a text gives to names of credentials."""
    until = 0
    for at in where.names:
        match = _NAMED.match(text, at)
        if match is None or at < until or not (is_secret(match[1]) or _is_after_all(text, match[1], at, is_secret)):
            continue
        if (found := _value(text, match, is_secret)) is not None:
            until = found.stop
            yield found
    for at in where.flags:
        match = _FLAG.match(text, at)
        if match is not None and is_secret(match[1]):
            found = _given(text, match.end(), at, match[1], is_secret, glued=True)
            if found is not None:
                yield found
    if where.names:
        yield from _pairs(text, is_secret)


def said(text: str, where: Places, is_secret: Callable[[str], bool]) -> Iterator[Found]:
    """Yield what is said to be a password, key or token, where it looks like one: "my password is hunter2"."""
    for at, verb in where.said:
        name, match = _NAME.match(text, at), _SAID.match(text, verb)
        if name is None or match is None or not (is_secret(name[0]) or _is_after_all(text, name[0], at, is_secret)):
            continue
        value = match[1].rstrip(".!?)]}:")
        if looks_random(value):
            yield Found(match.start(1), match.start(1) + len(value), REDACTED, at)


def looks_random(value: str) -> bool:
    """Tell whether a text looks like a key or password, not like a word: digits among letters, and many kinds of characters."""
    if len(value) < _SHORTEST or not any(map(str.isdigit, value)) or not any(map(str.isalpha, value)):
        return False
    size = len(value)
    return -sum(times / size * log2(times / size) for times in Counter(value).values()) >= _BITS


def is_schema(item: dict[str, Any]) -> bool:
    """Tell whether an object under the name of a credential is a JSON schema that describes it, and gives no example like one."""
    kind = item.get("type")
    is_typed = kind in _TYPES if isinstance(kind, str) else isinstance(kind, list)
    if not item or not (is_typed or any(name in item for name in _COMBINED) or _KEYWORDS.issuperset(item)):
        return False
    given = [value for name, value in item.items() if name not in _TELLING]
    listed: list[list[Any]] = [values for values in given if isinstance(values, list)]
    given += [value for values in listed for value in values]
    return not any(isinstance(value, str) and looks_random(value) for value in given)


def _begins_schema(text: str, at: int) -> bool:
    """Tell the same of an object in a text, by its beginning."""
    if (match := _SCHEMA.match(text, at)) is None:
        return False
    begun = text[at : at + _LONGEST_SCHEMA]
    begun = begun[: _end_of_container(begun, 0, len(match[1]) - 1)]
    return not any(map(looks_random, _EXAMPLE.findall(begun)))


def is_directory(name: str, value: object) -> bool:
    """Tell whether a name is that of the working directory, which is also short for "password", and has a path for its value."""
    return name in ("PWD", "pwd") and isinstance(value, str) and _DIRECTORY.fullmatch(value) is not None


def _tells(text: str, value: str, at: int, begun: int) -> bool:
    """Tell whether what stands behind a name and a colon is said of it: of the path of a file, or by a word with which messages begin."""
    if _FURTHER.match(text, at + len(value)) is None or not value.isalpha():
        return False
    return _MESSAGE.fullmatch(value) is not None or _PATH.search(text[max(0, begun - _JUDGED) : begun]) is not None


def _is_after_all(text: str, name: str, at: int, is_secret: Callable[[str], bool]) -> bool:
    r"""Tell whether a name is one of a credential behind an escape (``\ntoken``), or with the word before it (``API key``)."""
    before = text[max(0, at - 12) : at]
    if before.endswith("\\") and name[0] in "nrtbf" and is_secret(name[1:]):
        return True
    return name.lower() in ("key", "keys") and _BEFORE_KEY.search(before) is not None


def _value(text: str, match: re.Match[str], is_secret: Callable[[str], bool]) -> Found | None:
    name, quote, separator, bare, tag = match.groups()
    begun, at = match.start(), match.end()
    if tag:
        stop = text.find("<", at, at + 4096) if text[begun - 1 : begun] == "<" else -1
        return Found(at, stop, REDACTED, begun) if stop > at and not text[at:stop].isspace() else None
    if separator == ",":
        return _second(text, match, is_secret)
    if quote and (found := _structured(text, at, begun, quote)) is not None:
        return found
    words = name.lower()
    if not quote and bare == ":" and "cookie" in words:
        cookies = _COOKIES.match(text, at)
        return Found(at, cookies.end(), REDACTED, begun) if cookies is not None else _quoted(text, at, begun)
    if "authorization" in words and (scheme := _SCHEME.match(text, at)) is not None:
        return Found(at, scheme.end(), REDACTED, begun)
    glued = bare is not None and bare in "=%3d%3D%3a%3A" and text[at - len(bare) : at] == bare and text[match.end(1)] == bare[0]
    return _given(text, at, begun, name, is_secret, glued=glued)


def _given(text: str, at: int, begun: int, name: str, is_secret: Callable[[str], bool], *, glued: bool) -> Found | None:
    """Return the value at a place, quoted or bare; None where it is a placeholder, code, or a word of plain talk."""
    if _QUOTE.match(text, at) is not None:
        quoted = _quoted(text, at, begun)
        return None if quoted is not None and is_directory(name, text[quoted.start : quoted.stop]) else quoted
    match = _BARE.match(text, at, at + _JUDGED)
    if match is None:
        return None
    value = match[0].rstrip(".!?)]}:")
    if not value or value[0] in _SYMBOLS or value.lower() in _PLACEHOLDERS or _CODE.match(value):
        return None
    if (_IDENTIFIER.fullmatch(value) and is_secret(value)) or is_directory(name, value):
        return None
    plain = name.lower().replace("-", "").replace("_", "")
    strong = "passw" in plain or plain.endswith("apikey")
    told = not glued and text[at - 1] in " \t" and _tells(text, value, at, begun)
    if told or not ((strong and len(value) >= _SHORTEST) or (glued and len(value) >= _SHORTEST_GLUED) or looks_random(value)):
        return None
    whole = match.end() if len(match[0]) == _JUDGED and (match := _BARE.match(text, at)) is not None else at + len(value)
    return Found(at, whole, REDACTED, begun)


def _quoted(text: str, at: int, begun: int) -> Found | None:
    match = _QUOTE.match(text, at)
    if match is None:
        return None
    start = match.end()
    stop = _closing(text, start, len(match[1]), match[2])
    return Found(start, stop, REDACTED, begun) if stop > start else None


def _structured(text: str, at: int, begun: int, quote: str) -> Found | None:
    """Return what JSON gives to a name that is no text: a number, or all of an object or array, but not a schema that describes it."""
    instead = f"{quote}{REDACTED}{quote}"
    if (number := _NUMBER.match(text, at)) is not None:
        return Found(at, number.end(), instead, begun)
    if _OPENED.match(text, at) is None or _begins_schema(text, at):
        return None
    if text.startswith(REDACTED, at):
        return None
    return Found(at, _end_of_container(text, at, len(quote) - 1), instead, begun)


def _second(text: str, match: re.Match[str], is_secret: Callable[[str], bool]) -> Found | None:
    """Return the second of a pair in brackets, such as a header: ``["x-api-key", "v"]``; of a list of names only what looks random."""
    quote = match[2]
    before = text[max(0, match.start() - len(quote) - 32) : match.start() - len(quote)].rstrip()
    found = _quoted(text, match.end(), match.start())
    if found is None or not before.endswith(("[", "(")):
        return None
    value = text[found.start : found.stop]
    is_pair = before[-1] == "(" or before[:-1].rstrip().endswith(("[", "(", ","))
    if is_secret(value) or not (is_pair or looks_random(value[:_JUDGED])):
        return None
    after = text[found.stop : found.stop + 32].lstrip("\\\"'`").lstrip()
    return found if after.startswith(("]", ")")) else None


def _closing(text: str, at: int, level: int, quote: str) -> int:
    """Return where a quoted text ends, before its closing quote and the backslashes of that; at the line's end where it has none."""
    begun = at
    while (place := text.find(quote, at)) >= 0:
        if (line := text.find("\n", at, place)) >= 0:
            return line
        slashes = place
        while slashes > begun and text[slashes - 1] == "\\":
            slashes -= 1
        run = place - slashes
        if run <= level or (run - level) // (level + 1) % 2 == 0:
            return max(slashes, place - level)
        at = place + 1
    line = text.find("\n", at)
    return len(text) if line < 0 else line


def _end_of_container(text: str, at: int, level: int) -> int:
    """Return where a JSON object or array ends; at the end of the text where it was cut."""
    depth = 0
    while (match := _STRUCTURE.search(text, at)) is not None:
        at = match.end()
        if match[0] == '"':
            at = min(len(text), _closing(text, at, level, '"') + level + 1)
        else:
            depth += 1 if match[0] in "[{" else -1
            if depth <= 0:
                return at
    return len(text)


_NAME_FIRST = Pattern(
    r"(\\{0,15}\")(?:name|key|header|headerName|field)\1\s{0,8}:\s{0,8}\1([A-Za-z0-9_-]{2,128}+)\1"
    r"(?:\s{0,8},\s{0,8}\1[\w-]{1,64}\1\s{0,8}:\s{0,8}(?:\1[^\"\\]{0,256}\1|[\w.+-]{1,64})){0,4}\s{0,8},\s{0,8}\1value\1\s{0,8}:\s{0,8}(?=\1)"
)
_VALUE_FIRST = Pattern(
    r"(\\{0,15}\")value\1\s{0,8}:\s{0,8}(\1[^\"\\]{1,4096}+\1)\s{0,8},\s{0,8}\1(?:name|key|header|headerName|field)\1\s{0,8}:\s{0,8}\1([A-Za-z0-9_-]{2,128}+)\1"
)


def _pairs(text: str, is_secret: Callable[[str], bool]) -> Iterator[Found]:
    """Yield the values of objects that give a name and a value, such as headers: ``{"name": "x-api-key", "value": "v"}``."""
    if '"' not in text or "value" not in text:
        return
    for match in _NAME_FIRST.finditer(text):
        if is_secret(match[2]) and (found := _quoted(text, match.end(), match.start())) is not None:
            yield found
    for match in _VALUE_FIRST.finditer(text):
        if is_secret(match[3]):
            yield Found(match.start(2) + len(match[1]), match.end(2) - len(match[1]), REDACTED, match.start())
