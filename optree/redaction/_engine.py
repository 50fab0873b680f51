"""The engine: finds credentials in texts and values by the tables of forms and names, and replaces them."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, groupby, product
from typing import Any, NamedTuple, cast

from optree._interrupts import pass_on
from optree._patterns import Pattern
from optree._speed import presence
from optree.redaction._assigned import OPENERS, assigned, places, spellings, stated_values
from optree.redaction._extent import PRIVATE, REDACTED, USERS, Credential, is_count, is_other, is_schema
from optree.redaction._forms import FORMS, NAMES, Form, compiled, says_about, words_of
from optree.redaction._settings import PERSONAL, STATED, Redaction

_LONG_NAME = 64
_ESC = r"(?:\x1b|\\{1,15}(?:u001[bB]|x1[bB]|033|e)|%1[bB])"
_CSI = rf"(?:{_ESC}\[|\x9b|\\{{1,15}}(?:u009|x9)[bB])[0-?]{{0,64}}[ -/]{{0,8}}[@-~]"
_END_OF_STRING = rf"(?:[\x07\x9c]|\\{{1,15}}(?:u00|x)(?:07|9[cC])|%07|\\{{1,15}}a|{_ESC}\\{{1,16}})"
_CONTROL = rf"{_CSI}|{_ESC}(?:[\]PX^_][^\x00-\x1f\x7f-\x9f\\]{{0,4096}}{_END_OF_STRING}|[ -/]{{1,4}}[0-~]|[78=>cDEHMNOZ])"
_WRITTEN = Pattern(
    rf"({_CONTROL})|\\{{1,15}}(?:u([0-9A-Fa-f]{{4}})|x([0-9A-Fa-f]{{2}})|U[0-9A-Fa-f]{{8}}|(/))|%(?:25){{0,4}}([0-9A-Fa-f]{{2}})"
    r"|&(?:amp;){0,4}(?:#[xX]([0-9A-Fa-f]{1,4})|#([0-9]{1,5})|(quot|apos|amp|lt|gt|nbsp));"
)
"""What is written in another way than it reads: control sequences of terminals (ECMA-48), which are not seen, raw or escaped, and
characters as JSON, Python, URLs and HTML escape them, at any depth of texts inside texts."""
_ENTITIES = {"quot": '"', "apos": "'", "amp": "&", "lt": "<", "gt": ">", "nbsp": " "}
_EMAIL = Pattern(r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]++@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}")
_IPV4 = Pattern(r"(?<![\d.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\d]|\.\d)")
_IPV6 = Pattern(r"(?<![\w:.])[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:]{1,45}(?:\.\d{1,3}){0,3}(?![\w:])")
_NAMING = ("name", "key", "header", "headerName", "field")
_HEADER_NAME = Pattern(r"[\w!#$%&'*+.^`|~-]{1,128}")
_LINE = Pattern(r"(?m)(^[ \t]*[\w!#$%&'*+.^`|~-]{1,128}:[ \t]*)[^\s][^\r\n]*(?:\r?\n[ \t]+[^\r\n]+)*")
"""A header, which may go on in lines that begin with a blank."""
_SMALL = 8
_PAIR = 2
_LAST = 63
_ANOTHER_WAY = ("\\u", "\\U", "\\x", "\\/", "\\0", "\\e", "%", "\x1b", "&#", "&quot;", "&apos;", "&nbsp;", "&amp;")
_CSI_IN_ONE = "\x9b"


class _Group(NamedTuple):
    """Forms that share a rare character."""

    char: str
    seen: tuple[str, ...]
    """Texts of which one stands in each text that has one of them."""
    where: Pattern
    """Finds the character where one of them may be; the group that matched is which one, and where it begins."""
    forms: list[Pattern]


class _RedactionPass:
    """A text with its escaped characters decoded, and the places of its characters in the text as written."""

    def __init__(self, text: str, control: str) -> None:
        """Read a text, with *control* for each control sequence."""
        kept: list[str] = []
        self.controls = False
        self._keys, self._moved = [0], [0]
        at = size = 0
        for match in _WRITTEN.finditer(text):
            is_control = match[1] is not None
            self.controls |= is_control
            char = control if is_control else _char(match)
            kept += [text[at : match.start()], char]
            size += match.start() - at + len(char)
            at = match.end()
            self._keys.append(2 * size + (not char))  # what has no width lies behind what ends there
            self._moved.append(at - size)
        kept.append(text[at:])
        self.text = "".join(kept)

    def start(self, place: int) -> int:
        """Return where in the text something begins."""
        return place + self._moved[bisect_right(self._keys, 2 * place + 1) - 1]

    def stop(self, place: int) -> int:
        """Return where in the text something ends: before control sequences that follow."""
        return place + self._moved[bisect_right(self._keys, 2 * place) - 1]


def _char(match: re.Match[str]) -> str:
    """Return the character that is written in another way."""
    if match[8]:
        return _ENTITIES[match[8]]
    if match[7]:
        return chr(int(match[7]))
    return chr(int(match[2] or match[3] or match[5] or match[6] or ("2f" if match[4] else "fffd"), 16))


class Engine:
    """Finds and replaces, as settings say."""

    def __init__(self, settings: Redaction, failed: Callable[[], None]) -> None:
        """Take settings, and what is called when the user's callback raises."""
        self.settings = settings
        self._failed = failed
        disabled = frozenset(settings.disable)
        self._groups = [] if "form" in disabled else _grouped([form for form in FORMS if form.id not in disabled])
        named = () if "name" in disabled else tuple(name for name in NAMES if name.id not in disabled)
        self._names = compiled(named, settings.names)
        words = {max(words_of(name).split("_"), key=len): "" for name in settings.names}
        words |= {word: behind for name in named for word, behind in name.words.items()}
        words.pop("", None)
        self._words = [patterns for word, behind in words.items() for patterns in spellings(word, behind)]
        self._stated = STATED not in disabled
        self._first = len(self._groups) + 2
        self._present = _presence(self._groups, list(words), self._first)
        self._chosen = lru_cache(maxsize=1024)(self._choose)
        self._patterns = [Pattern(pattern) for pattern in settings.patterns]
        self._personal = [name for name in PERSONAL if name in settings.mask and "personal" not in disabled]
        self._asked = bool(self._patterns or self._personal)
        self._known_name = lru_cache(maxsize=4096)(self._tell_name)
        self._known_key = lru_cache(maxsize=4096)(self.text)

    def names_secret(self, name: str) -> bool:
        """Tell whether a name is that of a credential."""
        return self._known_name(name) if len(name) <= _LONG_NAME else self._tell_name(name)

    def may_hold_secret(self, text: str) -> bool:
        """Tell whether a text may hold a credential."""
        return self.settings.callback is not None or next(self._credentials(text), None) is not None

    def text(self, text: str) -> str:
        """Return a text with what is found replaced."""
        return self._called("".join(_replaced(text, [len(text)], spans))) if (spans := self.spans(text)) else self._called(text)

    def pieces(self, texts: Sequence[str]) -> list[str]:
        """Return texts that follow one another with what is found in them joined replaced, each in the piece where it begins."""
        joined = "".join(texts)
        if self.settings.callback is not None:
            return [self.text(joined), *("" for _ in texts[1:])] if texts else []
        spans = self.spans(joined)
        return _replaced(joined, list(accumulate(map(len, texts))), spans) if spans else list(texts)

    def value(self, value: Any) -> Any:
        """Return a copy of a plain value with what is found replaced."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return self._object(cast("dict[str, Any]", value))
        if isinstance(value, (list, tuple)):
            return self._list(cast("Sequence[Any]", value))
        return value

    def headers(self, value: Any) -> Any:
        """Return a copy of headers, as plain values, with what is found replaced: what a name gives, and what a line gives to a name."""
        if isinstance(value, str):
            return self.text(_LINE.sub(self._header, value))
        if not isinstance(value, list):
            return self.value(value)
        items: list[Any] = []
        named = False
        for item in cast("Sequence[Any]", value):
            if _is_named_value(item):
                items.append(self._pair(item))
            else:
                items.append(REDACTED if named and item and isinstance(item, str) else self.headers(item))
            named = isinstance(item, str) and self.names_secret(item) and _HEADER_NAME.fullmatch(item) is not None
        return items

    def _header(self, line: re.Match[str]) -> str:
        return line[1] + REDACTED if self.names_secret(line[1].rstrip(": \t")) else line[0]

    def spans(self, text: str) -> list[Credential]:
        """Return the credentials in a text, in order, none over another."""
        merged: list[Credential] = []
        for credential in sorted(self._credentials(text)):
            if merged and credential.start < merged[-1].stop:
                last = merged[-1]
                instead = (
                    last.instead if credential.stop <= last.stop else credential.instead if credential.start == last.start else REDACTED
                )
                context, is_open = min(last.context, credential.context), last.is_open or credential.is_open
                merged[-1] = Credential(last.start, max(last.stop, credential.stop), instead, context, is_open)
            else:
                merged.append(credential)
        return merged

    def _credentials(self, text: str) -> Iterator[Credential]:
        present = self._present(text)
        if present or self._asked:
            yield from self._in_plain(text, present)
        if (present & 1 or _CSI_IN_ONE in text) and _WRITTEN.search(text) is not None:
            reading = _RedactionPass(text, "")
            yield from self._in_reading(text, reading)
            if reading.controls:  # one may part words as well
                yield from self._in_reading(text, _RedactionPass(text, "\x1b"))

    def _in_plain(self, text: str, present: int) -> Iterator[Credential]:
        groups, words = self._chosen(present)
        for group in groups:
            yield from _formed(text, group)
        if words and (where := places(text, words)) is not None:
            yield from assigned(text, where, self.names_secret)
            if where.stated and self._stated:
                yield from stated_values(text, where, self.names_secret)
        for pattern in self._patterns:
            for match in pattern.finditer(text):
                yield _of(match)
        for personal in self._personal:
            yield from _PERSONAL[personal](text)

    def _choose(self, present: int) -> tuple[list[_Group], list[Pattern]]:
        """Return what is to be looked for in a text, given what may be in it."""
        groups = [group for number, group in enumerate(self._groups, 1) if present >> number & 1]
        numbered = enumerate(self._words, self._first)
        return groups, [word for number, spelled in numbered if present >> min(number, _LAST) & 1 for word in spelled]

    def _in_reading(self, text: str, reading: _RedactionPass) -> Iterator[Credential]:
        """Yield the credentials in a text with its escaped characters decoded."""
        for credential in self._in_plain(reading.text, self._present(reading.text)):
            start, context = reading.start(credential.start), reading.start(credential.context)
            quote = credential.instead.partition(REDACTED)[0]
            instead = credential.instead if quote in text[context:start] else REDACTED
            yield Credential(start, reading.stop(credential.stop), instead, context, credential.is_open)

    def _object(self, value: dict[Any, Any]) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        alike: dict[Any, int] = {}
        for key, item in value.items():
            name, secret = key, False
            if isinstance(key, str):
                name = self._known_key(key) if len(key) <= _LONG_NAME else self.text(key)
                secret = self._hides(key, item, value)
            if name in result:  # of another key that is replaced
                name = _another_name(name, alike, result)
            result[name] = REDACTED if secret else self.value(item)
        if len(value) <= _SMALL and "value" in value and self._names_its_value(value):
            result["value"] = REDACTED
        return result

    def _list(self, value: Sequence[Any]) -> list[Any] | tuple[Any, ...]:
        if value and all(map(_is_named_value, value)):
            items: list[Any] = [self._pair(pair) for pair in value]
        else:
            items = [self.value(item) for item in value]
        return tuple(items) if isinstance(value, tuple) else items

    def _pair(self, pair: Sequence[Any]) -> list[Any] | tuple[Any, ...]:
        replaced = [self.value(pair[0]), REDACTED if self._hides(pair[0], pair[1], {}) else self.value(pair[1])]
        return tuple(replaced) if isinstance(pair, tuple) else replaced

    def _names_its_value(self, value: dict[Any, Any]) -> bool:
        """Tell whether an object has the name of a credential, and a value beside it."""
        return any(isinstance(name := value.get(key), str) and self._hides(name, value["value"], {}) for key in _NAMING)

    def _hides(self, name: str, item: object, beside: dict[Any, Any]) -> bool:
        """Tell whether what stands under a name is a credential: not nothing, a truth value, a schema, or a token of a model's answer."""
        if item is None or isinstance(item, bool) or item == "" or not self._names_beside(name, beside):
            return False
        if isinstance(item, dict):
            return not is_schema(cast("dict[str, Any]", item))
        if isinstance(item, (int, float)):
            return name.lower() != "token" and not is_count(name)
        return not (name == "token" and "logprob" in beside) and not (isinstance(item, str) and is_other(name, item))

    def _names_beside(self, name: str, beside: dict[Any, Any]) -> bool:
        """Tell whether a name is that of a credential, beside what else an object has: a user, or the type of a JSON Web Key."""
        if name in PRIVATE and "kty" in beside:
            return self.names_secret("private_key")
        return self.names_secret("user_pass" if name == "pass" and not USERS.isdisjoint(beside) else name)

    def _tell_name(self, name: str) -> bool:
        words = words_of(name)
        return self._names.search(words) is not None and not says_about(words)

    def _called(self, text: str) -> str:
        if self.settings.callback is None:
            return text
        try:
            return str.__str__(self.settings.callback(text))
        except Exception as error:  # noqa: BLE001 - tracing never raises into the program
            pass_on(error)
            self._failed()
            return REDACTED


