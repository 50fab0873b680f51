"""What the original ai-agent keeps in base64, in a log for people: decoded, and back byte for byte."""

import json
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optree_formats.markdown.op_fields import as_kept, readable

jsons = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(), st.lists)
contents = st.binary() | st.text().map(str.encode) | st.dictionaries(st.text(), jsons).map(lambda value: json.dumps(value).encode())


def kept(data):
    """Return bytes as the original keeps them."""
    return {"format": "sdk", "encoding": "base64", "value": b64encode(data).decode()}


@given(contents)
def test_whatever_is_kept_comes_back(data):
    """Any bytes, as the payload or as a member of it, are the same after they were made readable and kept again."""
    for payload in (kept(data), {"messages": 1, "sdk": kept(data), "raw": kept(b"x")}):
        assert payload == as_kept(readable(payload))


@pytest.mark.parametrize(
    ("data", "encoding", "value"),
    [
        (b'{"model":"m","messages":[{"role":"user","content":"hi"}]}', "base64 of JSON", {"model": "m"}),
        (b'{"model": "m"}', "base64 of text", '{"model": "m"}'),
        (b"plain", "base64 of text", "plain"),
        (b"\xff\xfe", "base64", "//4="),
    ],
)
def test_how_it_is_said(data, encoding, value):
    """Compact JSON stands as a value, other text as text, and what is no text stays in base64."""
    found = readable({"bytes": 3, "sdk": kept(data)})["sdk"]
    shown = {"model": found["value"]["model"]} if isinstance(found["value"], dict) else found["value"]
    assert ("sdk", encoding, value) == (found["format"], found["encoding"], shown)


@pytest.mark.parametrize("payload", [None, 3, "x", [kept(b"x")], {"encoding": "gzip"}, {"sdk": {"encoding": "base64"}}, {"encoding": 3}])
def test_all_else_stays(payload):
    """What is not kept so is left as it is."""
    assert payload == readable(payload) == as_kept(payload)


@pytest.mark.parametrize("value", ["eA", "eA==\n", "e A==", "eB==", "é"])
def test_base64_that_is_not_as_it_is_written_stays(value):
    """Base64 with breaks, without its end, or with other bits in it would not come back the same: it stays."""
    payload = {"sdk": {"encoding": "base64", "value": value}}
    assert payload == readable(payload)
