"""What leaves: within each backend's limits, without credentials, and marked where it had to be changed."""

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Sent

from optree._nodes import LogEntry
from optree.errors import SetupError
from optree_otel.settings import Profile as ProfileName
from optree_otel.signals import names
from optree_otel.signals.limits import PROFILES, cut_bytes, encode, profile
from optree_otel.signals.spans import CLIENT, Link, Span, SpanEvent
from tests.growth import SQUARE, growth

DEFAULT = PROFILES["default"]
TRACE, SPAN, PARENT = b"t" * 16, b"s" * 8, b"p" * 8
SECRET = "sk-abcdefghijklmnop1234"
LOOP: list[object] = []
LOOP.append(LOOP)


class Hostile:
    """A value whose own code raises."""

    def __repr__(self):
        """Raise."""
        raise RuntimeError("no repr")

    __str__ = __repr__


def span(**changes) -> Span:
    """Return a span with one thing about it changed."""
    known = {
        "trace_id": TRACE, "span_id": SPAN, "parent_id": PARENT, "name": "chat m", "kind": CLIENT, "start_ns": 10, "end_ns": 20,
        "attributes": [],
    }  # fmt: skip
    return Span(**{**known, **changes})


def sent(given: Span, limits=DEFAULT) -> Sent:
    """Return what a backend would read."""
    return Sent.FromString(encode(given, limits))


def plain(any_value):
    """Return an AnyValue as Python has it."""
    kind = any_value.WhichOneof("value")
    if kind == "array_value":
        return [plain(item) for item in any_value.array_value.values]
    return None if kind is None else getattr(any_value, kind)


def told(found) -> dict:
    """Return the attributes of a span or event that was sent."""
    return {pair.key: plain(pair.value) for pair in found.attributes}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("\ud800x", "�x"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (b"\x00\xff", "AP8="),
        (1 << 63, hex(1 << 63)),
        (-(1 << 63), -(1 << 63)),
        ({"a": [1, {"b": None}]}, '{"a":[1,{"b":null}]}'),
        ([1, "a"], '[1,"a"]'),
        (["a", "b"], ["a", "b"]),
        ([True], [True]),
        (LOOP, '[{"$cycle":true}]'),
        ("", ""),
        ("a\x00b", "a\x00b"),
        (f"Bearer {SECRET}", "[REDACTED]"),
        ([f"use {SECRET}"], ["use [REDACTED]"]),
        ({"api_key": "hush"}, '{"api_key":"[REDACTED]"}'),
    ],
)
def test_a_value_is_made_one_that_every_backend_keeps(value, expected):
    """What OTLP, JSON or a backend cannot hold goes as text; nothing beside it is lost."""
    found = told(sent(span(attributes=[("key", value), ("next", 1)])))
    assert {"key": expected, "next": 1} == found


@pytest.mark.parametrize("value", [Hostile(), {1: Hostile()}, object(), {Hostile(): 1}])
def test_a_value_of_no_known_type_costs_nothing_else(value):
    """Whatever its own code does, the span goes out."""
    found = sent(span(attributes=[("key", value), ("next", 1)]))
    assert ("chat m", 1) == (found.name, told(found)["next"])


def test_a_secret_behind_its_key_does_not_leave():
    """A key that names a credential hides its value."""
    assert {"db.password": "[REDACTED]", "n": 1} == told(sent(span(attributes=[("db.password", "hunter2"), ("n", 1)])))


@pytest.mark.parametrize("key", ["k" * 200, "", f"key {SECRET}", "\ud800"])
def test_a_key_is_made_one_that_every_backend_keeps(key):
    """Short, not empty, and without credentials."""
    (found,) = told(sent(span(attributes=[(key, 1)])))
    assert 0 < len(found.encode()) <= DEFAULT.key_bytes
    assert SECRET not in found


@pytest.mark.parametrize("profile_name", list(PROFILES))
def test_a_secret_does_not_leave_in_any_text(profile_name):
    """Name, message, attributes, events, log lines, their details, and links are looked at."""
    details = b'{"headers":{"authorization":"%b"},"note":"%b"}' % (SECRET.encode(), SECRET.encode())
    given = span(
        name=f"call {SECRET}",
        message=f"failed with {SECRET}",
        attributes=[("note", SECRET), (f"key {SECRET}", 1)],
        events=[SpanEvent(11, f"at {SECRET}", [("note", SECRET)])],
        links=[Link(b"o" * 16, b"o" * 8, [("note", SECRET)])],
        logs=[LogEntry(1.0, "VRB", f"got {SECRET}"), LogEntry(2.0, "VRB", "x", "request", details)],
    )
    data = encode(given, profile(profile_name))
    assert b"abcdefghijklmnop" not in data
    assert 3 == len(Sent.FromString(data).events)


