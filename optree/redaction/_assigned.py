"""What a text assigns to the name of a credential: in JSON, code, headers, URLs, shells, YAML, HTML, Markdown and plain talk."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from string import ascii_letters, digits
from typing import NamedTuple, cast

from optree._patterns import Pattern
from optree.redaction._extent import (
    FIELD,
    NEAR,
    QUOTE,
    REDACTED,
    SHORTEST,
    Credential,
    begins_schema,
    end_of_container,
    field,
    is_code,
    is_count,
    is_other,
    lines,
    looks_random,
    quoted,
)

_TAIL = Pattern(
    r"[A-Za-z0-9_-]{0,128}+(?:(\\{0,15}[\"'`]\]?\s{0,8}[:=>,}]|[ \t]{0,16}(?:\*\*)?(?:[:=>]|%3[ADad])|[ \t*`]{0,16}\|| ## \]\])"
    r"|(\\{0,15}[\"']?(?=[\s/>]))(?:[ \t]{1,16}(?=[^\s-]))?)"
)
"""What follows a word in a name that is given something: in the first group; otherwise an attribute or a flag may end there."""
_OF_NAMES = frozenset(f"{ascii_letters}{digits}_-")
_BACK = Pattern(r"[A-Za-z0-9_-]*")
_LONGEST = 128
_NAME = Pattern(r"[A-Za-z0-9_-]+")
_FLAG = Pattern(r"((?:--)?[A-Za-z][A-Za-z0-9_-]++)[ \t]{1,16}(?=[^\s-])")
_DEFINES = Pattern(r"(?:#[ \t]{0,4}define|setenv|setx(?:[ \t]{1,4}/[Mm])?|ENV)[ \t]{1,4}$")
_BEFORE_ATTRIBUTE = frozenset("\"'= ")
_ATTRIBUTE = Pattern(r"(?:name|id|type|(?<![\w-])key)\s{0,4}=\s{0,4}\\{0,15}[\"']?$")
_CONTENT = Pattern(
    r"[\s\"'](?:value|content)\s{0,4}=\s{0,4}"
    r"(?:\\{0,15}\"(?P<double>[^\"\\<>]+)|\\{0,15}'(?P<single>[^'\\<>]+)|(?P<bare>[^\s\"'<>\\]+))"
)
_TAG_END = Pattern(r"[>\n]|$")
_TAG = 1024
"""Characters that a tag of HTML may have before and behind a name, on its line."""
_ANNOTATED = r":[ \t]{0,4}(?:str|[sS]tring|SecretStr|bytes|Final|Optional)\b[\w.|\[\] ]{0,40}=(?!=)"
_NAMED = Pattern(
    r"([A-Za-z0-9_-]{2,}+)"
    r"(?:(\\{0,15}[\"'`])\]?\s{0,8}(=>|[:=,])\s{0,64}"
    r"|[ \t]{0,16}(?:\*\*)?(" + _ANNOTATED + r"|:=|=>|[:=]|%3[AaDd])(?:\*\*(?=[ \t]))?[ \t]{0,8}"
    r"|[ \t*`]{0,16}(\|)[ \t]{0,16}|(>))"
)
_BARE = Pattern(r"(?:[^\s\x00-\x1f\x9b\"'`,;&\\<>]|&(?=[A-Za-z0-9])(?!(?:amp;)?[\w.%~+-]{1,64}=|[a-z]{2,6};))+")
"""Also over a ``&``, where that begins no further parameter."""
_COOKIES = Pattern(r"[^=\r\n\"'\\<>]{1,256}=[^\r\n\"'\\<>]*+")
_SCHEME = Pattern(
    r"(?i:(?:basic|bearer|token|key|apikey|api-key|negotiate|ntlm|sso-key|bot|jwt|sharedkey|sharedkeylite)"
    r"[ \t]{1,4}[^\s\"',;\\<>]{4,}"
    r"|(?:digest|aws4-hmac-sha256|hawk|oauth|signature|googlelogin)[ \t][^\r\n\\]{8,4096})"
)
_NUMBER = Pattern(r"-?\d[\d.eE+-]{0,40}")
_OPENED = Pattern(r"[\[{]")
_IDENTIFIER = Pattern(r"[A-Za-z_.-]+")
_ENDS_QUOTE = Pattern(r"[ \t]{0,4}(?:[)\],};+%]|\.format|\r?\n|$)")
_IN_CELL = Pattern(r"\|[^|\n]{0,64}$")
_END_OF_CELL = Pattern(r"`?[ \t]{0,64}\|")
_USER = Pattern(r"[\"'](?:user|user_?name|login|email|uid)\\{0,15}[\"']\s{0,8}:", re.IGNORECASE)
_FIELD = Pattern(r"\[\[ ## ([A-Za-z0-9_-]{2,128}+) ## \]\][ \t]{0,8}(\r?\n|(?:\\{1,15}r)?\\{1,15}n)")
"""The heading of a field in a prompt."""
_PRIVATE = Pattern(r"(\\{0,15}[\"'])(?:d|p|q|dp|dq|qi|k)\1\s{0,8}:\s{0,8}\1([\w-]{8,})\1")
"""Private members of a JSON Web Key (RFC 7518, 6)."""
_KEY = 8192
"""Characters that a JSON Web Key may have before and behind its type."""
_BEFORE_KEY = Pattern(r"(?i:(?:api|access|secret|private|account|encryption|signing|master))[ ]$")
_VARIABLE_KEY = Pattern(
    r"(?!(?:[A-Z0-9_]{0,64}_)?(?:CACHE|FOREIGN|GROUP|HOST|IDEMPOTENCY|INDEX|PARTITION|PRIMARY|PUBLIC|REGISTRY|ROUTING|ROW|SORT|UNIQUE)_KEY)"
    r"[A-Z][A-Z0-9_]{1,64}_KEY=[\"']?([\w+/=.-]{16,256})"
)
"""A key in a variable of the environment whose name does not say what the key is for."""
_USER_BEFORE = Pattern(r"[\w.@+-]{1,64}[ \t]{1,4}/[ \t]{1,4}")
"""What "credentials" are given before a password."""
_SHORTEST_GLUED = 4
_SAYS = ("is ", "was ", "are ", "is:")
_SAID = Pattern(r"(?:is|was|are):?[ \t]{1,4}[\"'`]?([^\s\"'`,;<>]{6,512})")
_MESSAGE = Pattern(
    r"(?i:a(?:ccepted|lready|nother|uthentication|uthorization)|because|cannot|chang(?:ed|ing)|contains|denied|ent(?:ered|ry)|exceeds"
    r"|expire[ds]|fail(?:ed|ure)|forbidden|in(?:correct|valid)|longer|matches|mis(?:match|sing)|needed|permission|please|protected|re(?:jected"
    r"|fused|quired)|sh(?:ould|orter)|un(?:able|changed|known|recognized|supported)|updated|verification|wrong)"
)
"""Words with which messages about a credential begin: "passwd: Authentication token manipulation error"."""
_PATH = Pattern(r"(?:^|[\s\"'`:=(\[])(?:~|\.{1,2})?/(?:[\w.+-]+/)*$")
_FURTHER = Pattern(r"[ \t][A-Za-z\[]")


OPENERS = ("--", "<", FIELD, "define ", "define\t", "setenv ", "setenv\t", "setx ", "setx\t", "ENV ", "ENV\t")
"""Behind one of these a name may have a value without a sign: a flag, an attribute of a tag, a field of a prompt, a definition."""


class Places(NamedTuple):
    """Where in a text names may be that are given a value."""

    names: list[int]
    flags: list[int]
    stated: list[tuple[int, int]]
    """Where a name begins, and the verb behind it: "is"."""
    attributes: list[int]
    """Names that a tag of HTML gives."""


def spellings(word: str, behind: str) -> tuple[list[Pattern], list[Pattern]]:
    """Return patterns of a word as it is written in names, in small letters and with great ones; *behind* is what may not follow it."""
    return [Pattern(word + behind)], [Pattern(word.capitalize() + behind), Pattern(word.upper() + behind.upper())]


def places(text: str, words: Iterable[Pattern]) -> Places | None:
    """Return where names with one of the words begin that stand before a possible value; None without any."""
    names: set[int] = set()
    flags: set[int] = set()
    stated: set[tuple[int, int]] = set()
    attributes: set[int] = set()
    in_tags = "<" in text
    for word in words:
        for hit in word.finditer(text):
            tail = _TAIL.match(text, hit.end())
            if tail is None:
                continue
            start = hit.start()
            if text[start - 1 : start] in _OF_NAMES:
                start -= len(cast("re.Match[str]", _BACK.match(text[max(0, start - _LONGEST) : start][::-1]))[0])
            if (
                in_tags
                and text[start - 1 : start] in _BEFORE_ATTRIBUTE
                and _ATTRIBUTE.search(text[max(0, start - _LONGEST // 4) : start]) is not None
            ):
                attributes.add(start)
            elif tail[1] is not None:
                names.add(start)
            elif text.startswith(_SAYS, tail.end()):
                stated.add((start, tail.end()))
            elif text.startswith("--", start) or _DEFINES.search(text[max(0, start - 16) : start]) is not None:
                flags.add(start)
    if not (names or flags or stated or attributes):
        return None
    return Places(sorted(names), sorted(flags), sorted(stated), sorted(attributes))


def assigned(text: str, where: Places, is_secret: Callable[[str], bool]) -> Iterator[Credential]:
    """Yield the values that a text gives to names of credentials."""
    until = 0
    for at in where.names:
        match = _NAMED.match(text, at)
        if match is None or at < until or not (is_secret(match[1]) or _is_after_all(text, match[1], at, is_secret)):
            continue
        if (credential := _value(text, match, is_secret)) is not None:
            until = credential.stop
            yield credential
    for at in where.flags:
        match = _FLAG.match(text, at)
        if match is not None and is_secret(match[1]):
            credential = _given(text, match.end(), at, match[1], is_secret, glued=text.startswith("--", at))
            if credential is not None:
                yield credential
    if where.attributes:
        yield from _contents(text, where.attributes, is_secret)
    if where.names:
        yield from _pairs(text, is_secret)
        yield from _fields(text, is_secret)
        if is_secret("private_key"):
            yield from _private(text, [at for at in where.names if text.startswith("kty", at)])


def stated_values(text: str, where: Places, is_secret: Callable[[str], bool]) -> Iterator[Credential]:
    """Yield passwords, keys and tokens that a sentence states, where they look like one: "my password is hunter2"."""
    for at, verb in where.stated:
        name, match = _NAME.match(text, at), _SAID.match(text, verb)
        if name is None or match is None or not (is_secret(name[0]) or _is_after_all(text, name[0], at, is_secret)):
            continue
        value = match[1].rstrip(".!?)]}:")
        if looks_random(value):
            yield Credential(match.start(1), match.start(1) + len(value), REDACTED, at)


def _tells(text: str, value: str, at: int, begun: int) -> bool:
    """Tell whether the text behind a name and a colon is a message, not a value: by its first word, or by a file's path before the name."""
    if _FURTHER.match(text, at + len(value)) is None or not value.isalpha():
        return False
    return _MESSAGE.fullmatch(value) is not None or _PATH.search(text[max(0, begun - NEAR) : begun]) is not None


