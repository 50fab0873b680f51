"""Names of credentials: told by their words, so that ``next_page_token``, ``secretary`` and ``author`` are none."""

from __future__ import annotations

import re
from typing import NamedTuple

from optree.patterns import Pattern

_LONGEST = 128
_WORD = Pattern(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


class Name(NamedTuple):
    """Names of one kind of credential, as a pattern over their words: ``dbPassword`` is ``_db_password_``."""

    id: str
    pattern: str
    words: dict[str, str]
    """Each of the names has one of these words, in small or great letters or with a capital; and what may not follow it in a text."""


_KEYS = (
    "api|access|account|admin|anthropic|app|application|auth|azure|client|consumer|deploy|encryption|functions?|gemini|google|groq|license|master"
    "|mistral|openai|openrouter|private|secret|service|shared|signing|ssh|storage|subscription"
)
_HELD = "access|api|auth|bearer|csrf|id|oauth|refresh|session|xsrf"
_LINGUISTIC = (
    "bos|cancel|cancellation|cls|continuation|cursor|cut|end|eos|first|last|mask|max|min|new|next|num|pad|page|per|prompt|sep|skip|special|start"
    "|stop|sync|this|total|unk|unknown"
)
NAMES = (
    Name(
        "password",
        r"_[a-z]{0,24}(?:password|passwort|passwd|passphrase)s?_|_(?:pwds?|passcodes?|pass_phrase)_"
        r"|_(?:admin|auth|db|ftp|login|mail|mysql|pg|postgres|proxy|redis|root|smtp|ssh|sudo|user)_?pass_$",
        {"passw": "", "passphrase": "", "passcode": "", "pass": r"(?![a-z])", "pwd": ""},
    ),
    Name("secret", r"_[a-z]{0,24}secrets?_", {"secret": r"(?!ar[iy])"}),
    Name("api-key", rf"_(?:{_KEYS})_?keys?_(?!ids?_)", {"key": r"s?(?![a-z])", "kty": ""}),
    Name(
        "token",
        rf"_(?!(?:{_LINGUISTIC})_)[a-z]+_token_$|^_token_$|_(?:{_HELD})_?tokens?_|_token_(?:value|string)_$",
        {"token": r"(?!s?_count|i[sz])(?<!max_token)(?<!put_token)(?<!total_token)(?<!prompt_token)(?<!completion_token)"},
    ),
    Name("auth", r"_(?:o_?)?auth_$|_authorizations?_|_bearer_$", {"auth": r"(?![a-z])", "authorization": "", "bearer": ""}),
    Name("cookie", r"_cookies?_", {"cookie": ""}),
    Name("credentials", r"_cred(?:ential)?s?_", {"cred": r"(?:ential)?s?(?![a-z])"}),
    Name("jwt", r"_jwts?_", {"jwt": ""}),
    Name("signature", r"^_x_[a-z_]*signature_", {"signature": ""}),
)
_ABOUT = (
    "age|alg(?:orithms?)?|at|audience|budget|chars|counts?|description|domain|enabled|endpoint|error|expired|expires|expir(?:ation|y)|field"
    "|file(?:name)?|format|index|issuer|kind|label|len|length|limits?|method|mode|names?|path|policy|present|provider|required|scheme|scopes?"
    "|size|status|total|ttl|types?|uri|url|usage|valid|version"
)
"""A name that ends so is about a credential, and holds none."""

_IS_ABOUT = Pattern(rf"_(?:{_ABOUT})_$")


def words_of(name: str) -> str:
    """Return the words of a name, lower case between underscores: ``_api_key_`` for ``apiKey``, ``API-KEY`` and ``api key``."""
    return "_".join(["", *(word.lower() for word in _WORD.findall(name[-_LONGEST:])), ""])


def says_about(words: str) -> bool:
    """Tell whether a name, given as its words, is about a credential rather than one: ``token_count``, ``secret_name``."""
    return _IS_ABOUT.search(words) is not None


def compiled(names: tuple[Name, ...], more: tuple[str, ...]) -> re.Pattern[str]:
    """Return one pattern over the words of names: those of the table, and what a user adds."""
    return re.compile("|".join([*(name.pattern for name in names), *(f"^{re.escape(words_of(name))}$" for name in more)]) or "(?!)")