def test_a_secret_does_not_leave_in_part():
    """Values are cut when their credentials are gone: also one over the limit, and one behind others that become short."""
    keys = f"{SECRET} " * 2_000
    for size in range(DEFAULT.value_bytes - 60, DEFAULT.value_bytes + 10, 7):
        assert SECRET[:16].encode() not in encode(span(attributes=[("note", f"{'x' * (size - 1)} {SECRET} tail {keys}")]), DEFAULT)


def test_a_log_line_with_a_secret_is_redacted_alone():
    """The other lines stay as they are."""
    found = sent(span(logs=[LogEntry(1.0, "VRB", "fine"), LogEntry(2.0, "WRN", f"Bearer {SECRET}")]))
    assert ["fine", "[REDACTED]"] == [told(event)[names.LOG_MESSAGE] for event in found.events]


@pytest.mark.parametrize("profile_name", ["default", "tempo"])
def test_a_long_value_is_cut_at_a_character_and_says_so(profile_name):
    """At most the backend's bytes, whole characters, and how many bytes are missing; the span counts such values."""
    limits = profile(profile_name)
    found = told(sent(span(attributes=[("key", "é" * 3000)]), limits))
    kept = found["key"].partition("…")[0]
    assert limits.value_bytes - 2 <= len(found["key"].encode()) <= limits.value_bytes <= 2048
    assert ("é" * len(kept) + f"…[+{6000 - 2 * len(kept)} bytes]", 1) == (found["key"], found[names.CUT_VALUES])


@settings(deadline=None)
@given(st.text(max_size=200), st.integers(40, 120))
def test_cutting_keeps_whole_characters_and_counts_the_rest(text, limit):
    """The result never exceeds the limit; kept bytes and counted bytes are those there were."""
    found = cut_bytes(text, limit)
    assert limit >= len(found.encode())
    if found != text:
        kept, _, mark = found.rpartition("…[+")
        assert len(text.encode()) == len(kept.encode()) + int(mark.removesuffix(" bytes]"))
        assert text.startswith(kept)


@pytest.mark.slow
def test_huge_values_take_linear_time():
    """A value of 8 MiB takes eight times as long to cut as one of 1 MiB, at most."""

    def cutting(size):
        huge = span(attributes=[("key", "x" * size)], logs=[LogEntry(1.0, "VRB", "x" * size)])
        assert told(sent(huge))["key"].endswith("bytes]")
        return lambda: sent(huge)

    assert SQUARE > growth(cutting, 1 << 20)


def test_of_too_many_events_the_severe_and_the_last_are_kept():
    """Warnings and errors before others, later ones before earlier, in their order; the rest is counted twice over."""
    logs = [LogEntry(float(number), "ERR" if number == 3 else "VRB", f"line {number}") for number in range(1, 5001)]
    found = sent(span(logs=logs))
    said = [told(event)[names.LOG_MESSAGE] for event in found.events]
    assert ["line 3", *(f"line {number}" for number in range(5000 - DEFAULT.events + 2, 5001))] == said
    assert (5000 - DEFAULT.events,) * 2 == (found.dropped_events_count, told(found)[names.DROPPED_EVENTS])


def test_of_too_many_attributes_the_first_are_kept():
    """What is ours stands first; the rest is counted."""
    found = sent(span(attributes=[(f"key {number}", number) for number in range(3000)]))
    assert (3000 - DEFAULT.attributes,) * 2 == (found.dropped_attributes_count, told(found)[names.DROPPED_ATTRIBUTES])
    assert 0 == told(found)["key 0"]


