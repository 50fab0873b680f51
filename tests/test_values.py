import dataclasses
import datetime as dt
import decimal
import enum
import math
import uuid
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optree import redaction
from optree._values import MAX_CONTAINERS, MAX_DEPTH, MAX_ITEMS, MAX_TEXT, clean, cut, decode, dumped, encode, plain, raw, text
from optree.redaction import REDACTED, Redaction
from tests.hostile import Raising, RaisingMapping, RaisingModel, RaisingText
from tests.strategies import values


class Model:
    """Like a pydantic model."""

    def model_dump(self):
        """Return what it holds."""
        return {"name": "x", "ratio": math.nan}


class Colour(str, enum.Enum):  # noqa: UP042 - the older way to write it
    """A text with a name."""

    RED = "red"


class Level(enum.IntEnum):
    """A number with a name."""

    LOW = 1


@dataclasses.dataclass
class Point:
    """Plain data."""

    x: float
    label: object


class Number(int):
    """A number whose own code raises."""

    def __int__(self):
        raise RuntimeError

    __repr__ = __str__ = __float__ = __index__ = __int__


MOMENT = dt.datetime(2024, 5, 6, 7, 8, 9, tzinfo=dt.UTC)
CASES = {
    "nothing": (None, None),
    "text": ("é", "é"),
    "nan": (math.nan, {"$float": "nan"}),
    "infinity": ([math.inf, -math.inf], [{"$float": "inf"}, {"$float": "-inf"}]),
    "bytes": (b"\x00\xff", {"$bytes": "AP8="}),
    "bytearray": (bytearray(b"a"), {"$bytes": "YQ=="}),
    "memoryview": (memoryview(b"a"), {"$bytes": "YQ=="}),
    "lone surrogate": ("a\ud800b", "a\ufffdb"),
    "surrogate key": ({"\udfff": 1}, {"\ufffd": 1}),
    "surrogate pair": ("\ud83d\ude00", "😀"),
    "huge number": (2**64, {"$int": "0x10000000000000000"}),
    "largest number": (2**64 - 1, 2**64 - 1),
    "smallest and largest beside what is marked": ([-(2**63), 2**64 - 1, math.nan], [-(2**63), 2**64 - 1, {"$float": "nan"}]),
    "keys like that of headers": (
        {"readers": b"a", "header": b"a", "headers_": b"a"},
        {key: {"$bytes": "YQ=="} for key in ("readers", "header", "headers_")},
    ),
    "huge negative": (-(2**63) - 1, {"$int": "-0x8000000000000001"}),
    "number of 10,000 digits": (10**10_000, {"$int": hex(10**10_000)}),
    "tuple": ((1, "a"), [1, "a"]),
    "set": ({1}, [1]),
    "frozenset": (frozenset({"a"}), ["a"]),
    "tuple keys": ({(1, 2): "x"}, {"(1, 2)": "x"}),
    "number keys": ({1: "x", None: "y"}, {"1": "x", "None": "y"}),
    "dataclass": (Point(1.5, "a"), {"x": 1.5, "label": "a"}),
    "hostile dataclass": (Point(math.nan, b"a"), {"x": {"$float": "nan"}, "label": {"$bytes": "YQ=="}}),
    "model": (Model(), {"name": "x", "ratio": {"$float": "nan"}}),
    "raising model": (RaisingModel(), {"$repr": "RaisingModel()", "$type": "tests.hostile.RaisingModel"}),
    "text enum": (Colour.RED, "red"),
    "number enum": (Level.LOW, 1),
    "time": (MOMENT, "2024-05-06T07:08:09Z"),
    "uuid": (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    "decimal": (decimal.Decimal("0.1"), "0.1"),
    "raising text": ({"a": RaisingText("x")}, {"a": "x"}),
    "raising number": ({"a": Number(7)}, {"a": 7}),
    "raising anything": ({"good": 1, "bad": Raising()}, {"good": 1, "bad": {"$error": "RuntimeError while reading a Raising"}}),
    "raising mapping": ([RaisingMapping(a=1), 2], [{"$error": "RuntimeError while reading a RaisingMapping"}, 2]),
    "raising key": ({RaisingText("k"): 1}, {"k": 1}),
}


@pytest.mark.parametrize(("value", "expected"), CASES.values(), ids=CASES)
def test_marks(value, expected):
    """What JSON holds stays as it is; what it cannot hold is marked, and its neighbours stay."""
    assert expected == decode(encode(value))


def test_objects_without_data():
    """An object that is no data is kept as its repr, with its type."""
    found = decode(encode({"f": test_marks, "o": Mock(spec=[], name="m")}))
    assert f"<function test_marks at {hex(id(test_marks))}>" == found["f"]["$repr"]
    assert ("builtins.function", "unittest.mock.Mock") == (found["f"]["$type"], found["o"]["$type"])


def test_cycles():
    """A value that contains itself is cut where it begins again; one that is only used twice is not."""
    cycle: dict[str, object] = {"name": "x"}
    cycle["self"] = [cycle]
    shared = [1]
    assert {"name": "x", "self": [{"$cycle": True}]} == decode(encode(cycle))
    assert [[1], [1]] == decode(encode([shared, shared, {"a": shared}]))[:2]


@pytest.mark.parametrize("into", [lambda inner: [inner], lambda inner: {"in": inner}, lambda inner: {"headers": inner}])
def test_deep_nesting(into):
    """Nesting of 5,000 levels is cut at the stated depth and marked."""
    deep: object = "core"
    for _ in range(5000):
        deep = into(deep)
    found, levels = decode(encode(deep)), 0
    while found != {"$deep": True}:
        [found] = found if isinstance(found, list) else found.values()
        levels += 1
    assert (MAX_DEPTH, {"$deep": True}) == (levels, found)


@pytest.mark.parametrize("levels", [7, 8, 9, 10, MAX_DEPTH - 1])
def test_moderate_nesting(levels):
    """Nesting within the stated depth is kept whole, with what is hostile inside marked."""
    value, expected = math.nan, {"$float": "nan"}
    for _ in range(levels):
        value, expected = {"in": value}, {"in": expected}
    assert expected == decode(encode(value))


def test_shared_containers():
    """Of containers that stand in many places so many are entered as is stated, and the others are marked."""
    assert [[], {"$deep": True}] == plain([[]] * MAX_CONTAINERS)[-2:]


class Counted(list):
    """A list that counts which of its items are asked for."""

    asked = 0

    def __iter__(self):
        for item in super().__iter__():
            self.asked += 1
            yield item


@pytest.mark.parametrize("kind", [list, tuple, set, dict])
def test_what_is_beyond_the_most_items_is_counted(kind):
    """Of a value with too many items the first are kept and the others counted; the containers within count too."""
    value = dict.fromkeys(map(str, range(MAX_ITEMS + 5))) if kind is dict else kind(range(MAX_ITEMS + 5))
    found = decode(encode(value, MAX_ITEMS))
    assert (MAX_ITEMS + 1, 5) == (len(found), (found if kind is dict else found[-1])["$more"])
    nested = [[[1] * 1000] * 99, [1] * 1000, []]
    assert [nested[0], [{"$more": 1000}], []] == decode(encode(nested, 99_102))


def test_what_is_beyond_the_most_items_is_not_looked_at():
    """Of two million items as many are asked for as are kept; without a bound, all are."""
    value = Counted(range(2_000_000))
    plain(value, MAX_ITEMS)
    assert MAX_ITEMS == value.asked
    assert 200_000 == len(plain(list(range(200_000))))


def test_a_model_is_dumped_in_silence():
    """A model that can is asked for its data without warnings; one that cannot be asked so is asked plainly."""
    assert {"warnings": False} == dumped(lambda **options: options)
    assert "plain" == dumped(lambda: "plain")


NESTED = {"in": [{"in": [{"in": [{"in": [{"text": "x" * 9}]}]}]}]}


@pytest.mark.parametrize(
    "value", ["x" * MAX_TEXT, -(2**63), 2**64 - 1, 0.5, None, True, [1, (2.5, None)], NESTED], ids=lambda value: str(value)[:20]
)
def test_what_json_holds_is_not_copied(value, monkeypatch):
    """A value that JSON holds as it is goes the short way, up to what is stated: no copy of it is made first."""
    expected = msgspec.json.encode(value)
    monkeypatch.delattr("optree._values.plain")
    assert expected == encode(value)


@pytest.mark.parametrize("value", ["x" * (MAX_TEXT + 1), -(2**63) - 1, 2**64, math.inf, b"", {1: 2}, {"headers": {}}, [NESTED]])
def test_what_json_does_not_hold_is_copied(value, monkeypatch):
    """What must be cut, marked or looked through goes the long way; so does what is nested deeper than nearly all values are."""
    monkeypatch.setattr("optree._values.plain", lambda _value, _most: "copied")
    assert "copied" == decode(encode(value))


def test_models_without_end():
    """A model that dumps into ever new models is cut at the stated depth."""

    class Endless:
        def model_dump(self):
            return Endless()

    assert {"$deep": True} == decode(encode(Endless()))


def test_taken_at_the_call():
    """A value that changes after the call is kept as it was."""
    value = {"items": [1]}
    kept = raw(value)
    value["items"].append(2)
    assert {"items": [1]} == decode(kept)


def test_long_text():
    """Text beyond the cap is cut behind a notice that names both sizes, wherever it stands (S4-65)."""
    long = "x" * (MAX_TEXT + 1)
    expected = f"[TRUNCATED] Original size {MAX_TEXT + 1} characters; truncated to {MAX_TEXT} characters.\n\n" + long[:-1]
    assert expected == decode(encode(long)) == decode(encode({"deep": [long]}))["deep"][0] == text(long)
    assert long[:-1] == decode(encode(long[:-1]))


def test_text_never_raises():
    """Anything becomes text that can be encoded."""
    assert "<Raising: its text raises RuntimeError>" == text(Raising())
    assert ("x", "a\ufffd", "None", "b'a'") == (text(RaisingText("x")), text("a\ud800"), text(None), text(b"a"))
    assert str is type(text(RaisingText("x")))


@given(st.text(st.characters()))
def test_clean_text_is_encodable(found):
    """Cleaned text can be encoded, and is the same where it could be before."""
    cleaned = clean(found)
    cleaned.encode()
    if not any("\ud800" <= char <= "\udfff" for char in found):
        assert found == cleaned


@given(values)
def test_plain_values_are_a_fixed_point(value):
    """Any value becomes plain, and what is plain stays as it is."""
    once = plain(value)
    assert once == decode(encode(value)) == plain(once)


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(), st.lists))
def test_json_is_kept(value):
    """Values that JSON holds come back as they were."""
    assert value == decode(encode(value)) == msgspec.json.decode(msgspec.json.encode(value))