def _another_name(name: Any, alike: dict[Any, int], members: dict[Any, Any]) -> str:
    """Return a name like one that is there: with a prime, and from the third on their number."""
    while True:
        number = alike[name] = alike.get(name, 1) + 1
        another = f"{name}'" if number == _PAIR else f"{name}'{number}"
        if another not in members:
            return another


def _is_named_value(value: Any) -> bool:
    """Tell whether a value is a list of two, of which the first may be a name."""
    items = cast("Sequence[Any]", value if isinstance(value, (list, tuple)) else ())
    return len(items) == _PAIR and type(items[0]) is str


def _grouped(forms: list[Form]) -> list[_Group]:
    by_char: dict[str, list[tuple[str, Form]]] = {}
    for form in forms:
        for at in form.at:
            by_char.setdefault(at[-1], []).append((at, form))
    groups: list[_Group] = []
    for char, members in by_char.items():
        members.sort(key=lambda member: (_after(member), -len(member[0])))  # csk- before sk-
        where = "|".join(f"{after}(?:{'|'.join(f'(?<=({at}))' for at, _ in alike)})" for after, alike in groupby(members, _after))
        patterns = [Pattern(f"{form.start}{at}{form.rest}", re.ASCII) for at, form in members]
        seen = tuple(literal for at, form in members for literal in form.seen or _literals(at))
        groups.append(_Group(char, seen, Pattern(f"{re.escape(char)}(?:{where})", re.ASCII), patterns))
    return groups