@pytest.mark.parametrize("profile_name", list(PROFILES))
def test_no_span_is_larger_than_its_backend_takes(profile_name):
    """A span of many large values shrinks until it fits, and keeps its ids, name and times."""
    limits = profile(profile_name)
    large = "ü" * 300_000
    given = span(
        attributes=[(f"key {number}", large) for number in range(20)],
        events=[SpanEvent(number, "event", [("text", large)]) for number in range(1, 100)],
    )
    data = encode(given, limits)
    found = Sent.FromString(data)
    assert limits.span_bytes >= len(data)
    assert (TRACE, SPAN, "chat m", 10, 20) == (
        found.trace_id, found.span_id, found.name, found.start_time_unix_nano, found.end_time_unix_nano
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "marked"),
    [
        ({"trace_id": bytes(16)}, "trace_id"),
        ({"trace_id": b"short"}, "trace_id"),
        ({"span_id": bytes(8)}, "span_id"),
        ({"span_id": b""}, "span_id"),
        ({"parent_id": bytes(8)}, "parent_id"),
        ({"parent_id": b"long" * 9}, "parent_id"),
        ({"parent_id": SPAN}, "parent_id"),
        ({"start_ns": 30}, "time"),
        ({"end_ns": 0}, "time"),
        ({"start_ns": -1, "end_ns": 1 << 70}, "time"),
        ({"name": ""}, "name"),
    ],
)
def test_a_span_that_would_cost_its_batch_is_mended_and_marked(changes, marked):
    """Ids of zero or of wrong length, an end before the start, no name: each is repaired so that no backend refuses, and told."""
    found = sent(span(**changes))
    assert names.INVALID + marked in told(found)
    assert (16, 8, True) == (len(found.trace_id), len(found.span_id), any(found.trace_id) and any(found.span_id))
    assert len(found.parent_span_id) in (0, 8)
    assert 0 < found.start_time_unix_nano <= found.end_time_unix_nano
    assert found.name


def test_bad_ids_stay_together():
    """Two spans of one bad trace id are one trace still."""
    found = [sent(span(trace_id=b"short", span_id=bytes([number]) * 8)).trace_id for number in (1, 2)]
    assert 1 == len(set(found))


def test_a_span_of_nothing_but_nonsense_still_goes_out():
    """What cannot be encoded at all leaves a stub in its place, with its ids where these are good."""
    found = sent(span(attributes=None, events=7, kind="client", message=object()))
    assert (TRACE, SPAN, "(unencodable)") == (found.trace_id, found.span_id, found.name)
    assert names.UNENCODABLE in told(found)


def test_links_that_jaeger_would_take_for_parents_are_left_out():
    """A root's link into its own trace, a link to one's parent, and links of zeros are dropped and counted; others stay."""
    harmless = Link(b"o" * 16, b"o" * 8)
    root = sent(span(parent_id=b"", links=[Link(TRACE, b"x" * 8), harmless]))
    child = sent(span(links=[Link(TRACE, PARENT), Link(bytes(16), b"x" * 8), Link(TRACE, b"x" * 8), harmless]))
    assert [(b"o" * 8,), (b"x" * 8, b"o" * 8)] == [tuple(link.span_id for link in found.links) for found in (root, child)]
    assert [1, 2] == [root.dropped_links_count, child.dropped_links_count]


def test_an_event_attribute_called_event_is_renamed():
    """In Jaeger it would hide the event's name."""
    found = sent(span(events=[SpanEvent(11, "note", [("event", "mine"), ("nan", float("nan"))])]))
    assert {"event_": "mine", "nan": "nan"} == told(found.events[0])


def test_phoenix_is_told_in_attributes_what_it_drops():
    """Kind and links stand among the attributes as well."""
    found = told(sent(span(links=[Link(b"o" * 16, b"o" * 8)]), profile("phoenix")))
    assert {names.SPAN_KIND: "client", names.LINKS: f"{(b'o' * 16).hex()}:{(b'o' * 8).hex()}"} == found


def test_victoriatraces_gets_no_empty_texts():
    """It would show them as a dash."""
    assert {"full": "x"} == told(sent(span(attributes=[("empty", ""), ("full", "x")]), profile("victoriatraces")))


def test_an_unknown_profile_is_refused_with_those_there_are():
    """The message names the choices."""
    with pytest.raises(SetupError, match="default, jaeger, tempo, phoenix, victoriatraces, mlflow, logfire"):
        profile("zipkin")


def test_the_profiles_that_settings_take_are_these():
    """A name that can be chosen is one that exists."""
    assert get_args(ProfileName) == tuple(PROFILES)
