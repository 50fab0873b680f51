import dataclasses
import datetime as dt
import decimal
import enum
import math
import uuid
from time import process_time
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from optree.values import (
    _SECRET_TEXT,
    MAX_DEPTH,
    MAX_TEXT,
    REDACTED,
    clean,
    cut,
    decode,
    drop_credentials,
    encode,
    may_hold_secret,
    plain,
    raw,
    redact,
    text,
)
from tests.strategies import values


class Raising:
    """Whatever is asked of it raises."""

    def __str__(self):
        raise RuntimeError

    def __repr__(self):
        raise RuntimeError

    def __iter__(self):
        raise RuntimeError

    def __len__(self):
        raise RuntimeError

    def __bool__(self):
        raise RuntimeError

    def __eq__(self, other):
        raise RuntimeError

    def __getattr__(self, name):
        raise RuntimeError

    __hash__ = None


class RaisingText(str):
    """A text whose own code raises."""

    __slots__ = ()

    def __str__(self):
        raise RuntimeError

    __repr__ = __len__ = __iter__ = __str__


class RaisingMapping(dict):
    """A mapping that cannot be read."""

    def items(self):
        """Raise."""
        raise RuntimeError


class RaisingModel:
    """Like a pydantic model that cannot be dumped."""

    def model_dump(self):
        """Raise."""
        raise RuntimeError

    def __repr__(self):
        return "RaisingModel()"


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
    "raising model": (RaisingModel(), {"$repr": "RaisingModel()", "$type": f"{__name__}.RaisingModel"}),
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


def test_deep_nesting():
    """Nesting of 5,000 levels is cut at the stated depth and marked."""
    deep: object = "core"
    for _ in range(5000):
        deep = [deep]
    found, levels = decode(encode(deep)), 0
    while isinstance(found, list):
        [found] = found
        levels += 1
    assert (MAX_DEPTH, {"$deep": True}) == (levels, found)


@pytest.mark.parametrize("levels", [7, 8, 9, 10, MAX_DEPTH - 1])
def test_moderate_nesting(levels):
    """Nesting within the stated depth is kept whole, with what is hostile inside marked."""
    value, expected = math.nan, {"$float": "nan"}
    for _ in range(levels):
        value, expected = {"in": value}, {"in": expected}
    assert expected == decode(encode(value))


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


@pytest.mark.parametrize(
    "key",
    ["authorization", "Authorization", "x-api-key", "x-openai-api-key", "x-slack-signature", "api_key", "apiKey", "token", "access_token",
     "client_secret", "password", "Set-Cookie", "proxy-authorization", "sessionToken"],
)  # fmt: skip
def test_credentials_by_key(key):
    """Values under the names of credentials are replaced, at any depth (S4-48, S4-120)."""
    assert {"a": [{key: REDACTED, "kept": "x"}]} == redact({"a": [{key: "s3cret", "kept": "x"}]})
    assert {key: REDACTED, "accept": "x"} == drop_credentials({key: "s3cret", "accept": "x"})


@pytest.mark.parametrize("key", ["tokens", "input_tokens", "max_tokens", "totalTokens", "author", "tokenizer"])
def test_names_like_credentials(key):
    """Names that only look like credentials keep their values."""
    assert {key: 5} == redact({key: 5})


def test_credentials_in_text():
    """Credentials inside a text are replaced, the rest of it stays."""
    assert f"sent {REDACTED} to host" == redact("sent Bearer abcdef0123456789 to host")
    assert f"key {REDACTED}." == redact("key sk-proj-abcdefghijklmnop0123.")
    assert "Basic idea" == redact("Basic idea")


BODY = "MIIEpAIBAAKCAQEA7bq3VnKQ0Zf1uGxg2wYl0c9d8hT5eJ4sR6tU7vW8xY9zA0bC"
"""A line of a private key."""

SECRETS = {
    "bearer": "Bearer abcdef0123456789",
    "basic": "Basic dXNlcjpwYXNz",
    "OpenAI": "sk-proj-abc_defghijklmnop-0123",
    "Anthropic": "sk-ant-api03-AbCdEf_0123456789-xyz",
    "AWS id": "AKIAIOSFODNN7EXAMPLE",
    "AWS temporary id": "ASIAIOSFODNN7EXAMPLE",
    "AWS id and secret": "AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "AWS secret": "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "AWS secret in the environment": "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "AWS secret in JSON": 'SecretAccessKey": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY',
    "GitHub": "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "GitHub OAuth": "gho_abcdefghijklmnopqrstuvwxyz0123456789",
    "GitHub fine-grained": "github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuvwxyz",
    "Stripe": "sk_live_abcdefghijklmnop",
    "Hugging Face": "hf_abcdefghijklmnopqrstuvwxyz0123",
    "Slack bot": "xoxb-123456789012-abcdefghijkl",
    "Slack user": "xoxp-123456789012-abcdefghijkl",
    "Google": "AIzaSyA-1234567890_abcdefghijklmnopqrstuv",
    "JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9",
    "user and password": "user:p%40ss@word",
    "password alone": ":s3cret",
    "PEM": f"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n{BODY}\n{BODY}\n-----END RSA PRIVATE KEY-----",
    "PEM in JSON": f"-----BEGIN PRIVATE KEY-----\\n{BODY}\\n-----END PRIVATE KEY-----",
    "PEM that was cut": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{BODY}\n{BODY[:20]}",
}
URLS = ("user and password", "password alone")


