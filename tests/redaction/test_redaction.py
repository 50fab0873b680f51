import os
import re
from functools import partial
from importlib import import_module
from unittest import mock

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from optree.redaction import REDACTED, Redaction, StreamRedactor, detectors, may_hold_secret, names_secret, redact, redact_pieces
from optree.redaction._assigned import spellings
from optree.redaction._engine import Engine
from optree.redaction._forms import NAMES as TABLE
from optree.redaction._streams import HELD
from tests.growth import SQUARE, growth
from tests.secrets import BODY, FORMS, GIVEN, HARMLESS, HARMLESS_NAMES, NAMES

SAMPLES = [(detector, sample) for detector, samples in FORMS.items() for sample in samples]
NAMED = [(detector, name) for detector, names in NAMES.items() for name in names]
ALL = [*(sample for _, sample in SAMPLES), *GIVEN]


def engine(**members):
    """Return an engine with settings."""
    return Engine(Redaction(**members), lambda: None)


def without_filter():
    """Return an engine as it is where nothing is compiled."""
    with mock.patch.object(import_module("optree.redaction._engine"), "presence", return_value=None):
        return engine()


def core(sample):
    """Return the part of a secret that matters."""
    return max(re.findall(r"[A-Za-z0-9+]{4,}", re.sub(r"^\w+://", "", sample.partition("?")[2] or sample)), key=len)


@pytest.mark.parametrize("name", TABLE, ids=[name.id for name in TABLE])
@given(st.data())
def test_each_name_has_a_word_that_is_looked_for(name, data):
    """The words by which a text is looked through for names are in every name of the table: the two cannot part."""
    words = data.draw(st.from_regex(re.compile(name.pattern, re.ASCII), fullmatch=True))
    assert any(pattern.search(words.strip("_")) for word, behind in name.words.items() for pattern in spellings(word, behind)[0])


def test_each_detector_has_samples():
    """No detector is without a secret that it finds, and no sample is of a detector that there is not."""
    assert set(detectors()) == {*FORMS, *NAMES, "stated-secret"}


@pytest.mark.parametrize(("detector", "sample"), SAMPLES, ids=[f"{detector}-{number}" for number, (detector, _) in enumerate(SAMPLES)])
def test_each_form(detector, sample):
    """A credential of a known form is replaced wherever it stands, by its detector alone; the text around it stays (S4-120)."""
    said = f'found "{sample}", and more'
    shown = redact(said)
    assert may_hold_secret(said)
    assert ('found "', '", and more', True) == (shown[:7], shown[-11:], REDACTED in shown)
    assert core(sample) not in shown
    assert [{"a": shown}] == redact([{"a": said}])
    assert said == engine(disable=(detector,)).text(said)
    assert said == engine(disable=("form",)).text(said)


@pytest.mark.parametrize(("detector", "sample"), SAMPLES, ids=[f"{detector}-{number}" for number, (detector, _) in enumerate(SAMPLES)])
def test_each_form_behind_escapes(detector, sample):
    """JSON inside a text, as a model writes a tool's arguments, hides no credential behind its escapes, nor does a colour."""
    del detector
    told = msgspec.json.encode({"a": f"see:\n{sample}"}).decode()
    twice = msgspec.json.encode(told).decode()
    for said in (told, twice, f"\x1b[31m{sample}\x1b[0m"):
        assert core(sample) not in redact(said)
    assert f"see:\n{redact(sample)}" == msgspec.json.decode(redact(told))["a"]


@pytest.mark.parametrize("quote", ["&quot;", "&#34;", "&#x22;", "&amp;quot;", "&#39;", "&apos;", "&amp;#39;"])
def test_behind_escapes_of_html(quote):
    """A gateway's page that shows a body hides no credential behind HTML's escapes; what is no credential stays as it is."""
    told = f"<pre>{{{quote}password{quote}: {quote}Zq8LmN4xT7vB{quote}, {quote}city{quote}: {quote}Athens{quote}}}</pre>"
    assert told.replace("Zq8LmN4xT7vB", REDACTED) == redact(told)
    assert "Authorization: [REDACTED]" == redact("Authorization: Bearer&nbsp;Zq8LmN4xT7vBc9Kq8LmN4xT7vB")
    kept = "Tom &amp; Jerry &lt;3 &#x110000; &#99999; &quot;x&quot;"
    assert kept == redact(kept)


