"""Any value, as JSON that can always be written: nothing raises, what JSON cannot hold is marked.

Marks, so that a reader can tell what was there: ``{"$float": "nan"}``, ``{"$bytes": "<base64>"}``,
``{"$int": "<digits>"}``, ``{"$cycle": true}``, ``{"$deep": true}``, ``{"$repr": "<text>", "$type": "<class>"}``,
``{"$error": "<why no repr>"}``. Lone surrogates become U+FFFD.
"""

from __future__ import annotations

import math
import re
import threading
from binascii import b2a_base64
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, ClassVar, Generic, TypeGuard, TypeVar, cast

import msgspec

T = TypeVar("T")
MAX_DEPTH = 64
MAX_TEXT = 1 << 20
"""Characters of one text value; what is beyond is cut, with a notice in front."""

MAX_CONTAINERS = 100_000
_MAX_INT = 1 << 63
_SHALLOW = 8
_LONG_KEY = 64
_BYTES = (bytes, bytearray, memoryview)
_ATOMS = frozenset({bool, type(None)})
_encode = msgspec.json.Encoder().encode


class Pattern:
    """A regular expression that is compiled when it is first used: to compile all of them takes most of the time of an import."""

    search: Callable[[str], re.Match[str] | None]
    fullmatch: Callable[[str], re.Match[str] | None]
    sub: Callable[[str | Callable[[re.Match[str]], str], str], str]

    def __init__(self, pattern: str, flags: int = 0) -> None:
        self._pattern, self._flags = pattern, flags

    def __getattr__(self, name: str) -> Any:
        compiled = re.compile(self._pattern, self._flags)
        self.search, self.fullmatch, self.sub = compiled.search, compiled.fullmatch, compiled.sub
        return getattr(compiled, name)


_SECRET_KEY = Pattern(
    r"authorization|api[-_]?key|private[-_]?key|x-[\w-]*-signature|secret|password|passwd|cookie"
    r"|(^|[-_])token$|(access|auth|refresh|id|session|bearer)[-_]?token",
    re.IGNORECASE,
)
_FORMS = r"""
      (?: \b | (?<=\\[nrt]) )                                                              # also behind an escape, in JSON inside a text
      (?: Bearer\s+[\w.~+/=-]{8,}
        | Basic\s+(?=\S*[0-9+/=]|[A-Z]*+[a-z]++[A-Z]++[a-z]++[A-Z])[A-Za-z0-9+/]{6,}={0,2}
        | sk-[\w-]{16,}                                                                    # OpenAI, Anthropic, OpenRouter
        | A[KS]IA[A-Z0-9]{16}\b (?:[\s:,;"'|/=]{1,4}[A-Za-z0-9/+=]{40}(?![A-Za-z0-9/+=]))? # AWS: id, with its secret
        | gh[pousr]_[A-Za-z0-9]{20,} | github_pat_\w{20,}
        | (?:xox[a-z]|xapp)-[A-Za-z0-9-]{10,}                                              # Slack
        | AIza[\w-]{30,}                                                                   # Google
        | [rs]k_(?:live|test)_[A-Za-z0-9]{10,}                                             # Stripe
        | hf_[A-Za-z0-9]{20,} )                                                            # Hugging Face
    | (?:(?:aws_)?secret_access_key|(?:AWS_)?SECRET_ACCESS_KEY|[Ss]ecretAccessKey)["']?\s{0,8}[:=]\s{0,8}["']?[\w/+=]{40,}
    | (?: (?<![\w-]) | (?<=\\[nrt]) ) eyJ[\w-]{8,}+\.eyJ[\w-]{4,}+(?:\.[\w-]*+)?           # JWT
    | (?<=://)[^\s/:@"'<>]*+:[^\s/?\#"'<>]+(?=@)                                           # URL: user and password
    | -----BEGIN[A-Z0-9 ]{0,40}PRIVATE[ ]KEY(?:[ ]BLOCK)?-----
      (?: [^-]*(?:-(?!----)[^-]*)* -----END[A-Z0-9 ]{0,40}PRIVATE[ ]KEY(?:[ ]BLOCK)?-----
        | (?: (?:(?:\s|\\[nr])*+[A-Za-z0-9+/=]{40,})++ (?:(?:\s|\\[nr])*+[A-Za-z0-9+/=]+)? )? )  # or it was cut off
    """
_SECRET_TEXT = Pattern(_FORMS, re.ASCII | re.VERBOSE)
"""Credentials by their form. No two attempts scan the same text: each stops where another one may begin, so it takes linear time."""

