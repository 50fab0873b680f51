"""Programs as SDKs' documentation writes them, run as a user runs them: with one line added, or with none."""

import json
import signal
import sys
import threading
from typing import NamedTuple

from optree._capture import START
from optree._nodes import Tokens
from optree._providers.messages import TextPart, ToolCallPart, answers, message
from optree._store import Directory
from optree._store.reading.recovery import load
from optree._tree import walk_ops, walk_sessions
from optree._values import decode
from tests.capture.provider import Reply
from tests.cli.conftest import ROOT, CommandLine

LINE = "import optree; optree.instrument()\n"
EITHER = ("one line", "--auto")
"""The ways to have a program recorded."""
BILL = ("requests", "answers", "tokens", "price")
"""What is checked of a program whose calls and whose bill are."""
RAN = ("tools", *BILL)
"""What is checked of one whose client runs its tools."""
TREE = ("agents", "tools", "requests", "tokens", "price")
"""What is checked of one whose agents and tools are too."""
RESUMED = ("tools", "requests", "tokens", "price")
"""What is checked of one that was killed."""
PRICES = {
    "openai-compatible": {"gpt-5": {"input": 1.25, "cached": 0.125, "output": 10}},
    "anthropic-compatible": {"claude-sonnet-4-5": {"input": 3, "cached": 0.3, "written": 3.75, "written_1h": 6, "output": 15}},
    "google-compatible": {"gemini-2.5-flash": {"input": 0.3, "cached": 0.03, "output": 2.5}},
    "ollama": {"gemma3": {"input": 0.02, "output": 0.04}},
}
"""What providers ask, in dollars per million tokens; the scripted one has none of their names."""


class Billed(NamedTuple):
    """What a call is accounted for."""

    name: str
    tokens: Tokens | None
    cost: float | None
    """In millionths of a dollar."""


class Held:
    """What the end of an answer waits for."""

    def __init__(self):
        self.asked, self.let_go = threading.Event(), threading.Event()

    def wait(self, seconds):
        """Say that the answer was asked for, and wait until it may come."""
        self.asked.set()
        self.let_go.wait(seconds)