def test_cut():
    """A text is cut to the limit only where it is longer."""
    assert "abc" == cut("abc", 3)
    assert "[TRUNCATED] Original size 4 characters; truncated to 3 characters.\n\nabc" == cut("abcd", 3)


PRIVATE = "sk-proj-Zq8LmN4xT7vBcD2fGhJ9kPwRsY5u"


@pytest.mark.parametrize("over", range(1, len(PRIVATE)))
def test_cut_through_no_credential(over):
    """Of a credential that lies over the cut nothing stays, in a text or in what an object says of itself."""
    shown = cut("a" * 5000 + " " + PRIVATE + " b", 5001 + over)
    assert f"[TRUNCATED] Original size {5003 + len(PRIVATE)} characters; truncated to 5001 characters.\n\n{'a' * 5000} " == shown

    class Client:
        def __repr__(self):
            return f"<{'a' * (4094 - over)} {PRIVATE}>"

    assert f"<{'a' * (4094 - over)} " == plain(Client())["$repr"]


V, W = "Token x1y2z3", "v"
KEY = "sk-proj-AbCdEfGhIjKlMnOpQrStUvWx"


@dataclasses.dataclass
class Header:
    """One header, as some clients have it."""

    name: object
    value: object


@dataclasses.dataclass
class Headers:
    """Headers as fields."""

    x_api_key: str
    accept: str