def _after(member: tuple[str, Form]) -> str:
    return member[1].after


def _literals(at: str) -> list[str]:
    """Return the longest plain text in a pattern of known width, in each way in which it may be written."""
    longest = max((part.replace("\\.", ".") for part in re.split(r"\\d|\[a-z\]|\[\?&\]|\(\?:[^)]*\)", at)), key=len)
    parts = re.split(r"\[([^\]]*)\]", longest)
    return ["".join(chosen) for chosen in product(*(tuple(part) if number % 2 else (part,) for number, part in enumerate(parts)))]


def _presence(groups: list[_Group], words: list[str], first: int) -> Callable[[str], int]:
    """Return a function that finds which may be in a text, a bit each: escaped characters, groups of forms, words."""
    texts = [(text, 0) for text in _ANOTHER_WAY]
    texts += [(text, number) for number, group in enumerate(groups, 1) for text in group.seen]
    texts += [(text, first - 1) for text in OPENERS]
    numbered = [(word, min(first + 2 * number, _LAST), min(first + 2 * number + 1, _LAST)) for number, word in enumerate(words)]
    for word, small, great in numbered:
        texts += [(word, small), (word.capitalize(), great), (word.upper(), great)]
    quick = presence(texts, first)
    if quick is not None:
        return quick
    bits = [(group.char, 1 << number) for number, group in enumerate(groups, 1)]
    bits_of_words = [(word, 1 << small | 1 << great) for word, small, great in numbered]

    def looked(text: str) -> int:
        result = int("\\" in text or "%" in text or "\x1b" in text or "&" in text)
        for char, bit in bits:
            if char in text:
                result |= bit
        lower = text.lower()
        for word, bit in bits_of_words:
            if word in lower:
                result |= bit
        return result

    return looked