def _is_after_all(text: str, name: str, at: int, is_secret: Callable[[str], bool]) -> bool:
    r"""Tell whether a name is one of a credential behind an escape (``\ntoken``), after a word (``API key``), or beside a user."""
    before = text[max(0, at - 12) : at]
    if before.endswith("\\") and name[0] in "nrtbf" and is_secret(name[1:]):
        return True
    if name.lower() == "pass":
        return is_secret("user_pass") and _USER.search(text, max(0, at - NEAR), at + NEAR) is not None
    if name.endswith("_KEY"):
        variable = _VARIABLE_KEY.match(text, at)
        return variable is not None and looks_random(variable[1]) and is_secret("api_key")
    return name.lower() in ("key", "keys") and _BEFORE_KEY.search(before) is not None


def _value(text: str, match: re.Match[str], is_secret: Callable[[str], bool]) -> Credential | None:
    name, quote, separator, bare, cell, tag = match.groups()
    begun, at = match.start(), match.end()
    if tag or cell or separator == ",":
        return _in_element(text, at, begun) if tag else _in_cell(text, at, begun) if cell else _second(text, match, is_secret)
    if quote and (result := _structured(text, at, begun, name, quote)) is not None:
        return result
    own = lines(text, at, begun) if bare == ":" else None
    if own is not None or (bare and _ends_quote(text, at, begun)):
        return (
            None if own is None or (own.is_bare and not _looks_secret(text[own.credential.start : own.credential.stop])) else own.credential
        )
    words = name.lower()
    if bare == ":" and "cookie" in words:
        cookies = _COOKIES.match(text, at)
        return Credential(at, cookies.end(), REDACTED, begun) if cookies is not None else quoted(text, at, begun)
    if "authorization" in words and (scheme := _SCHEME.match(text, at)) is not None:
        return Credential(at, scheme.end(), REDACTED, begun)
    glued = bare is not None and bare in "=%3d%3D%3a%3A" and text[at - len(bare) : at] == bare and text[match.end(1)] == bare[0]
    return _given(text, at, begun, name, is_secret, glued=glued)