@pytest.mark.parametrize(("detector", "name"), NAMED)
def test_each_name(detector, name):
    """A value under the name of a credential is replaced, in any spelling, by the detector of that name alone (S4-48, S4-120)."""
    value = {"a": [{name: "s3cr", "kept": "x"}]}
    assert names_secret(name)
    assert {"a": [{name: REDACTED, "kept": "x"}]} == redact(value)
    assert value == engine(disable=(detector,)).value(value) == engine(disable=("name",)).value(value)


@pytest.mark.parametrize(("detector", "name"), NAMED)
def test_each_name_in_a_text(detector, name):
    """JSON in a text, at any depth of texts inside texts, is looked through by name; so is a header, a variable, and what was cut."""
    told: object = {name: "s3cr", "kept": "x"}
    expected: object = {name: REDACTED, "kept": "x"}
    for _ in range(4):
        told, expected = msgspec.json.encode(told).decode(), msgspec.json.encode(expected).decode()
        assert expected == redact(told)
        assert told == engine(disable=(detector,)).text(told)
    assert f"{name}={REDACTED} x" == redact(f"{name}=a1b2c3d4 x")
    assert f'{{"{name}": "{REDACTED}' == redact(f'{{"{name}": "a1b2')


@pytest.mark.parametrize("name", HARMLESS_NAMES)
def test_names_like_credentials(name):
    """Names that only look like credentials keep their values, in values and texts."""
    assert not names_secret(name)
    assert {name: "x7y8z9"} == redact({name: "x7y8z9"})
    told = msgspec.json.encode({name: "x7y8z9"}).decode()
    assert told == redact(told)


@pytest.mark.parametrize(("said", "expected"), GIVEN.items())
def test_what_a_text_gives_to_a_name(said, expected):
    """What is given to the name of a credential is replaced: in JSON, code, headers, URLs, commands, plain talk (S4-120)."""
    assert may_hold_secret(said)
    assert expected == redact(said)


def test_what_is_said():
    """What is said to be a password is told by its look; the detector can be switched off."""
    said = "my password is hunter2"
    assert f"my password is {REDACTED}" == redact(said)
    assert said == engine(disable=("stated-secret",)).text(said)


@pytest.mark.parametrize("said", HARMLESS)
def test_texts_like_credentials(said):
    """Texts that only look like credentials stay as they are."""
    assert said == redact(said)
    assert not may_hold_secret(said)


def test_pairs():
    """Headers as lists of pairs, or as objects with a name and a value, are looked through like objects."""
    assert [["x-api-key", REDACTED], ["accept", "x"]] == redact([["x-api-key", "v"], ["accept", "x"]])
    assert [("x-api-key", REDACTED)] == redact([("x-api-key", "v")])
    assert [{"name": "x-api-key", "value": REDACTED}] == redact([{"name": "x-api-key", "value": "v"}])
    assert {"key": "password", "value": REDACTED} == redact({"key": "password", "value": {"stringValue": "v"}})
    assert ["token", "auth"] == redact(["token", "auth"])


def test_keys():
    """A key that is a credential itself is replaced like a text, and none is lost for it."""
    first, second = "ghp_abcdefghijklmnopqrstuvwxyz0123456789", "ghp_0123456789abcdefghijklmnopqrstuvwxyz"
    assert {REDACTED: 1, f"{REDACTED}'": 2, f"{REDACTED}'3": 3} == redact({first: 1, second: 2, first[:-1]: 3})


@pytest.mark.slow
def test_time_grows_with_keys():
    """Many keys that are credentials take time in proportion."""
    assert (
        growth(lambda size: partial(MASKING.value, dict.fromkeys(f"sk-proj-Zq8LmN4xT7vB{number:06}" for number in range(size))), 1 << 9)
        < SQUARE
    )


def test_what_is_no_credential_under_a_name_of_one():
    """Nothing, a truth value, an empty text, a schema, a token of text and counts stay; another number or an object goes."""
    kept = {
        "password": None,
        "auth": True,
        "secret": "",
        "token": "Hello",
        "logprob": -0.1,
        "api_key": {"type": "string", "description": "of X"},
    }
    assert kept == redact(kept)
    assert {"auth": REDACTED, "api_key": REDACTED} == redact({"auth": {"user": "a"}, "api_key": 5})