HEADERS = {
    "mapping": ({"X-Api-Key": W, "accept": "x"}, {"X-Api-Key": REDACTED, "accept": "x"}),
    "pairs": ([["x-api-key", W], ["accept", "x"]], [["x-api-key", REDACTED], ["accept", "x"]]),
    "pairs of bytes": ([(b"authorization", V.encode())], [["authorization", REDACTED]]),
    "tuple of pairs": ((("Cookie", W), ("a", "b")), [["Cookie", REDACTED], ["a", "b"]]),
    "objects": ([{"name": "x-api-key", "value": W}], [{"name": "x-api-key", "value": REDACTED}]),
    "lines": ([f"Authorization: {V}", "accept: x"], [f"Authorization: {REDACTED}", "accept: x"]),
    "lines of bytes": ([f"Authorization: {V}".encode()], [f"Authorization: {REDACTED}"]),
    "text": (f"Authorization: {V}\naccept: x", f"Authorization: {REDACTED}\naccept: x"),
    "words in a line": (["X-Auth-Token: open sesame", "accept: x"], [f"X-Auth-Token: {REDACTED}", "accept: x"]),
    "a line that goes on": ("Cookie: a=b;\r\n c=d\r\naccept: x", f"Cookie: {REDACTED}\r\naccept: x"),
    "bytes": (b"X-Auth-Token: sesame\r\naccept: x", f"X-Auth-Token: {REDACTED}\r\naccept: x"),
    "names before values": (["X-Api-Key", W, "accept", "x"], ["X-Api-Key", REDACTED, "accept", "x"]),
    "mapping of bytes": ({b"X-Api-Key": b"s3cret", b"accept": b"x"}, {"X-Api-Key": REDACTED, "accept": "x"}),
    "several values": ({"set-cookie": ["a=b", "c=d"], "accept": ["x"]}, {"set-cookie": REDACTED, "accept": ["x"]}),
    "objects of bytes": ([{"name": b"x-api-key", "value": b"v"}], [{"name": "x-api-key", "value": REDACTED}]),
    "a class's objects": ([Header("x-api-key", W), Header(b"accept", b"x")], [
        {"name": "x-api-key", "value": REDACTED}, {"name": "accept", "value": "x"}]),
    "a class": (Headers("v", "x"), {"x_api_key": REDACTED, "accept": "x"}),
    "pairs beside others": ([["x-api-key", W], ["accept"], None], [["x-api-key", REDACTED], ["accept"], None]),
    "a key under another name": ({"x-thing": f"go {KEY}"}, {"x-thing": f"go {REDACTED}"}),
    "no value": ({"authorization": None, "cookie": ""}, {"authorization": None, "cookie": ""}),
    "a schema": ({"type": "object", "properties": {"cookie": {"type": "string"}}}, {
        "type": "object", "properties": {"cookie": {"type": "string"}}}),
}  # fmt: skip


