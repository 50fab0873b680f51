"""The two forms of conversation events as formats: the seeds' own examples, and what stands in no session."""

import gzip
import json

import msgspec
import pytest

from optree._cli.format_loss import lacking
from optree._formats import Fault
from optree._formats.installed import detected, installed_formats
from optree._store.importing import save
from optree._store.reading.directory import Directory
from optree._store.reading.recovery import load
from optree._tree import walk_sessions
from optree.conversation.events import AgentCreated
from optree.conversation.of_tree import events_of
from optree.conversation.wire import read_events
from optree.errors import FormatError
from optree_formats.events import EVENTS, EVENTS_V1
from tests.formats.examples import EXAMPLES, JACK_AND_JILL
from tests.growth import SQUARE, growth


def put(tmp_path, text, name="log.jsonl"):
    """Write a file; returns its path."""
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_comes_out_as_it_went_in(tmp_path, name):
    """An example of a seed becomes a session and is written again: byte for byte, but for the null that its own logger writes (S0-18)."""
    form = EVENTS if name.startswith("seed001") else EVENTS_V1
    text = EXAMPLES[name]
    read = form.read(put(tmp_path, text))
    [out] = form.write(read.trees[0], tmp_path / "out")
    if form is EVENTS_V1:
        text = text.replace('"role": "assistant", "tool_calls"', '"role": "assistant", "content": null, "tool_calls"')
    assert text == out.read_text()
    assert [] == read.faults


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_known_by_its_content(tmp_path, name):
    """An example is taken by one format: by that of its names, or where it has none that tell, by the newer one."""
    path = put(tmp_path, EXAMPLES[name])
    older = "content_id" in EXAMPLES[name] or "caused_by" in EXAMPLES[name]
    assert [EVENTS_V1 if older else EVENTS] == detected(path, installed_formats()[0])


@pytest.mark.parametrize("form", [EVENTS, EVENTS_V1], ids=["events", "events-v1"])
@pytest.mark.parametrize("name", ["seed000_jack_and_jill", "seed001_jack_and_jill"])
def test_each_form_reads_the_other(tmp_path, form, name):
    """Both readers take the names of both seeds (S1-61)."""
    [tree] = form.read(put(tmp_path, EXAMPLES[name])).trees
    assert ["agent_root", "Jack", "Jill"] == [session.agent_id for session in walk_sessions(tree.session)]
    heard = next(message for session in walk_sessions(tree.session) for message in session.messages if message.id == "msg_017")
    assert "msg_015" == heard.substance


def test_an_import_survives_on_disk(tmp_path):
    """What was imported is saved as a session, loaded, and exported as it was."""
    [tree] = EVENTS.read(put(tmp_path, JACK_AND_JILL)).trees
    where = Directory.of(tmp_path / "base")
    save(tree, where)
    loaded = load(tree.session.origin_txn_id, where)
    [out] = EVENTS.write(loaded.tree, tmp_path / "out.jsonl")
    assert JACK_AND_JILL == out.read_text()
    assert [] == [one for one in lacking(loaded.tree, EVENTS) if "ends" in one]


def test_the_name_that_an_export_gives_is_the_txn(tmp_path):
    """A file that export named after its session gives that session's txn back, compressed too; any other name does not count."""
    for name in ("abc-1.events.jsonl", "abc-1.events.jsonl.gz"):
        path = tmp_path / name
        path.write_bytes(JACK_AND_JILL.encode() if name.endswith("l") else gzip.compress(JACK_AND_JILL.encode()))
        assert "abc-1" == EVENTS.read(path).trees[0].session.origin_txn_id
    named = EVENTS.read(put(tmp_path, JACK_AND_JILL, "-no txn.events.jsonl")).trees[0].session.origin_txn_id
    made = EVENTS.read(put(tmp_path, JACK_AND_JILL, "chat.jsonl")).trees[0].session.origin_txn_id
    assert made == named
    assert made.startswith("events-")
    assert made == EVENTS.read(put(tmp_path, JACK_AND_JILL, "other.jsonl")).trees[0].session.origin_txn_id
    other = JACK_AND_JILL.replace("cafe", "park")
    assert made != EVENTS.read(put(tmp_path, other, "chat.jsonl")).trees[0].session.origin_txn_id


def test_a_file_without_times_ends_at_its_own(tmp_path):
    """Events without times are a millisecond apart and end when the file was last written; they are written without times again."""
    path = put(tmp_path, JACK_AND_JILL)
    [tree] = EVENTS.read(path).trees
    latest = max(message.timestamp for session in walk_sessions(tree.session) for message in session.messages)
    assert 0 <= path.stat().st_mtime * 1e3 - latest <= 2
    assert {None} == {event.timestamp for event in events_of(tree)}


def test_what_goes_on_after_an_import_has_its_times(tmp_path):
    """Messages that a resumed session adds behind imported ones are written with their times, and those before without."""
    [tree] = EVENTS.read(put(tmp_path, JACK_AND_JILL)).trees
    last = tree.session.messages[-1]
    tree.session.messages.append(msgspec.structs.replace(last, id="msg_021", timestamp=last.timestamp + 1e6))
    events = events_of(tree)
    assert {None} == {event.timestamp for event in events[:-1]}
    assert last.timestamp + 1e6 == events[-1].timestamp


