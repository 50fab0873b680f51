"""An agent that is mirrored and ends in one of many ways, named by its first argument; its second is how long it lives before, in seconds.

Where it has to say when the code of a process ends, it writes a line ``end <pid> <wall time>`` to stdout.
"""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time

import optree


@optree.tool
def work(number: int) -> int:
    """Do something."""
    return number + 1


def end() -> None:
    """Say that this process's own code is at its end."""
    os.write(1, f"end {os.getpid()} {time.time()}\n".encode())


def child() -> None:
    """Be a process of its own, inside the session."""
    work(5)
    end()


def by_signal(number: int) -> None:
    """End by a signal."""
    end()
    os.kill(os.getpid(), number)
    time.sleep(5)


def failing() -> None:
    """End by an error that nobody catches."""
    end()
    raise RuntimeError("uncaught")


def in_thread() -> None:
    """End normally, after a thread did not."""
    threading.excepthook = lambda _: None
    thread = threading.Thread(target=optree.wrap(lambda: work(None)))  # type: ignore[arg-type]
    thread.start()
    thread.join()
    end()


def forking() -> None:
    """Fork a child that runs on to the program's end."""
    number = os.fork()
    if number:
        os.waitpid(number, 0)
        os.write(1, f"gone {number} {time.time()}\n".encode())
    else:
        work(5)
    end()


def by_multiprocessing(method: str) -> None:
    """Start a child by `multiprocessing`, and wait for it."""
    process = multiprocessing.get_context(method).Process(target=optree.wrap(child))
    process.start()
    process.join()
    os.write(1, f"gone {process.pid} {time.time()}\n".encode())
    end()


def cancelled() -> None:
    """Cancel what an event loop runs."""

    async def main() -> None:
        task = asyncio.create_task(asyncio.sleep(30))
        await asyncio.sleep(0)
        task.cancel()
        await task

    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(main())
    end()


def replaced() -> None:
    """Become another program."""
    end()
    os.execv("/bin/true", ["true"])


def left() -> None:
    """Leave without a word to the interpreter."""
    end()
    os._exit(0)


def exiting() -> None:
    """Leave with a status."""
    end()
    sys.exit(3)


def aborting() -> None:
    """Abort."""
    end()
    os.abort()


WAYS = {
    "normal": end,
    "sys.exit": exiting,
    "exception": failing,
    "SIGINT": lambda: by_signal(signal.SIGINT),
    "SIGTERM": lambda: by_signal(signal.SIGTERM),
    "SIGHUP": lambda: by_signal(signal.SIGHUP),
    "os._exit": left,
    "abort": aborting,
    "SIGKILL": lambda: by_signal(signal.SIGKILL),
    "thread": in_thread,
    "fork": forking,
    "mp fork": lambda: by_multiprocessing("fork"),
    "mp spawn": lambda: by_multiprocessing("spawn"),
    "execv": replaced,
    "asyncio": cancelled,
}


def main() -> None:
    """Work for a while, and end."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in a job of a shell both may be ignored
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if "no names" in sys.argv:
        socket.getaddrinfo = lambda *_, **__: time.sleep(60)  # type: ignore[assignment]  # a resolver that hangs
    with optree.session("lead"), optree.turn():
        for number in range(20):
            work(number)
    time.sleep(float(sys.argv[2]))
    with optree.session("last"), optree.turn(), optree.tool("ending"):
        work(1)
        WAYS[sys.argv[1]]()


if __name__ == "__main__":
    main()
