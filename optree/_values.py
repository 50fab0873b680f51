"""Any value, as JSON that can always be written: nothing raises, what JSON cannot hold is marked.

Marks, so that a reader can tell what was there: ``{"$float": "nan"}``, ``{"$bytes": "<base64>"}``,
``{"$int": "<digits>"}``, ``{"$cycle": true}``, ``{"$deep": true}``, ``{"$repr": "<text>", "$type": "<class>"}``,
``{"$error": "<why no repr>"}``, ``{"$more": <items left out>}``. Lone surrogates become U+FFFD.
"""

from __future__ import annotations

import math
import threading
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, ClassVar, Generic, TypeGuard, TypeVar, cast

import msgspec

from optree._interrupts import new_rlock, pass_on
from optree.redaction import beginning, redact_headers

T = TypeVar("T")
MAX_DEPTH = 64
MAX_TEXT = 1 << 20
"""Characters of one text value; what is beyond is cut, with a notice in front."""

MAX_BYTES = MAX_TEXT // 2
MAX_CONTAINERS = 100_000
MAX_ITEMS = 100_000
"""Items of one value that a program gives, those of the containers in it too; what is beyond is counted, and not looked at."""
_MOST_NUMBER = 1e15
"""More than any time in milliseconds, latency or amount of money of another program."""
_NUMBERS = (int, float)
_MAX_REPR = 4096
_MAX_INT = 1 << 63
_SHALLOW = 8
_BYTES = (bytes, bytearray, memoryview)
_ATOMS = frozenset({bool, type(None)})
_SAME = frozenset({str, int, float, bool, bytes, type(None)})
_LOST = ("$cycle", "$deep", "$repr", "$error", "$more")
encode_into = msgspec.json.Encoder().encode_into
"""What `dumps` is made of: `Encoder.encode` of msgspec 0.22 ends the process where memory runs out in it, this raises `MemoryError`."""
_buffers: list[bytearray] = []
"""Buffers that are not in use: a thread, or a finalizer in the middle of another call, takes one out."""
_KEPT_BYTES = 1 << 16


def raw(value: object) -> msgspec.Raw:
    """Return *value* as JSON bytes, taken now: later changes of a mutable argument are not seen."""
    return msgspec.Raw(encode(value))


def dumps(value: object) -> bytes:
    """Return *value*, which JSON can hold, as bytes of JSON. Raises what msgspec does, and `MemoryError`."""
    try:
        buffer = _buffers.pop()
    except IndexError:
        buffer = bytearray()
    encode_into(value, buffer)
    data = bytes(buffer)
    if len(data) < _KEPT_BYTES:
        _buffers.append(buffer)
    return data


def encode(value: object, most: float = math.inf) -> bytes:
    """Return *value*, of at most so many items, as JSON bytes with marks for what JSON cannot hold; never raises."""
    try:
        if _is_plain(value, 0, [most]):
            return dumps(value)
    except Exception as error:  # noqa: BLE001 - changed by another thread, or lone surrogates: the slow way marks them
        pass_on(error)
    return dumps(plain(value, most))


def is_plain(value: object) -> bool:
    """Tell whether a value is plain data of no more items than are kept, which is written as it is."""
    return _is_plain(value, 0, [MAX_ITEMS])


def _is_plain(value: object, depth: int, room: list[float]) -> bool:
    """Tell whether msgspec writes *value* as it is: it would turn NaN into null and bytes into text unasked."""
    kind = type(value)
    if kind is str:
        return len(value) <= MAX_TEXT  # type: ignore[arg-type]
    if kind is int:
        return -_MAX_INT <= value < 2 * _MAX_INT  # type: ignore[operator]
    if kind in _ATOMS or depth > _SHALLOW:
        return kind in _ATOMS
    if kind is dict or kind is list or kind is tuple:
        room[0] -= len(value)  # type: ignore[arg-type]
        return room[0] >= 0 and _has_plain(value, depth, room)
    return kind is float and math.isfinite(value)  # type: ignore[arg-type]


def _has_plain(value: Any, depth: int, room: list[float]) -> bool:
    if isinstance(value, dict):
        value = cast("dict[object, object]", value)
        return all(type(key) is str and not _names_headers(key) and _is_plain(item, depth + 1, room) for key, item in value.items())
    return all(_is_plain(item, depth + 1, room) for item in value)