@pytest.mark.parametrize("value", ["Paris", " Paris", "Ġthe", "▁São", "##ing", "GPU", ".", "\n\n", "'s", "202", 15496])
def test_tokens_of_text(value):
    """Under the bare name "token" a short word, punctuation or a number is a model's token; under any other name it goes."""
    told = msgspec.json.encode({"token": value}).decode()
    assert ({"token": value}, told) == (redact({"token": value}), redact(told))
    assert {"access_token": REDACTED, "tokenValue": REDACTED} == redact({"access_token": value, "tokenValue": value})


@pytest.mark.parametrize("value", ["hunter2", "123456", "AbCdEfGhIj", "abcdefghijklmnopqrst", "two words"])
def test_tokens_that_are_none_of_text(value):
    """What is no short word, and a code of digits, goes under "token" as well."""
    assert {"token": REDACTED} == redact({"token": value})
    assert f'{{"token": "{REDACTED}"}}' == redact(f'{{"token": "{value}"}}')


def test_what_stands_beside():
    """A "pass" is a password beside a user, and members of a JSON Web Key are private beside its type; alone they are none."""
    assert {"user": "a", "pass": REDACTED} == redact({"user": "a", "pass": "b"})
    assert {"pass": "b", "fail": "c"} == redact({"pass": "b", "fail": "c"})
    key = {"kty": "RSA", "n": "abc", "d": "x", "p": "y", "qi": "z"}
    assert {"kty": "RSA", "n": "abc", "d": REDACTED, "p": REDACTED, "qi": REDACTED} == redact(key)
    assert {"d": "x", "k": "y"} == redact({"d": "x", "k": "y"})
    assert {"cookies": 3, "session_tokens": 5, "cookie": REDACTED} == redact({"cookies": 3, "session_tokens": 5, "cookie": 3})
    assert {"credentials": "include"} == redact({"credentials": "include"})


SCHEMAS = (
    {"properties": {"api_key": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "Api Key"}}},
    {"api_key": {"type": "string", "enum": ["a", "b"], "examples": ["abc"], "default": "x"}},
    {"auth": {"type": "array", "items": {"type": "string"}, "minItems": 1, "uniqueItems": True}},
    {"password": {"$ref": "#/$defs/Password2"}, "token": {"type": ["string", "null"], "x-order": 1}},
    {"required": ["token", "url"]},
)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_schemas_stay(schema):
    """A JSON schema of what is a credential stays, as a value and in a text."""
    told = msgspec.json.encode(schema).decode()
    again = msgspec.json.encode(told).decode()
    assert (schema, told, again, str(schema)) == (redact(schema), redact(told), redact(again), redact(str(schema)))


@pytest.mark.parametrize(
    "value",
    [
        {"type": "string", "default": "hunter2x9"},
        {"type": "string", "enum": ["hunter2x9"]},
        {"type": "basic", "user": "a"},
        {"type": "Bearer", "value": "v"},
        {"type": "service_account", "private_key_id": "abcd1234"},
    ],
)
def test_what_is_no_schema(value):
    """An object with a type that is none of JSON Schema, or with an example that looks like a credential, is replaced."""
    assert {"auth": REDACTED} == redact({"auth": value})
    assert f'{{"auth":"{REDACTED}"}}' == redact(msgspec.json.encode({"auth": value}).decode())


FILTERING, PURE, THOROUGH = engine(), without_filter(), engine()
THOROUGH._present = lambda _text: (1 << 64) - 1
TEXTS = st.text(st.sampled_from("ab ./:@-_=JI\n\\\"'{}[],"), max_size=20)
MIXED = st.lists(
    st.sampled_from([*ALL, *HARMLESS, "\n", " ", '"', "\\", "{", "://", "token", "password: ", "=", "-----"]) | TEXTS, max_size=8
)


@pytest.mark.parametrize("compiled", [True, False])
@given(MIXED.map(" ".join))
def test_nothing_is_passed_over(compiled, said):
    """What is looked for only where it may be is all that is found, by the compiled filter and without."""
    assert THOROUGH.spans(said) == (FILTERING if compiled else PURE).spans(said)