_AT_HYPHEN = Pattern(r"-(?:(?<=sk-)|(?<=xox[a-z]-)|(?<=xapp-)|(?<=[Aa]pi-)[Kk]ey|(?<=API-)KEY|----BEGIN)")
_AT_UNDERSCORE = Pattern(
    r"_(?:(?<=gh[pousr]_)|(?<=[rs]k_)(?:live|test)_|(?<=hf_)|(?<=[Aa]pi_)[Kk]ey|(?<=API_)KEY|pat_(?<=github_pat_)|key(?<=secret_access_key)|KEY(?<=SECRET_ACCESS_KEY))"
)
_AT_B = Pattern(r"B(?:earer|asic)\s", re.ASCII)
_AT_I = Pattern(r"I(?:A(?<=A[KS]IA)|za(?<=AIza))")
_AT_URL = Pattern(r"://[^\s/:@]*+:[^\s/]*@", re.ASCII)

REDACTED = "[REDACTED]"
_ASSIGNED = Pattern(
    r"""((?:[Pp]assw(?:or)?d|PASSW(?:OR)?D|[Aa]pi[_-][Kk]ey|API[_-]KEY)["']?\s{0,4}[:=]\s{0,4}["']?)[^\s"',;&\\]{6,}""", re.ASCII
)
"""A password or key that a text assigns: what is kept, and the value. Apart, since older Pythons mix up groups and possessive repeats."""


def raw(value: object) -> msgspec.Raw:
    """Return *value* as JSON bytes, taken now: later changes of a mutable argument are not seen."""
    return msgspec.Raw(encode(value))


def encode(value: object) -> bytes:
    """Return *value* as JSON bytes with marks for what JSON cannot hold; never raises."""
    try:
        if _is_plain(value, 0):
            return _encode(value)
    except Exception:  # noqa: BLE001, S110 - changed by another thread, or lone surrogates: the slow way marks them
        pass
    return _encode(plain(value))


def _is_plain(value: object, depth: int) -> bool:
    """Tell whether msgspec writes *value* as it is: it would turn NaN into null and bytes into text unasked."""
    kind = type(value)
    if kind is str:
        return len(value) <= MAX_TEXT  # type: ignore[arg-type]
    if kind is int:
        return -_MAX_INT <= value < 2 * _MAX_INT  # type: ignore[operator]
    if kind in _ATOMS or depth > _SHALLOW:
        return kind in _ATOMS
    if kind is dict:
        return all(type(key) is str and not _names_headers(key) and _is_plain(item, depth + 1) for key, item in value.items())  # type: ignore[attr-defined]
    if kind is list or kind is tuple:
        return all(_is_plain(item, depth + 1) for item in value)  # type: ignore[attr-defined]
    return kind is float and math.isfinite(value)  # type: ignore[arg-type]


def decode(data: msgspec.Raw | bytes | None) -> Any:
    """Return the value behind JSON bytes; None for none."""
    return None if data is None else msgspec.json.decode(data)


class TypedDecoder(Generic[T]):
    """Decodes JSON into one type. The decoder is made when first used, which takes milliseconds.

    It is made under one lock for all types: msgspec crashes the process if two threads make the first decoder of a Struct at once.
    """

    _making: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._decode: Callable[[bytes], T] | None = None

    def __call__(self, data: bytes) -> T:
        """Return the value; raises `msgspec.DecodeError`, of which `msgspec.ValidationError` says that it is of another type."""
        if self._decode is None:
            with self._making:
                self._decode = self._decode or msgspec.json.Decoder[Any](self._kind).decode
        return self._decode(data)


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    """Tell whether a decoded value is a JSON object."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Tell whether a decoded value is a JSON array."""
    return isinstance(value, list)


def plain(value: object) -> Any:
    """Return a copy of *value* made of dict, list, str, int, float, bool and None only; never raises."""
    return _plain(value, 0, _Walk())


def text(value: object) -> str:
    """Return *value* as text that can be encoded, at most `MAX_TEXT` characters; never raises."""
    try:
        found = str.__str__(value if isinstance(value, str) else str(value))  # a subclass's text, whatever its own code says
    except Exception as error:  # noqa: BLE001 - a value's own code may raise anything
        return f"<{type(value).__name__}: its text raises {type(error).__name__}>"
    return cut(clean(found))


def clean(found: str) -> str:
    """Return the text with lone surrogates replaced by U+FFFD."""
    return found if found.isascii() else found.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def cut(found: str, limit: int = MAX_TEXT) -> str:
    """Return the text, cut to *limit* characters behind a notice that names both sizes where it is longer."""
    if len(found) <= limit:
        return str(found)
    return f"[TRUNCATED] Original size {len(found)} characters; truncated to {limit} characters.\n\n{found[:limit]}"


class _Walk:
    """Where a conversion is: the containers above, and how many more it enters (shared ones could double at every level)."""

    __slots__ = ("above", "left")

    def __init__(self) -> None:
        self.above: set[int] = set()
        self.left = MAX_CONTAINERS