def foreign_type(value: object, depth: int = 0) -> str | None:
    """Return the class of the first value in one that is not the same when it was written and read, a tuple apart; None for none."""
    kind = type(value)
    if kind in _SAME and not (kind is bytes and len(cast("bytes", value)) > MAX_BYTES):
        return None
    if kind is dict and depth < MAX_DEPTH:
        known = cast("dict[object, object]", value)
        if (key := next((key for key in known if type(key) is not str), None)) is not None:
            return f"{type(key).__qualname__} as a key"
        return next((name for item in known.values() if (name := foreign_type(item, depth + 1)) is not None), None)
    if (kind is list or kind is tuple) and depth < MAX_DEPTH:
        return next((name for item in cast("list[object]", value) if (name := foreign_type(item, depth + 1)) is not None), None)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def restored(value: Any) -> Any:
    """Return a decoded value with bytes and numbers in the place of their marks. Raises `ValueError` for what cannot be put back."""
    if is_list(value):
        return [restored(one) for one in value]
    if not is_object(value):
        return value
    if len(value) == 1:
        [(name, told)] = value.items()
        if name == "$float" and isinstance(told, str):
            return float(told)
        if name == "$int" and isinstance(told, str):
            return int(told, 16)
        if name == "$bytes" and isinstance(told, str):
            return a2b_base64(told)
    if lost := next((name for name in _LOST if name in value), None):
        raise ValueError(lost)
    return {name: restored(one) for name, one in value.items()}


def decode(data: msgspec.Raw | bytes | None) -> Any:
    """Return the value behind JSON bytes; None for none."""
    return None if data is None else msgspec.json.decode(data)


class TypedDecoder(Generic[T]):
    """Decodes JSON into one type. The decoder is made when first used, which takes milliseconds.

    It is made under one lock for all types: msgspec crashes the process if two threads make the first decoder of a Struct at once.
    """

    _making: ClassVar[threading.RLock] = new_rlock()

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


def object_of(value: Any) -> dict[str, Any]:
    """Return an object as it is; an empty one for any other value."""
    return value if is_object(value) else {}