@example("[[ ## password ## ]]\n<password>\n[[ ## answer ## ]]\nx <add><password>hunter</password></add>")
@given(MIXED.map(" ".join))
def test_once_is_enough(said):
    """What was redacted is not changed by redacting it again, and what may hold a secret is what is changed."""
    once = redact(said)
    assert once == redact(once)
    assert may_hold_secret(said) >= (once != said)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.sampled_from(ALL) | TEXTS,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from(["a", "api_key", "name", "value", "auth", "x"]) | TEXTS, inner, max_size=4)
        ),
    )
)
def test_json_stays_json(value):
    """JSON in a text stays JSON, of the same structure, when credentials in it are replaced."""

    def outline(found):
        if isinstance(found, dict):
            return {key: outline(item) for key, item in found.items() if not names_secret(key) and key != "value"}
        return [outline(item) for item in found] if isinstance(found, list) else None

    if isinstance(value, (dict, list)):
        found = msgspec.json.decode(redact(msgspec.json.encode(value).decode()))
        assert type(value) is type(found)
        assert len(value) == len(found)


@given(MIXED)
def test_pieces_are_the_whole(texts):
    """Texts that follow one another are as many as before, and joined what the whole becomes."""
    pieces = redact_pieces(texts)
    assert (len(texts), redact("".join(texts))) == (len(pieces), "".join(pieces))


@pytest.mark.parametrize("sample", ALL)
def test_secrets_over_several_pieces(sample):
    """A credential that lies over texts that follow one another goes too, wherever they part."""
    said = f"first\nfound {sample}\nand more"
    whole = redact(said)
    for at in range(len(said) + 1):
        assert whole == "".join(redact_pieces([said[:at], said[at : at + 3], "", said[at + 3 :]]))


@pytest.mark.parametrize("sample", ALL)
def test_secrets_in_a_stream(sample):
    """A text that comes in pieces is passed on without its credentials, wherever the pieces part."""
    said = f"first\nfound {sample}\nand more"
    whole = redact(said)
    for at in range(len(said) + 1):
        stream = StreamRedactor()
        assert whole == stream.feed(said[:at]) + stream.feed(said[at:]) + stream.close()
    stream = StreamRedactor()
    assert whole == "".join(map(stream.feed, said)) + stream.close()


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ('"password":\n  "hunter2correct"\n', f'"password":\n  "{REDACTED}"\n'),
        ('("password",\n "hunter2correct")\n', f'("password",\n "{REDACTED}")\n'),
        ("[[ ## password ## ]]\nhunter2\n", f"[[ ## password ## ]]\n{REDACTED}\n"),
        ("<password>\nhunter2correct</password>\n", f"<password>{REDACTED}</password>\n"),
    ],
)
def test_a_name_waits_for_its_value_in_a_stream(said, shown):
    """A line that ends with the name of a credential is not passed on before the line that has the value."""
    stream = StreamRedactor()
    first, *others = [stream.feed(line) for line in said.splitlines(keepends=True)]
    assert ("", shown) == (first, "".join(others) + stream.close())


def test_a_stream_passes_on_what_it_can():
    """Whole lines are passed on at once; of a line without end all but the last words, so that little is ever held back."""
    stream = StreamRedactor()
    assert ("one\n", "two\n", "three") == (stream.feed("one\ntw"), stream.feed("o\nthree"), stream.close())
    passed = [stream.feed("a word and ") for _ in range(10_000)]
    assert 110_000 == len("".join(passed)) + len(stream.close())
    assert len("".join(passed)) > 110_000 - 2 * HELD