def _given(text: str, at: int, begun: int, name: str, is_secret: Callable[[str], bool], *, glued: bool) -> Credential | None:
    """Return the value at a place, quoted or bare; None where it is a placeholder, code, or a word of plain talk."""
    if QUOTE.match(text, at) is not None:
        credential = quoted(text, at, begun)
        return None if credential is not None and is_other(name, text[credential.start : credential.stop]) else credential
    if "cred" in name.lower() and (user := _USER_BEFORE.match(text, at)) is not None:
        at = user.end()
    match = _BARE.match(text, at, at + NEAR)
    if match is None:
        return None
    value = match[0].rstrip(".!?)]}:")
    if not value or is_code(value) or (_IDENTIFIER.fullmatch(value) and is_secret(value)):
        return None
    if (is_count(name) and _NUMBER.fullmatch(value)) or (name in ("PWD", "pwd") and is_other(name, value)):
        return None
    plain = name.lower().replace("-", "").replace("_", "")
    strong = "passw" in plain or plain.endswith("apikey")
    is_prose = not glued and text[at - 1] in " \t" and _tells(text, value, at, begun)
    if is_prose or not ((strong and len(value) >= SHORTEST) or (glued and len(value) >= _SHORTEST_GLUED) or looks_random(value)):
        return None
    whole = match.end() if len(match[0]) == NEAR and (match := _BARE.match(text, at)) is not None else at + len(value)
    return Credential(at, whole, REDACTED, begun)