def test_an_agent_that_only_speaks_is_not_said_to_be_created(tmp_path):
    """A stream that begins without the creation of its first agent is written again without one (S0-90)."""
    [tree] = EVENTS.read(put(tmp_path, EXAMPLES["seed001_inner_monologue"])).trees
    assert ["agent_jill_inner"] == [event.agent_id for event in events_of(tree) if isinstance(event, AgentCreated)]


def test_later_logs_of_upstream_are_read(tmp_path):
    """Logs of the later upstream form become sessions: `agent`, `fragment`, numbers as ids, blank lines, a cause with its call (S1-62)."""
    lines = [
        '{"message_id": "0", "event_type": "agent_created", "agent": "primary", "role": "primary", "parent": "user"}',
        '{"message_id": "1", "event_type": "fragment", "agent": "user", "content": "hello", "cause": "user"}',
        '{"message_id": "2", "event_type": "transcript_entry", "agent": "primary", "role": "user", "content": "hello", "substance": "1"}',
        '{"message_id": "3", "event_type": "transcript_entry", "agent": "primary", "role": "assistant", "tool_calls": [{"id": "c1"}]}',
        '{"message_id": "4", "event_type": "agent_created", "agent": "jack", "role": "child", "parent": "primary", "cause": "3.c1"}',
    ]
    read = EVENTS.read(put(tmp_path, "\n\n".join(lines) + "\n\n"))
    [tree] = read.trees
    assert ["primary", "jack"] == [session.agent_id for session in walk_sessions(tree.session)]
    assert ["1", "2", "3"] == [message.id for message in tree.session.messages]


def test_faults_name_their_lines(tmp_path):
    """A bad line is reported by its number, links that are no tree without one, and strict reading refuses both."""
    text = (
        '{"message_id": "1", "event_type": "agent_created", "agent_id": "a", "parent": "b"}\nnonsense\n'
        '{"message_id": "2", "event_type": "agent_created", "agent_id": "b", "parent": "a"}\n'
    )
    path = put(tmp_path, text)
    read = EVENTS.read(path)
    assert [2, 0] == [fault.line for fault in read.faults]
    assert Fault(0, "agent b would be created by a, which it created itself: that link is cut") in read.faults
    with pytest.raises(FormatError, match=r"log\.jsonl, line 2: is not JSON"):
        EVENTS.read(path, strict=True)


@pytest.mark.parametrize("link", ["substance", "cause", "content_id", "caused_by"])
def test_links_in_a_circle_are_kept(tmp_path, link):
    """Messages that refer to each other, or to themselves, are read and written again; nothing follows the circle."""
    kind = '"event_type": "transcript_entry", "agent_id": "a", "role": "user", "content": "x"'
    text = "".join(f'{{"message_id": "{one}", {kind}, "{link}": "{other}"}}\n' for one, other in ("12", "21"))
    [tree] = EVENTS.read(put(tmp_path, text)).trees
    [out] = EVENTS.write(tree, tmp_path / "out.jsonl")
    again, faults = read_events(out)
    assert ["1", "2"] == [event.message_id for event in again]
    assert [] == faults


def test_two_results_for_one_call_are_kept(tmp_path):
    """Several results of one call, and one delivery that is heard twice, all stay in the session."""
    [tree] = EVENTS.read(put(tmp_path, JACK_AND_JILL)).trees
    results = [message.id for message in tree.session.messages if b'"c3"' in bytes(message.body) and message.role == "tool"]
    assert ["msg_016", "msg_019"] == results


@pytest.mark.parametrize("identity", ["agent_root", "7", "agent_jill_inner", "日本", "a.b", "msg_001"])
def test_ids_of_any_form(tmp_path, identity):
    """Ids need no form: names, numbers, slugs with dots, and none for an agent."""
    text = f'{{"message_id": "x{identity}", "event_type": "transcript_entry", "agent_id": "{identity}", "role": "user", "content": "hi"}}\n'
    read = EVENTS.read(put(tmp_path, text))
    [out] = EVENTS.write(read.trees[0], tmp_path / "out.jsonl")
    assert [f"x{identity}"] == [event.message_id for event in read_events(out)[0]]


@pytest.mark.slow
def test_a_chain_of_agents_is_read_in_linear_time(tmp_path):
    """Agents that created each other in a long chain, told from either end, take eight times as long where they are eight times as many."""

    def reading(count):
        def made(agent, parent):
            return json.dumps({"message_id": f"m{agent}", "event_type": "agent_created", "agent_id": agent, "parent": parent})

        lines = [made(f"c{number}", f"c{number - 1}" if number else None) for number in range(count)]
        lines += [made(f"y{number}", f"x{number}") for number in range(count)]
        lines += [made(f"x{number}", f"c{count - 1}") for number in range(count)]
        path = tmp_path / "x"
        path.write_text("\n".join(lines))
        assert [] == EVENTS.read(path).faults
        return lambda: EVENTS.read(path)

    assert SQUARE > growth(reading, 250)


def test_an_empty_file_has_no_session(tmp_path):
    """A file without events gives no session, and no error."""
    assert ([], []) == (EVENTS.read(put(tmp_path, "")).trees, EVENTS.read(put(tmp_path, "\n\n")).faults)