def _plain(value: object, depth: int, walk: _Walk) -> Any:
    try:
        return _converted(value, depth, walk)
    except Exception as error:  # noqa: BLE001 - a value's own code may raise anything: mark it, keep its neighbours
        return {"$error": f"{type(error).__name__} while reading a {type(value).__name__}"}


def _converted(value: object, depth: int, walk: _Walk) -> Any:
    kind = type(value)
    if value is None or kind is bool:
        return value
    if isinstance(value, str):
        return cut(clean(str.__str__(value)))
    if isinstance(value, int):
        number = int.__int__(value)
        return number if -_MAX_INT <= number < 2 * _MAX_INT else {"$int": hex(number)}
    if isinstance(value, float):
        real = float.__float__(value)
        return real if math.isfinite(real) else {"$float": repr(real)}
    if isinstance(value, _BYTES):
        return {"$bytes": b2a_base64(bytes(cast("bytes", value))[: MAX_TEXT // 2], newline=False).decode()}
    return _container(value, depth, walk)


def _container(value: object, depth: int, walk: _Walk) -> Any:
    identity = id(value)
    if identity in walk.above:
        return {"$cycle": True}
    if depth >= MAX_DEPTH or walk.left <= 0:
        return {"$deep": True}
    walk.above.add(identity)
    walk.left -= 1
    try:
        if isinstance(value, Mapping):
            items = [(text(key), item) for key, item in list(cast("Mapping[object, object]", value).items())]
            return {key: _plain(_without_credentials(key, item), depth + 1, walk) for key, item in items}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [_plain(item, depth + 1, walk) for item in list(cast("list[object]", value))]
        return _plain(_builtins(value), depth + 1, walk)
    finally:
        walk.above.discard(identity)


def _builtins(value: object) -> object:
    """Return a dataclass, Struct, pydantic model, date, UUID… as plain builtins, or its repr behind a mark."""
    dump = getattr(value, "model_dump", None)
    try:
        return dump() if callable(dump) else msgspec.to_builtins(value, builtin_types=_BYTES)
    except Exception:  # noqa: BLE001 - fall through to the guarded repr
        return {"$repr": _repr(value), "$type": f"{type(value).__module__}.{type(value).__qualname__}"}


def _repr(value: object) -> str:
    try:
        return repr(value)[:4096]
    except Exception as error:  # noqa: BLE001 - a repr may raise anything
        return f"<repr raises {type(error).__name__}>"


def redact(value: Any) -> Any:
    """Return a copy of a plain *value* with credentials replaced: by key (…token, …secret, cookie), and in texts by their form.

    Forms: Bearer and Basic, keys of OpenAI, Anthropic, AWS, GitHub, Slack, Google, Stripe and Hugging Face, JWTs, private keys in PEM,
    ``user:password@`` in URLs, and what a text assigns to a password or an api key.
    """
    if isinstance(value, str):
        return _ASSIGNED.sub(rf"\1{REDACTED}", _SECRET_TEXT.sub(REDACTED, value)) if may_hold_secret(value) else value
    if is_object(value):
        return {key: REDACTED if _is_secret(str(key)) else redact(item) for key, item in value.items()}
    if is_list(value):
        return [redact(item) for item in value]
    return value


def may_hold_secret(text: str) -> bool:
    """Tell whether `redact` may find a credential in a text: quick, and never False where it does.

    Each form is looked for at the rarest character that it cannot do without: to find that most texts have none takes nearly no time.
    """
    return (
        ("-" in text and _AT_HYPHEN.search(text) is not None)
        or ("_" in text and _AT_UNDERSCORE.search(text) is not None)
        or ("B" in text and _AT_B.search(text) is not None)
        or ("I" in text and _AT_I.search(text) is not None)
        or ("J" in text and "eyJ" in text)
        or "assw" in text
        or "ASSW" in text
        or ("K" in text and "ecretAccessKey" in text)
        or ("@" in text and _AT_URL.search(text) is not None)
    )


def _is_secret(key: str) -> bool:
    return _names_secret(key) if len(key) <= _LONG_KEY else _SECRET_KEY.search(key) is not None


@lru_cache(maxsize=4096)
def _names_secret(key: str) -> bool:
    return _SECRET_KEY.search(key) is not None


def _without_credentials(key: str, item: object) -> object:
    return drop_credentials(cast("Mapping[object, object]", item)) if _names_headers(key) and isinstance(item, Mapping) else item


def _names_headers(key: str) -> bool:
    return key[-1:] in "sS" and key[-7:].lower() == "headers"


def drop_credentials(headers: Mapping[Any, Any]) -> dict[str, Any]:
    """Return headers without the values of those that carry credentials: these never leave memory."""
    return {name: REDACTED if _is_secret(name) else value for name, value in ((header_name(key), value) for key, value in headers.items())}


def header_name(key: object) -> str:
    """Return a header's name, given as text or bytes."""
    return key.decode("latin-1") if isinstance(key, bytes) else text(key)