def _formed(text: str, group: _Group) -> Iterator[Credential]:
    until = [0] * len(group.forms)
    for hit in group.where.finditer(text):
        number = cast("int", hit.lastindex)
        start = hit.start(number)
        if start < until[number - 1]:
            continue
        match = group.forms[number - 1].match(text, start)
        if match is not None:
            until[number - 1] = match.end()
            yield _of(match)


def _of(match: re.Match[str]) -> Credential:
    """Return what a pattern found: its group ``secret`` where it has one."""
    secret = "secret" if "secret" in match.re.groupindex else 0
    return Credential(match.start(secret), match.end(secret), REDACTED, match.start())


def _emails(text: str) -> Iterator[Credential]:
    if "@" in text:
        for match in _EMAIL.finditer(text):
            yield Credential(match.start(), match.end(), REDACTED, match.start())


def _addresses(text: str) -> Iterator[Credential]:
    from ipaddress import IPv6Address

    for match in _IPV4.finditer(text) if "." in text else ():
        yield Credential(match.start(), match.end(), REDACTED, match.start())
    for match in _IPV6.finditer(text) if ":" in text else ():
        try:
            IPv6Address(match[0])
        except ValueError:
            continue
        yield Credential(match.start(), match.end(), REDACTED, match.start())


_PERSONAL = {"email": _emails, "ip": _addresses}


def _replaced(text: str, ends: list[int], spans: list[Credential]) -> list[str]:
    """Return the pieces of *text* that end at *ends*, with each credential replaced in the piece where it begins."""
    rest = iter(spans)
    last = Credential(len(text), len(text), "", 0)
    credential = next(rest, last)
    pieces: list[str] = []
    begun = 0
    for end in ends:
        kept: list[str] = []
        while credential.start < end:
            kept += [text[begun : credential.start], credential.instead] if credential.start >= begun else []
            begun = min(credential.stop, end)
            if credential.stop > end:
                break
            credential = next(rest, last)
        pieces.append("".join([*kept, text[begun:end]]))
        begun = end
    return pieces
