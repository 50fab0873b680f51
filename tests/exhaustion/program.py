"""A program that traces, and tells what it comes to, with optree or with names that do nothing in its place.

``python -m tests.exhaustion.program plain|optree FD WAY BASE``: results go to *FD*, a line of JSON each, and what `health` returns;
*WAY* is one of `ways`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Self

COST = 0.25
LARGE = "x" * (int(os.environ.get("LARGE_MB", "1")) << 20)
ANSWER = "the answer: größer ✓"


class Nothing:
    """Takes every call, and is every scope: what the program has without optree."""

    def __getattr__(self, name: str) -> Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, given: Any = None, *_: object, **__: object) -> Any:
        """Return a function that would be decorated, or this."""
        return given if callable(given) else self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def child_env(self) -> dict[str, str]:
        """As optree's: the environment of a child process."""
        return dict(os.environ)


class Mine(Exception):  # noqa: N818
    """A failure of the program's own."""


class Program:
    """All kinds of traced code, run twice: before and after what the way takes away."""

    def __init__(self, optree: Any, fd: int, child: list[str]) -> None:
        self.optree, self.fd, self.child = optree, fd, child
        self.ran = 0
        self.log = logging.getLogger("program")
        tool, llm, session = optree.tool, optree.llm, optree.session

        @tool
        def double(number: int) -> int:
            self.ran += 1
            return number * 2

        @tool
        def fails(kind: type[Exception], text: str) -> None:
            self.ran += 1
            raise kind(text)

        @tool
        def counts(upto: int) -> Iterator[int]:
            self.ran += 1
            yield from range(upto)

        @tool
        async def doubles(number: int) -> int:
            self.ran += 1
            await asyncio.sleep(0)
            return number * 2

        @tool
        async def counts_later(upto: int) -> AsyncIterator[int]:
            for number in range(upto):
                yield number

        @llm
        def asks(messages: list[dict[str, str]], model: str) -> str:  # noqa: ARG001
            return ANSWER

        @session(agent="helper")
        async def helper(upto: int) -> list[int]:
            several = await asyncio.gather(*(doubles(number) for number in range(upto)))
            return [*several, *[number async for number in counts_later(upto)]]

        @session
        def failing_helper() -> None:
            raise Mine("the helper's")

        self.double, self.fails, self.counts, self.asks = double, fails, counts, asks
        self.helper, self.failing_helper = helper, failing_helper

    def tell(self, name: str, make: Callable[[], object]) -> None:
        """Write what *make* returns or raises."""
        try:
            value = make()
        except Exception as error:  # noqa: BLE001 - that is what is compared
            said = str(error).removesuffix(" while calling a Python object")  # of a full stack: how the call that met it was made
            value = f"{type(error).__name__}: {said}"
        os.write(self.fd, json.dumps([name, value]).encode() + b"\n")

    def part(self) -> None:
        """Run each kind once, in a session."""
        with self.optree.session("root"), self.optree.turn(user="go"):
            self.tell("function", lambda: self.double(4))
            self.tell("fails", lambda: self.fails(ValueError, "no good"))
            self.tell("fails as OSError", lambda: self.fails(OSError, "mine"))
            self.tell("fails as MemoryError", lambda: self.fails(MemoryError, "mine"))
            self.tell("generator", lambda: list(self.counts(3)))
            self.tell("generator, left", lambda: next(self.counts(3)))
            self.tell("block", self.block)
            self.tell("block fails", self.failing_block)
            self.tell("model", lambda: self.asks(messages=[{"role": "user", "content": "go"}], model="m"))
            self.tell("session fails", self.failing_helper)
            self.tell("async", lambda: asyncio.run(self.helper(3)))
            self.tell("threads", self.threads)
            self.tell("deep", lambda: self.deep(100))
            self.tell("logging", lambda: self.log.warning("it says"))
            self.tell("ran", lambda: self.ran)
        with self.optree.tool("alone"):
            self.tell("alone", lambda: self.double(5))
        self.tell("print", lambda: sys.stdout.write(ascii(ANSWER) + "\n") and sys.stdout.flush())

    def processes(self) -> None:
        """Run a child, and fork."""
        with self.optree.session("root"):
            self.tell("child", self.in_child)
            self.tell("fork", self.forked)

    def block(self) -> str:
        """Use a context manager's handle for all that it takes."""
        with self.optree.llm(provider="p", model="m") as op:
            op.request(messages=[{"role": "user", "content": LARGE}])
            for number in range(20):
                op.log(f"line {number}")
                op.think("piece ")
            op.account(input_tokens=3, output_tokens=4, cost_usd=COST)
            op.response(ANSWER)
        return ANSWER

    def failing_block(self) -> None:
        """Raise within one."""
        with self.optree.tool("block") as op:
            op.log("soon")
            raise Mine("in a block")

    def deep(self, levels: int) -> int:
        """Nest traced calls."""
        return self.double(0) if not levels else 1 + self.optree.tool(self.deep)(levels - 1)

    def threads(self) -> list[int]:
        """Call traced functions from threads; what keeps one from starting is raised."""
        found: list[int] = []
        threads = [threading.Thread(target=lambda number=number: found.append(self.double(number))) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(found)

    def in_child(self) -> str:
        """Run another process that traces."""
        done = subprocess.run(self.child, env=self.optree.child_env(), capture_output=True, text=True, check=False)
        return f"{done.returncode} {done.stdout}"

    def forked(self) -> int:
        """Trace in a forked process."""
        pid = os.fork()
        if not pid:
            code = 1
            with contextlib.suppress(Exception):
                code = self.double(4)
            os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class AtTheEnd:
    """Traces where the interpreter is on its way down."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def __del__(self) -> None:
        """Trace in a finalizer."""
        self.program.tell("finalizer", lambda: self.program.double(21))


def main() -> None:
    """Be the program, or its child."""
    kind, fd, way, base = sys.argv[1:]
    if kind == "child":
        import optree

        with contextlib.suppress(BrokenPipeError):
            sys.stdout.write(f"{optree.tool(lambda: 42)()}\n")
            sys.stdout.flush()
        return
    from tests.exhaustion.ways import WAYS

    if kind == "optree":
        import optree
    else:
        optree = Nothing()  # type: ignore[assignment]
    before, after = WAYS[way].inside
    child = [sys.executable, "-m", __spec__.name, "child", "", "", ""] if kind == "optree" else [sys.executable, "-c", "print(42)"]
    program = Program(optree, int(fd), child)
    before(base)
    program.part()
    after(base)
    program.part()
    program.processes()
    held = AtTheEnd(program)
    atexit.register(lambda: program.tell("at exit", lambda: program.double(8)))
    globals()["held"] = held
    if kind == "optree":
        program.tell("holds", lambda: WAYS[way].holds(base))
        told = {name: found for name, found in optree.health().items() if isinstance(found, (int, float, str, list))}
        os.write(program.fd, json.dumps(["health", told]).encode() + b"\n")
    os.write(program.fd, json.dumps(["end", ""]).encode() + b"\n")
    raise Mine("the last")


if __name__ == "__main__":
    main()