def objects_of(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list; none if it is no list."""
    return [item for item in value if is_object(item)] if is_list(value) else []


def text_of(value: Any) -> str | None:
    """Return a text; None for any other value."""
    return value if isinstance(value, str) else None


def texts_of(value: Any) -> dict[str, str] | None:
    """Return an object whose values are all texts; None for any other value."""
    return value if is_object(value) and all(isinstance(member, str) for member in value.values()) else None


def number_of(value: Any) -> float | None:
    """Return a number that may be a time, a duration or an amount of money; None for any other value."""
    return float(value) if type(value) in _NUMBERS and abs(value) < _MOST_NUMBER else None


def json_of(value: Any) -> msgspec.Raw:
    """Return a decoded value as JSON again, however long its texts are; only numbers beyond 64 bits need marks."""
    try:
        return msgspec.Raw(dumps(value))
    except OverflowError:
        return msgspec.Raw(encode(value))


def block_of(value: dict[str, Any]) -> msgspec.Raw | msgspec.UnsetType:
    """Return attributes as JSON; unset where there are none."""
    return json_of(value) if value else msgspec.UNSET


def plain(value: object, most: float = math.inf) -> Any:
    """Return a copy of *value*, of at most so many items, made of dict, list, str, int, float, bool and None only; never raises."""
    return _plain(value, 0, _Walk(most))


def text(value: object) -> str:
    """Return *value* as text that can be encoded, at most `MAX_TEXT` characters; never raises."""
    try:
        content = str.__str__(value if isinstance(value, str) else str(value))  # a subclass's text, whatever its own code says
    except Exception as error:  # noqa: BLE001 - a value's own code may raise anything
        pass_on(error)
        return f"<{type(value).__name__}: its text raises {type(error).__name__}>"
    return cut(clean(content))


def clean(found: str) -> str:
    """Return the text with lone surrogates replaced by U+FFFD."""
    return found if found.isascii() else found.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def shortened(text: str, limit: int) -> str:
    """Return a text for people, of at most *limit* characters: its beginning, and an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def cut(found: str, limit: int = MAX_TEXT) -> str:
    """Return the text, cut to *limit* characters behind a notice that names both sizes where it is longer; through no credential."""
    return str(found) if len(found) <= limit else truncated(found, limit, len(found))


def truncated(content: str, limit: int, size: int) -> str:
    """Return *limit* characters of a text of *size*, of which *content* is the beginning at least, as `cut` does."""
    kept = beginning(content, limit)
    return f"[TRUNCATED] Original size {size} characters; truncated to {len(kept)} characters.\n\n{kept}"


class _Walk:
    """Where a conversion is: the containers above, how many more it enters (shared ones could double at every level), and in headers."""

    __slots__ = ("above", "headers", "items", "left")

    def __init__(self, most: float) -> None:
        self.above: set[int] = set()
        self.items = most
        """How many more items it looks at."""
        self.left = MAX_CONTAINERS
        self.headers = 0
        """Names above that are those of headers: texts there are not cut, and bytes are texts, until credentials are out."""


def _plain(value: object, depth: int, walk: _Walk) -> Any:
    try:
        return _converted(value, depth, walk)
    except Exception as error:  # noqa: BLE001 - a value's own code may raise anything: mark it, keep its neighbours
        pass_on(error)
        return {"$error": f"{type(error).__name__} while reading a {type(value).__name__}"}


def _converted(value: object, depth: int, walk: _Walk) -> Any:
    kind = type(value)
    if value is None or kind is bool:
        return value
    if isinstance(value, str):
        cleaned = clean(str.__str__(value))
        return cleaned if walk.headers else cut(cleaned)
    if isinstance(value, int):
        number = int.__int__(value)
        return number if -_MAX_INT <= number < 2 * _MAX_INT else {"$int": hex(number)}
    if isinstance(value, float):
        real = float.__float__(value)
        return real if math.isfinite(real) else {"$float": repr(real)}
    if isinstance(value, _BYTES):
        data = bytes(cast("bytes", value))
        return data.decode("latin-1") if walk.headers else {"$bytes": b2a_base64(data[:MAX_BYTES], newline=False).decode()}
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
            mapping = cast("Mapping[object, object]", value)
            pairs, more = _first(mapping.items(), len(mapping), walk)
            items = [(_key(key, walk), item) for key, item in pairs]
            held = {key: (_headers if _names_headers(key.rstrip("'")) else _plain)(item, depth + 1, walk) for key, item in items}
            return held | more
        if isinstance(value, (list, tuple, set, frozenset)):
            several = cast("list[object]", value)
            taken, more = _first(several, len(several), walk)
            return [_plain(item, depth + 1, walk) for item in taken] + ([more] if more else [])
        return _plain(_builtins(value), depth + 1, walk)
    finally:
        walk.above.discard(identity)


def _first(items: Iterable[T], number: int, walk: _Walk) -> tuple[list[T], dict[str, Any]]:
    """Return a container's items as far as there is room, taken at once, and the mark that says how many are left out, if any are."""
    walk.items, room = walk.items - number, walk.items
    if number <= max(0, room):
        return list(items), {}
    kept = max(0, int(room))
    return list(islice(items, kept)), {"$more": number - kept}


def _builtins(value: object) -> object:
    """Return a dataclass, Struct, pydantic model, date, UUID… as plain builtins, or its repr behind a mark."""
    dump = getattr(value, "model_dump", None)
    try:
        return dumped(dump) if callable(dump) else msgspec.to_builtins(value, builtin_types=_BYTES)
    except Exception as error:  # noqa: BLE001 - fall through to the guarded repr
        pass_on(error)
        return {"$repr": _repr(value), "$type": f"{type(value).__module__}.{type(value).__qualname__}"}


def member(value: Any, name: str, default: Any = None) -> Any:
    """Return a member of an object; *default* for none, or where its own code raises when it is asked."""
    try:
        return getattr(value, name, default)
    except Exception as error:  # noqa: BLE001 - as above
        pass_on(error)
        return default


def own_members(owner: Any) -> Mapping[str, Any]:
    """Return what a class or a module has itself, and not by a class above it."""
    return cast("Mapping[str, Any]", vars(owner))


def subclasses(kind: Any) -> Iterator[Any]:
    """Yield all classes below one, those below several bases as often."""
    for one in type.__subclasses__(kind):
        yield one
        yield from subclasses(one)


def dumped(dump: Callable[..., Any]) -> Any:
    """Return what a method `model_dump` gives, without pydantic's warnings: they would stand among what the traced program says."""
    try:
        return dump(warnings=False)
    except (TypeError, ValueError) as error:  # another library's, or pydantic 1 behind a client
        pass_on(error)
        return dump()


def _repr(value: object) -> str:
    try:
        return beginning(repr(value), _MAX_REPR)
    except Exception as error:  # noqa: BLE001 - a repr may raise anything
        pass_on(error)
        return f"<repr raises {type(error).__name__}>"


def _key(key: object, walk: _Walk) -> str:
    return key.decode("latin-1") if walk.headers and isinstance(key, bytes) else text(key)


def _headers(value: object, depth: int, walk: _Walk) -> Any:
    """Return headers as plain values without what is a credential: it never leaves memory."""
    walk.headers += 1
    try:
        held = _plain(value, depth, walk)
    finally:
        walk.headers -= 1
    return held if walk.headers else _plain(redact_headers(held), depth, walk)


def _names_headers(key: str) -> bool:
    return key[-1:] in "sS" and key[-7:].lower() == "headers"