@pytest.mark.parametrize("name", ["headers", "extra_headers", "default_headers", "extraHeaders", "HEADERS"])
@pytest.mark.parametrize(("given", "expected"), HEADERS.values(), ids=HEADERS)
def test_headers_lose_their_credentials_whatever_their_shape(name, given, expected):
    """Credentials in headers never leave memory: as mappings, pairs, objects, lines, text, at any depth, by any name (S4-78)."""
    assert {"a": [{name: expected}]} == decode(encode({"a": [{name: given}]}))


@pytest.mark.parametrize(
    "settings", [Redaction(disable=("name",)), Redaction(disable=("form", "name", "stated-secret")), Redaction(callback=str)]
)
@pytest.mark.parametrize(("given", "expected"), HEADERS.values(), ids=HEADERS)
def test_no_setting_keeps_credentials_in_headers(given, expected, settings):
    """What of headers is never stored depends on no setting."""
    redaction.use(settings)
    try:
        assert {"headers": expected} == decode(encode({"headers": given}))
    finally:
        redaction.use(Redaction())


def test_names_that_a_user_adds_hold_for_headers():
    """A header under a name that a user takes for that of a credential is not stored either."""
    redaction.use(Redaction(names=("x_member",)))
    try:
        assert {"headers": {"X-Member": REDACTED}} == decode(encode({"headers": {"X-Member": "jo"}}))
    finally:
        redaction.use(Redaction())
