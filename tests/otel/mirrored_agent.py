"""Agents whose sessions are mirrored: run by the tests as programs, with the way to take as first argument."""

import asyncio
import contextlib
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import optree


def say(*words: object) -> None:
    """Tell the test."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


@optree.tool
def search(query: str) -> str:
    """Return a result, by way of another tool."""
    return fetch(query) + "!"


@optree.tool(provider="web")
def fetch(query: str) -> str:
    """Return a result."""
    return query.upper()


@optree.tool
def broken() -> None:
    """Fail."""
    raise ValueError("no such page")


@optree.tool
async def waiting(seconds: float) -> None:
    """Take some time."""
    await asyncio.sleep(seconds)


@optree.session(agent="reader")
def reader(depth: int) -> str:
    """Be a sub-agent, with another inside."""
    with optree.turn(user="read"):
        call("small")
        if depth:
            reader_of_readers(depth - 1)
    return "read"


@optree.session(agent="inner-reader")
def reader_of_readers(depth: int) -> None:
    """Be a sub-agent's sub-agent."""
    with optree.turn():
        search(f"depth {depth}")


def call(model: str) -> None:
    """Call a model."""
    with optree.llm(provider="openai", model=model) as op:
        op.request([{"role": "user", "content": "hi"}], temperature=0)
        op.think("hm")
        op.log("asked")
        op.log("slow", "WRN")
        op.account(input_tokens=10, output_tokens=5, cost_usd=0.25)
        op.response("hello")


async def at_once() -> None:
    """Run tools in tasks, one of which is cancelled."""
    tasks = [asyncio.create_task(waiting(0.01)) for _ in range(3)]
    late = asyncio.create_task(waiting(30))
    await asyncio.gather(*tasks)
    late.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await late


def worker() -> None:
    """Be a forked worker of `multiprocessing`."""
    search("from a fork")


def sub() -> None:
    """Be a sub-agent in a process of its own."""
    with optree.session("helper"), optree.turn(user="help"):
        call("large")
        search("elsewhere")
    optree.flush("export", 30)


def everything() -> None:
    """Do all that makes a node."""
    with optree.session("lead") as session:
        with optree.turn(user="go"):
            call("gpt")
            search("x")
            with contextlib.suppress(ValueError):
                broken()
            session.builder.begin_op("system", "compact").end()
            reader(1)
        with optree.turn(user="at once"):
            asyncio.run(at_once())
            threads = [threading.Thread(target=optree.wrap(search), args=(f"thread {number}",)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        with optree.turn(user="other processes"), optree.tool("outside"):
            subprocess.run([sys.executable, __file__, "sub"], env=optree.child_env(), check=True)
            process = multiprocessing.get_context("fork").Process(target=worker)
            process.start()
            process.join()
        say(session.txn)
    say(optree.flush("export", 30))


def crashing() -> None:
    """Do some work, be killed in the middle; resumed, do the rest."""
    with optree.session("lead") as session:
        for _ in range(2):
            with optree.turn():
                reader(1)
        say(session.txn)
        if not session.resumed:
            with optree.turn(), optree.tool("open"):
                search("before the end")
                if sys.argv[2] == "delivered":
                    optree.flush("export", 30)
                os.kill(os.getpid(), signal.SIGKILL)
    if "no flush" not in sys.argv:
        say(optree.flush("export", 30))


def brief() -> None:
    """Do a little, and end."""
    with optree.session("lead") as session, optree.turn():
        search("x")
    say(session.txn)
    if "stay" in sys.argv:
        sys.stdin.read()
    if "flush" in sys.argv:
        say(optree.flush("export", 30))


def slow() -> None:
    """Work until it is killed."""
    with optree.session("lead") as session, optree.turn():
        say(session.txn)
        for number in itertools.count():
            fetch(str(number))
            time.sleep(0.02)


if __name__ == "__main__":
    {"everything": everything, "sub": sub, "crashing": crashing, "brief": brief, "slow": slow}[sys.argv[1]]()
