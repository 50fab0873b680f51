import http.server
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from optree.conversation import ChatModel, read_events
from optree.errors import SetupError
from tests.conversation.conftest import lines

ROOT = Path(__file__).resolve().parents[2]


class Chat(http.server.BaseHTTPRequestHandler):
    """A server with OpenAI's chat interface, that answers with how much it was told; it keeps what it was sent."""

    def do_POST(self):
        """Answer."""
        told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.told.append((self.path, self.headers.get("Authorization"), told))
        said = {"role": "assistant", "content": f"I heard {len(told['messages'])}.", "refusal": None}
        body = json.dumps({"choices": [{"message": said}], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}).encode()
        self.send_response(500 if told["messages"][-1]["content"] == "fail" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def server():
    """Return a chat server; its `url` is what goes before ``/chat/completions``."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Chat) as found:
        found.told, found.url = [], f"http://127.0.0.1:{found.server_port}/v1"
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


@pytest.fixture
def talk(tmp_path, server):
    """Return a function that runs the program with what the user types."""

    def run(typed, *options, code=0):
        environment = {key: value for key, value in os.environ.items() if not key.startswith("OPENAI_")}
        environment |= {"PYTHONPATH": str(ROOT), "OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "k"}
        command = [sys.executable, "-m", "optree.conversation", *map(str, options)]
        done = subprocess.run(command, input=typed, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert code == done.returncode, done.stderr
        return done

    return run


def test_new_session(talk, tmp_path, server):
    """The program begins a session in a file named for the time, and answers each prompt; all of it is logged (S0-80, S0-81, S0-82)."""
    done = talk("Hello\nAnd again\n", "--system", "Be brief.", "--model", "m")
    assert ["> I heard 2.", "> I heard 4.", "> "] == done.stdout.splitlines()
    [path] = tmp_path.glob("*.jsonl")
    assert re.fullmatch(r"session_\d{8}_\d{6}\.jsonl", path.name)
    assert ["agent_created", *["transcript_entry"] * 5] == [line["event_type"] for line in lines(path)]
    assert ["system", "user", "assistant", "user", "assistant"] == [line["role"] for line in lines(path)[1:]]
    where, key, told = server.told[0]
    assert ("/v1/chat/completions", "Bearer k", "m") == (where, key, told["model"])
    assert {"task", "discuss", "whisper"} == {tool["function"]["name"] for tool in told["tools"]}


def test_resume(talk, tmp_path, server):
    """With --resume the program goes on with a file: the model is told all that was said before (S0-80, S0-84)."""
    talk("Hello\n")
    [path] = tmp_path.glob("*.jsonl")
    done = talk("Again\n", "--resume", path, "--no-tools")
    assert f"Session resumed from {path}" in done.stderr
    _, _, told = server.told[-1]
    assert ["Hello", "I heard 1.", "Again"] == [message["content"] for message in told["messages"]]
    assert "tools" not in told
    events, faults = read_events(path)
    assert (5, []) == (len(events), faults)


def test_what_is_said_of_a_file(talk, example):
    """What had to be made up or left out of a resumed file is said, by line (S0-90)."""
    path = example("seed001_hook")
    path.write_text(path.read_text() + "bad\n")
    done = talk("", "--resume", path)
    assert "the file does not say that agent_root was created: it stands in for the root" in done.stderr
    assert "line 7 is not JSON" in done.stderr


def test_failing_server(talk, tmp_path):
    """A server that fails is said, and the user may ask again; what was asked stays in the transcript."""
    done = talk("fail\nHello\n")
    assert "500" in done.stderr
    assert "I heard 2." in done.stdout
    [path] = tmp_path.glob("*.jsonl")
    assert ["fail", "Hello", "I heard 2."] == [line["content"] for line in lines(path)[1:]]


def test_missing_file(talk, tmp_path):
    """A file that is not there is refused, and none is made."""
    done = talk("", "--resume", "missing.jsonl", code=1)
    assert "missing.jsonl" in done.stderr
    assert [] == list(tmp_path.iterdir())


def test_no_address(monkeypatch):
    """A model without an address says what to give."""
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(SetupError, match="give base_url, or set OPENAI_BASE_URL"):
        ChatModel("m")
