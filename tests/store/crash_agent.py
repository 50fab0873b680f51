"""A busy program for the crash suite: it tells through a pipe what was acknowledged, so that a judge can hold the disk to it.

Several sub-agents, threads, asyncio tasks, and a second process that joins by `optree.child_env`. One line goes to the pipe *after* each
acknowledged call: a structural call that has returned, an entry behind which `optree.flush()` has returned True.
"""

import asyncio
import contextlib
import json
import os
import random
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import optree
from optree._builder import Op
from optree._tracing.runtime import RUNTIME


class Pipe:
    """Writes acknowledgements, one line each, each in one call, so that lines of several processes do not mix."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __call__(self, *words: object) -> None:
        """Name what was acknowledged; nothing is, once a call went on without waiting for the disk."""
        if not sum(store.stream.late for store in list(RUNTIME.stores.values())):
            os.write(self.fd, json.dumps(words).encode() + b"\n")


class Agent:
    """One run; the same seed makes the same choices."""

    def __init__(self, ack: Pipe, seed: int, rounds: int) -> None:
        self.ack = ack
        self.random = random.Random(seed)
        self.rounds = rounds

    def model(self, label: str) -> None:
        """Call a model that does not exist: request, reasoning, logs, costs, response."""
        with optree.llm(provider="openai", model="gpt-4o") as op:
            self.ack("op", op.path)
            op.request(messages=[{"role": "user", "content": f"{label} {number} " + "word " * 30} for number in range(3)])
            self.ack("request", op.path)
            for number in range(self.random.randrange(1, 6)):
                self._entries(op, f"{label} {number}")
            if self.random.random() < 0.4:
                self.flush(op)
            op.account(input_tokens=self.random.randrange(1, 5000), output_tokens=7, cost_usd=self.random.randrange(1, 10**6) / 1e6)
            self.ack("accounting", op.node.accounting[-1].id)
            op.response(f"answer to {label}")
            self.ack("response", op.path, f"answer to {label}")
        self.ack("ended", op.path)

    def _entries(self, op: Op, label: str) -> None:
        op.log(f"log {label}")
        op.think(f"thought {label}")
        if self.random.random() < 0.2:
            op.log(f"warning {label}", "WRN", details={"label": label})

    def flush(self, op: Op) -> None:
        """Flush, and acknowledge the entries that the op had before."""
        logs = [entry.message for entry in op.node.logs]
        chunks = [chunk.text for chunk in op.node.reasoning.chunks] if op.node.reasoning else []
        if optree.flush():
            self.ack("entries", op.path, logs, chunks)

    def tool(self, label: str) -> None:
        """Call a tool, which may fail."""
        with contextlib.suppress(LookupError), optree.tool("search", provider="mcp") as op:
            self.ack("op", op.path)
            op.request(query=label)
            op.log(f"searching {label}")
            if self.random.random() < 0.2:
                raise LookupError(label)
            op.response({"found": label})
        self.ack("ended", op.path)

    def sub_agent(self, label: str, steps: Callable[[str], None]) -> None:
        """Run a sub-agent with a transcript of its own."""
        with optree.session(label) as session:
            self.ack("session", session.path)
            session.message(f"to {label}")
            self.ack("message", session.path, 0)
            with optree.turn(user=label) as turn:
                self.ack("turn", turn.path)
                steps(label)
            self.ack("turn ended", turn.path)
        self.ack("session ended", session.path)

    def work(self, label: str) -> None:
        """Take a few steps."""
        for number in range(self.rounds):
            self.model(f"{label}.{number}")
            self.tool(f"{label}.{number}")

    async def tasks(self, label: str) -> None:
        """Take steps in tasks that go on at once."""

        async def one(name: str) -> None:
            self.model(name)
            await asyncio.sleep(0)
            self.sub_agent(name, self.tool)

        await asyncio.gather(*(one(f"{label}.task{number}") for number in range(3)))

    def threads(self, label: str) -> None:
        """Take steps in threads, sub-agents among them."""
        with ThreadPoolExecutor(3) as pool:
            calls = [pool.submit(optree.wrap(self.sub_agent), f"{label}.thread{number}", self.work) for number in range(2)]
            calls.append(pool.submit(optree.wrap(self.work), f"{label}.thread"))
            for call in calls:
                call.result()

    def run(self, partner: "Partner | None") -> None:
        """Run one root session from its begin to its last snapshot."""
        with optree.session("crash") as session:
            self.ack("txn", session.txn)
            with optree.turn(user="go", system="be quick") as turn:
                self.ack("turn", turn.path)
                session.message({"role": "user", "content": "go"})
                self.ack("message", "", 0)
                self.model("first")
                asyncio.run(self.tasks("async"))
                with optree.tool("partner"):
                    if partner is not None:
                        partner.start(optree.child_env({}))
                    self.threads("pool")
                    if partner is not None:
                        partner.wait()
            self.ack("turn ended", turn.path)
            with optree.turn(user="more"):
                self.sub_agent("last", self.work)
        self.ack("session ended", "")
        if optree.flush("snapshot"):
            self.ack("snapshot")


class Partner:
    """The second process: forked before optree has done anything, it waits for the environment and joins the session."""

    def __init__(self, ack: Pipe, seed: int) -> None:
        mine, theirs = os.pipe()
        done, tell = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            code = 1
            try:
                os.close(theirs)
                os.close(done)
                os.environ.update(json.loads(os.read(mine, 1 << 16) or b"{}"))
                if "OPTREE_PARENT" in os.environ:
                    Agent(ack, seed, 2).sub_agent("partner", Agent(ack, seed, 2).work)
                    RUNTIME.at_exit()
                code = 0
            finally:
                os._exit(code)
        os.close(mine)
        os.close(tell)
        self._send, self._done = theirs, done

    def start(self, env: dict[str, str]) -> None:
        """Give the partner its environment."""
        os.write(self._send, json.dumps(env).encode())

    def wait(self) -> None:
        """Wait until it has ended."""
        os.close(self._send)
        os.read(self._done, 1)
        os.close(self._done)
        os.waitpid(self.pid, 0)


def run(base: str, fd: int, seed: int, rounds: int = 2) -> None:
    """Run the agent with its partner; sessions go to *base*, acknowledgements to *fd*. Call it in a process of its own."""
    optree.configure(base_dir=base, console=False)
    ack = Pipe(fd)
    threading.stack_size(256 << 10)
    Agent(ack, seed, rounds).run(Partner(ack, seed + 1))
    RUNTIME.at_exit()


def resume(base: str, fd: int, txn: str) -> None:
    """Resume a session, run a little, and end it."""
    optree.configure(base_dir=base, console=False)
    os.environ["OPTREE_RESUME"] = txn
    ack = Pipe(fd)
    agent = Agent(ack, 1, 1)
    with optree.session("crash"):
        ack("resumed")
        with optree.turn(user="go on") as turn:
            ack("turn", turn.path)
            agent.model("again")
            agent.sub_agent("again", agent.tool)
        ack("turn ended", turn.path)
    ack("session ended", "")
    if optree.flush("snapshot"):
        ack("snapshot")
    RUNTIME.at_exit()


if __name__ == "__main__":
    run(sys.argv[1], 1, int(sys.argv[2]))