def _structured(text: str, at: int, begun: int, name: str, quote: str) -> Credential | None:
    """Return what JSON gives to a name that is no text: a number, or all of an object or array, but not a schema that describes it."""
    instead = f"{quote}{REDACTED}{quote}"
    if (number := _NUMBER.match(text, at)) is not None:
        return None if is_count(name) or name.lower() == "token" else Credential(at, number.end(), instead, begun)
    if _OPENED.match(text, at) is None or begins_schema(text, at):
        return None
    if text.startswith(REDACTED, at):
        return None
    return Credential(at, end_of_container(text, at, len(quote) - 1), instead, begun)


def _looks_secret(value: str) -> bool:
    return looks_random(value) and not is_code(value)


def _in_element(text: str, at: int, begun: int) -> Credential | None:
    """Return what an element of XML holds, given where its first tag ends."""
    stop = text.find("<", at, at + 4096) if text[begun - 1 : begun] == "<" else -1
    return Credential(at, stop, REDACTED, begun) if stop > at and not text[at:stop].isspace() else None


def _in_cell(text: str, at: int, begun: int) -> Credential | None:
    """Return what the next cell of a table in Markdown holds, where it looks random."""
    code = text.startswith("`", at)
    match = _BARE.match(text, at + code, at + code + NEAR)
    if match is None or _IN_CELL.search(text[max(0, begun - 70) : begun]) is None or _END_OF_CELL.match(text, match.end()) is None:
        return None
    return Credential(match.start(), match.end(), REDACTED, begun) if _looks_secret(match[0]) else None


def _ends_quote(text: str, at: int, begun: int) -> bool:
    """Tell whether the quote behind a name and its colon ends the text in which the name stands: ``getpass("Password: ")``."""
    match = QUOTE.match(text, at)
    if match is None or _ENDS_QUOTE.match(text, match.end()) is None:
        return False
    return text.count(match[2], max(text.rfind("\n", 0, begun) + 1, begun - NEAR), begun) % 2 == 1