@pytest.mark.parametrize("kind", SECRETS)
def test_each_kind_of_credential_in_text(kind):
    """A credential of a known form is replaced wherever it stands; the text around it stays (S4-120)."""
    before, after = ("db is postgres://", "@host:5432/db?x=1 now") if kind in URLS else ('found "', '", and more')
    said = f"{before}{SECRETS[kind]}{after}"
    assert may_hold_secret(said)
    assert f"{before}{REDACTED}{after}" == redact(said)
    assert [{"a": f"{before}{REDACTED}{after}"}] == redact([{"a": said}])


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("password=hunter2pass9999 ok", f"password={REDACTED} ok"),
        ('{"password": "hunter2pass9999"}', f'{{"password": "{REDACTED}"}}'),
        ("export OPENAI_API_KEY=abcdef123456", f"export OPENAI_API_KEY={REDACTED}"),
        ("DB_PASSWORD: hunter2pass; next", f"DB_PASSWORD: {REDACTED}; next"),
        ("x-api-key: 0123456789", f"x-api-key: {REDACTED}"),
        ("the password is wrong", "the password is wrong"),
        ("password: short", "password: short"),
    ],
)
def test_what_a_text_assigns_to_a_password_or_key(said, expected):
    """An assignment in plain text is replaced with its value, talk about passwords is not (S4-120)."""
    assert expected == redact(said)
    assert may_hold_secret(said) or said == expected


@pytest.mark.parametrize("kind", [kind for kind in SECRETS if kind not in URLS])
def test_credentials_behind_an_escaped_newline(kind):
    """JSON inside a text, as a model writes a tool's arguments, hides no credential behind its escapes."""
    assert f'{{"a": "see:\\n{REDACTED}"}}' == redact(f'{{"a": "see:\\n{SECRETS[kind]}"}}')


@pytest.mark.parametrize(
    "said",
    ["Basic idea", "Basic JavaScript", "task-management-system-of-records", "a risk-averse-and-careful-planner",
     "https://host:8080/a@b", "mail me@host.org: hello",
     "https://host/a:b@c", "AKIA is a prefix", "ASIAN FLAVOURS", "xoxo-x", "ghp_short", "github_pat_", "AIza", "eyJ is a start",
     "eyJhbGciOiJIUzI1NiJ9 alone",
     "-----BEGIN CERTIFICATE-----", "access_key is set", "", "see http://[::1]:80/ and a@b"],
)  # fmt: skip
def test_texts_like_credentials(said):
    """Texts that only look like credentials stay as they are."""
    assert said == redact(said)


def test_names_of_a_private_key():
    """A private key is known by its name too, in either spelling."""
    assert {"private_key": REDACTED, "privateKey": REDACTED, "key": "x"} == redact({"private_key": "a", "privateKey": "b", "key": "x"})


@given(st.text(st.sampled_from("ab ./:@-_=JI\n\\")), st.sampled_from(sorted(SECRETS)), st.text(st.sampled_from("ab ./:@-_=JI\n\\")))
def test_no_credential_leaves_whatever_is_around_it(before, kind, after):
    """The part of a credential that matters is gone, whatever stands around it; what the first check passes over holds none."""
    said = f"{before} https://{SECRETS[kind]}@{after}" if kind in URLS else f'{before} "{SECRETS[kind]}" {after}'
    assert may_hold_secret(said)
    assert max(SECRETS[kind].split(":" if kind in URLS else None), key=len)[:40] not in redact(said)


@given(
    st.text(st.sampled_from("aB1 ./:@-_="))
    | st.lists(st.sampled_from([*SECRETS.values(), "://", "eyJ", "sk-", "-----", "x", " "])).map("".join)
)
def test_the_first_check_never_misses(said):
    """A text in which any form of credential stands is one that may hold a secret."""
    assert may_hold_secret(said) >= bool(_SECRET_TEXT.search(said))


@pytest.mark.parametrize(
    "piece",
    ["Bearer ", "Bearer", "Basic ", "Basic aaaaaa", "sk-", "sk-a", "AKIA", "AKIAIOSFODNN7EXAMPLE ", "ghp_", "github_pat_",
     "xoxb-", "AIza", "AIza-", "eyJ", "eyJ-", "eyJ.", "eyJaaaaaaaaaa.", "eyJaaaaaaaaaa.eyJ", "://", "://a:", ":a", "a:", ":@",
     "://@", "-----BEGIN PRIVATE KEY-----", "-----BEGIN ", "-----BEGIN A PRIVATE KEY-----A", "-", "secret_access_key",
     "secret_access_key=", " ", "\n", "=", "a", "@"],
)  # fmt: skip
def test_a_long_hostile_text_takes_linear_time(piece):
    """64 KiB of what each pattern begins with are scanned in less than two seconds, alone and behind a beginning that fits."""
    for start in ("", "Bearer ", "Basic ", "https://", "https://a:", "-----BEGIN PRIVATE KEY-----", "eyJaaaaaaaaaa.", "secret_access_key="):
        hostile = start + piece * ((1 << 16) // len(piece)) + " eyJ"
        assert may_hold_secret(hostile)
        begun = process_time()
        redact(hostile)
        assert process_time() - begun < 2.0
