import io
import json
from pathlib import Path

import pytest

from optree._store.files.lines import Fault
from optree.conversation import Reply, load_session, restored
from optree.conversation.wire import stream_events

DATA = Path(__file__).parent / "data"


class Scripted:
    """A model that says what it was told to say, in that order, then counts; it keeps what it was asked."""

    name = "scripted:model"

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    async def __call__(self, messages, tools, /):
        """Answer."""
        self.asked.append((messages, tools))
        said = self.answers.pop(0) if self.answers else f"words {len(self.asked)}"
        message = said if isinstance(said, dict) else {"role": "assistant", "content": said}
        return Reply(message, {"prompt_tokens": 5, "completion_tokens": 2})


def calls(*named):
    """Return a model's message that asks for tool calls, each given by id, name and arguments."""
    made = [
        {"id": one, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}} for one, name, arguments in named
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


def lines(path):
    """Return a file's lines as objects."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def read(*data):
    """Return the events and faults of lines, given as bytes or as objects."""
    source = b"\n".join(one if isinstance(one, bytes) else json.dumps(one).encode() for one in data)
    events, faults = [], []
    for found in stream_events(io.BytesIO(source)):
        if isinstance(found, Fault):
            faults.append(found)
        else:
            events += found
    return events, faults


def shape(agent):
    """Return a tree of agents as plain values: ids, models, transcripts, sub-agents."""
    below = {name: shape(one) for name, one in agent.subagents.items()}
    return {"id": agent.agent_id, "model": agent.language_model, "transcript": agent.transcript, "subagents": below}


@pytest.fixture
def file(tmp_path):
    """Return where a session's file may be."""
    return tmp_path / "session.jsonl"


@pytest.fixture
def example(tmp_path):
    """Return a function that gives a copy of one of the seeds' examples, to load and go on with."""

    def copy(name):
        path = tmp_path / f"{name}.jsonl"
        path.write_bytes((DATA / f"{name}.jsonl").read_bytes())
        return path

    return copy


@pytest.fixture
def opened():
    """Return a function that loads or begins a session with a model, and closes it in the end."""
    found = []

    def load(path, model=None, **options):
        root, session = load_session(path, lambda *given: restored(*given, model=model), **options)
        found.append(session)
        return root, session

    yield load
    for session in found:
        session.close()