@pytest.mark.slow
@pytest.mark.parametrize("line", ["a,\n", "a:\n", '"a": [1,\n', "db: {\n", "x = \\\n", "key: |\n", "a\n"])
def test_time_grows_with_the_lines_of_a_stream(line):
    """Lines after which a name may wait for its value are held back in linear time, as are those that are passed on."""

    def fed(size):
        stream = StreamRedactor()
        return lambda: [stream.feed(line) for _ in range(size // len(line))]

    assert growth(fed, HELD // 8) < SQUARE
    assert growth(fed, 4 * HELD) < SQUARE


def test_lines_that_wait_in_a_stream():
    """Lines after which a name may wait are passed on with the next that ends otherwise, or when too much is held."""
    stream = StreamRedactor()
    assert ["", "", "a:\nb,\nc\n", ""] == [stream.feed(line) for line in ("a:\n", "b,\n", "c\n", "d,\n")]
    passed = "".join(stream.feed("d,\n") for _ in range(HELD))
    assert "d,\n" * (HELD + 1) == passed + stream.close()
    assert len(passed) > 3 * HELD - 2 * HELD


def test_a_long_secret_in_a_stream():
    """A credential that is longer than what is held back does not come out, and is not kept whole."""
    stream = StreamRedactor()
    shown = "".join(stream.feed(text) for text in ("x\nkey sk-", *("abcdefgh" * 16 for _ in range(1000)))) + stream.close()
    assert f"x\nkey {REDACTED}" == shown
    key = "-----BEGIN PRIVATE KEY-----\n" + f"{BODY}\n" * 1000 + "-----END PRIVATE KEY-----\nnext"
    stream = StreamRedactor()
    shown = "".join(stream.feed(key[at : at + 100]) for at in range(0, len(key), 100)) + stream.close()
    assert f"{REDACTED}\nnext" == shown


MASKING = engine(mask=("email", "ip"))
HOSTILE = sorted(
    {
        *(sample[: len(sample) * part // 3] for sample in ALL for part in (2, 3)),
        *(
            "x-",
            "a",
            " ",
            "\n",
            "=",
            ":",
            '"',
            "\\",
            "\\\\\\",
            '\\"',
            "-",
            "--",
            "_",
            "@",
            ".",
            "[",
            "{",
            "<",
            "'",
            "://a:",
            ":a",
            "a:",
            ":@",
            "://@",
        ),
        *(
            "Bearer ",
            "Basic aaaaaa",
            "sk-",
            "AKIA",
            "ghp_",
            "eyJ",
            "eyJaaaaaaaaaa.",
            "eyJaaaaaaaaaa",
            "sk-proj-",
            "sk-proj-aA1",
            "hf_a",
            "-----BEGIN ",
            "-----BEGIN PRIVATE KEY-----",
            "-----BEGIN A PRIVATE KEY-----A",
        ),
        *(
            "token",
            "token=",
            "token=a(",
            "token-",
            "password: ",
            '"password":"',
            '"auth":{',
            '"auth":[',
            "'auth':{'",
            "cookie:",
            "Authorization:",
            "key>",
        ),
        *('"name":"a",', '"name":"key",', '"value":"', "\\u0041", "\\/", "1:", "1.", "a@", "a.b", "password is ", '["token","', "--token "),
        *("password: |\n", "password: |\\n  x\\n", "password='\n", '"pass":', '"kty":', "<input name=token ", "| token | ", "-us1", "NTE"),
        *("[[ ## token ## ]]\n", "[[ ## auth ## ]]\\n"),
        *("\x1b", "\x1b[", "\x1b[m", "\x1b]", "\x1b]\x07", "\\u001b[1m", "\\u001b]", "%", "%25", "%1b[", "\x9b"),
    }
    - {""}
)


@pytest.mark.slow
@pytest.mark.parametrize("piece", HOSTILE)
def test_time_grows_with_the_text(piece):
    """Of what each detector begins with, eight times as much takes about eight times as long, in a text and as a name."""
    assert growth(lambda size: partial(MASKING.text, piece * (size // len(piece))), 1 << 13) < SQUARE
    assert growth(lambda size: partial(MASKING.names_secret, piece * (size // len(piece))), 1 << 15) < SQUARE


@pytest.mark.slow
@pytest.mark.parametrize("start", ["", '{"password": "', "-----BEGIN PRIVATE KEY-----"])
@pytest.mark.parametrize("piece", HOSTILE if os.environ.get("OPTREE_CANARIES") == "all" else HOSTILE[::5])
def test_time_grows_with_the_text_up_to_a_megabyte(piece, start):
    """Up to a megabyte of what each detector begins with, behind each start, the time grows with the text; `make canaries` takes all."""
    assert growth(lambda size: partial(MASKING.text, start + piece * (size // len(piece))), 1 << 17) < SQUARE


@pytest.mark.parametrize("name", ["input_token", "outputToken", "completion_token"])
def test_a_count_of_one_token_is_no_credential(name):
    """A count under a misspelt name is kept as it is, so that who gave it can find it."""
    assert {name: 3} == redact({name: 3})