def _second(text: str, match: re.Match[str], is_secret: Callable[[str], bool]) -> Credential | None:
    """Return the second of a pair in brackets, such as a header: ``["x-api-key", "v"]``; of a list of names only what looks random."""
    quote = match[2]
    before = text[max(0, match.start() - len(quote) - 32) : match.start() - len(quote)].rstrip()
    credential = quoted(text, match.end(), match.start())
    if credential is None or not before.endswith(("[", "(")):
        return None
    value = text[credential.start : credential.stop]
    is_pair = before[-1] == "(" or before[:-1].rstrip().endswith(("[", "(", ","))
    if is_secret(value) or not (is_pair or looks_random(value[:NEAR])):
        return None
    after = text[credential.stop : credential.stop + 32].lstrip("\\\"'`").lstrip()
    return credential if after.startswith(("]", ")")) else None


_NAME_FIRST = Pattern(
    r"(\\{0,15}\")(?:name|key|header|headerName|field)\1\s{0,8}:\s{0,8}\1([A-Za-z0-9_-]{2,128}+)\1"
    r"(?:\s{0,8},\s{0,8}\1[\w-]{1,64}\1\s{0,8}:\s{0,8}(?:\1[^\"\\]{0,256}\1|[\w.+-]{1,64})){0,4}\s{0,8},\s{0,8}\1value\1\s{0,8}:\s{0,8}(?=\1)"
)
_VALUE_FIRST = Pattern(
    r"(\\{0,15}\")value\1\s{0,8}:\s{0,8}(\1[^\"\\]{1,4096}+\1)\s{0,8},\s{0,8}\1(?:name|key|header|headerName|field)\1\s{0,8}:\s{0,8}\1([A-Za-z0-9_-]{2,128}+)\1"
)


def _pairs(text: str, is_secret: Callable[[str], bool]) -> Iterator[Credential]:
    """Yield the values of objects that give a name and a value, such as headers: ``{"name": "x-api-key", "value": "v"}``."""
    if '"value' not in text:
        return
    for match in _NAME_FIRST.finditer(text):
        if is_secret(match[2]) and (credential := quoted(text, match.end(), match.start())) is not None:
            yield credential
    for match in _VALUE_FIRST.finditer(text):
        if is_secret(match[3]):
            yield Credential(match.start(2) + len(match[1]), match.end(2) - len(match[1]), REDACTED, match.start())


def _fields(text: str, is_secret: Callable[[str], bool]) -> Iterator[Credential]:
    """Yield the values of fields in a prompt as DSPy writes it."""
    until = 0
    for match in _FIELD.finditer(text) if FIELD in text else ():
        if match.start() < until or not is_secret(match[1]):
            continue
        credential = field(text, match.end(), match.start(), match[2])
        if credential is not None and not is_other(match[1], text[credential.start : credential.stop]):
            until = credential.stop
            yield credential


def _contents(text: str, names: Iterable[int], is_secret: Callable[[str], bool]) -> Iterator[Credential]:
    """Yield the values of tags of HTML that have a name of a credential: ``<input name="password" value="v">``."""
    until = 0
    for at in names:
        name = _NAME.match(text, at)
        if name is None or at < until or not is_secret(name[0]):
            continue
        line = max(text.rfind("\n", max(0, at - _TAG), at) + 1, until, at - _TAG)
        begun, until = text.rfind("<", line, at), _end_of_tag(text, at)
        if begun >= 0 and ">" not in text[begun:at] and (match := _CONTENT.search(text, begun, until)) is not None:
            yield Credential(*match.span(cast("str", match.lastgroup)), REDACTED, begun)


def _end_of_tag(text: str, at: int) -> int:
    match = _TAG_END.search(text, at, at + _TAG)
    return at + _TAG if match is None else match.start()


def _private(text: str, types: Iterable[int]) -> Iterator[Credential]:
    """Yield the private members of JSON Web Keys, given where their types stand."""
    until = 0
    for at in types:
        if at < until:
            continue
        begun = max(until, at - _KEY, text.rfind("{", max(until, at - _KEY), at))
        end = text.find("}", at, at + _KEY)
        until = end + 1 if end >= 0 else at + _KEY
        for match in _PRIVATE.finditer(text[begun:until]):
            yield Credential(begun + match.start(2), begun + match.end(2), REDACTED, begun)