class Documented:
    """Runs one program on a scripted provider, with a line added to it (*added*) or by ``--auto``, and reads what was saved."""

    def __init__(self, folder, provider, added):
        self.line, self.provider, self.added = CommandLine(folder), provider, added
        (folder / "prices.json").write_text(json.dumps(PRICES))
        self.line.env |= {
            "OPENAI_BASE_URL": f"{provider.url}/v1",
            "OPENAI_API_BASE": f"{provider.url}/v1",  # as LlamaIndex has it
            "OPENAI_API_KEY": "none",
            "ANTHROPIC_BASE_URL": provider.url,
            "ANTHROPIC_API_KEY": "none",
            "GOOGLE_GEMINI_BASE_URL": provider.url,
            "GEMINI_API_KEY": "none",
            "OLLAMA_HOST": provider.url,
            "CREWAI_DISABLE_TELEMETRY": "true",
            "CREWAI_TRACING_ENABLED": "false",
            "AGNO_TELEMETRY": "false",
            "OTEL_SDK_DISABLED": "true",
            "XDG_DATA_HOME": str(folder),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # or it asks for one over the network
            "OPTREE_PRICES": str(folder / "prices.json"),
        }
        self.program = [sys.executable, "agent.py"]

    @property
    def auto(self):
        """The options of `optree` that have the program recorded."""
        return [] if self.added == "one line" else ["--auto"]

    def writes(self, source):
        """Write the program."""
        (self.line.folder / "agent.py").write_text((LINE if self.added == "one line" else "") + source)

    def run(self, source, *replies):
        """Run a program to its end; return what it printed."""
        self.writes(source)
        self.provider.says(*replies)
        if self.auto:
            return self.line("run", *self.auto, "--", *self.program).stdout
        process = self.line.start(*self.program)
        said, complained = process.communicate()
        assert process.returncode == 0, complained
        return said

    def start(self, source):
        """Start a program by itself; return its process."""
        self.writes(source)
        own = {} if self.added == "one line" else {"OPTREE_AUTO": "1", "PYTHONPATH": f"{START}:{ROOT}"}
        return self.line.start(*self.program, env=self.line.env | {"PYTHONUNBUFFERED": "1"} | own)

    def kill(self, source, *replies):
        """Run a program, and kill it where it waits for the answer after those."""
        held = Held()
        self.provider.says(*replies, Reply({}, hold=held))
        process = self.start(source)
        assert held.asked.wait(60)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        held.let_go.set()

    def resume(self, *replies):
        """Go on with it; return what it printed."""
        self.provider.says(*replies)
        return self.line("load", "last", *self.auto, "--", *self.program).stdout

    @property
    def saved(self):
        """What was saved: one session."""
        [txn] = self.line.txns()
        return load(txn, Directory.of(self.line.base))

    def calls(self):
        """Return the calls of models that were recorded, in the order of their begin."""
        return self._ops("llm")

    def bill(self, unknown=0):
        """Return what each call is accounted for; the sums are the session's, and so many of its calls have an unknown cost."""
        entries = [(op.name, entry) for op in self.calls() for entry in op.accounting if entry.tokens]
        totals = self.saved.session.totals
        for name in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_write_input_tokens", "reasoning_output_tokens"):
            assert sum(getattr(entry.tokens, name) for _, entry in entries) == getattr(totals, name)
        bill = [Billed(name, entry.tokens, None if entry.cost_usd is None else round(entry.cost_usd * 1e6, 6)) for name, entry in entries]
        costs = sum(one.cost for one in bill if one.cost is not None)
        assert (round(costs, 6), unknown) == (round(totals.cost_usd * 1e6, 6), totals.unknown_costs)
        return bill

    def requests(self):
        """Return what calls had asked, as it is recorded; it is what the provider was sent, each request once."""
        resolve = self.saved.tree.pool.resolve
        found = [resolve(decode(op.request.payload)) for op in self.calls()]
        assert [_as_recorded(json.loads(body)) for _, body in self.provider.requests] == found
        assert len(found) == self.saved.session.totals.llm_requests
        return found

    def answers(self):
        """Return the answers of models, as they are recorded."""
        return [decode(op.response.payload) for op in self.calls() if op.response is not None]

    def said(self):
        """Return the text of all answers."""
        parts = [part for answer in self.answers() for one in answers(answer)[0].messages for part in message(one).parts]
        return "".join(part.text for part in parts if isinstance(part, TextPart))

    def asked_for(self):
        """Return the tools that answers asked for, with their arguments."""
        parts = [part for answer in self.answers() for one in answers(answer)[0].messages for part in message(one).parts]
        return [(part.name, part.decoded()) for part in parts if isinstance(part, ToolCallPart)]

    def agents(self):
        """Return the agents that ran, by who called them."""
        return [session.call_path for session in walk_sessions(self.saved.tree)]

    def tools(self):
        """Return the calls of tools, with arguments and results."""
        return [(op.name, *(None if one is None else decode(one.payload) for one in (op.request, op.response))) for op in self._ops("tool")]

    def turns(self):
        """Return what was asked in each turn of the session, with the number of its ops."""
        return [(turn.prompts["user"], len(turn.ops)) for turn in self.saved.session.turns]

    def _ops(self, kind):
        return sorted((op for _, _, op in walk_ops(self.saved.session) if op.kind == kind), key=lambda op: op.started_at)


def _as_recorded(body):
    """Return a request's body as ops have it: what is sent as messages, under one name, and all else but the model."""
    known = {name: value for name, value in body.items() if name not in {"model", "input", "contents"}}
    messages = next(body[name] for name in ("messages", "input", "contents") if name in body)
    return known | {"messages": [{"role": "user", "content": messages}] if isinstance(messages, str) else messages}
