"""What stands under the name of a credential and is none: a schema, a reference, code, a path, a count, a token of text."""

from __future__ import annotations

import re
from collections import Counter
from math import log2
from typing import Any

from optree.patterns import Pattern
from optree.redaction._extent import end_of_container

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
_DIRECTORY = Pattern(r"(?:~|[A-Za-z]:)?(?:[/\\]+[\w.@+~-]+){2,}[/\\]?|~?(?:/[a-z_.-]*)?")
_TEXT_TOKEN = Pattern(r"(?:[\W_ĠĊ]|\\{1,15}(?:[nrt]|u[0-9a-fA-F]{4})){0,4}(?:[A-Z]?[^\W\d_A-Z]{0,15}|[A-Z]{1,8}|\d{1,3})[\W_]{0,4}")
_FETCHED = ("include", "omit", "same-origin")


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
    given = [value for name, value in item.items() if name not in _TELLING]
    listed: list[list[Any]] = [values for values in given if isinstance(values, list)]
    given += [value for values in listed for value in values]
    return not any(isinstance(value, str) and looks_random(value) for value in given)


def begins_schema(text: str, at: int) -> bool:
    """Tell the same of an object in a text, by its beginning."""
    if (match := _SCHEMA.match(text, at)) is None:
        return False
    begun = text[at : at + _LONGEST_SCHEMA]
    begun = begun[: end_of_container(begun, 0, len(match[1]) - 1)]
    return not any(map(looks_random, _EXAMPLE.findall(begun)))
