"""Runs a backend on loopback ports of its own, for as long as this process lives and no longer."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Generator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Self

from tests.otel.backends.binaries import Program
from tests.otel.backends.waiting import wait_for

HOST = "127.0.0.1"
TRIES = 3
"""A port that was free can be taken before the backend has it: then others are tried."""
UP = 60
"""Seconds in which a backend must be up, on a machine that is busy."""


class Server:
    """A backend that was started. Stopped and started again, it keeps its addresses, and loses what it had in memory."""

    program: ClassVar[Program]
    wants: ClassVar[tuple[str, ...]]
    """What its ports are for."""

    def __init__(self, folder: Path):
        """Start it, with its configuration, log and data in a folder.

        Raises:
            MissingError: Its program is not on this machine.
            RuntimeError: It does not come up; the text ends with its log.

        """
        self.folder = folder
        self.log = folder / "log"
        self._binary = self.program.find()
        self._running = contextlib.ExitStack()
        folder.mkdir(parents=True, exist_ok=True)
        for left in reversed(range(TRIES)):
            self.ports = dict(zip(self.wants, free_ports(len(self.wants)), strict=True))
            try:
                self.start()
            except RuntimeError:
                if not left or "address already in use" not in self.log.read_text():
                    raise
            else:
                break

    @property
    def http(self) -> str:
        """The base URL of its OTLP/HTTP; traces go to `/v1/traces` below it."""
        return f"http://{self.address('otlp-http')}"

    @property
    def grpc(self) -> str:
        """The address of its OTLP/gRPC, without TLS."""
        return self.address("otlp-grpc")

    def address(self, port: str) -> str:
        """Return the host and port of one of what it wants ports for."""
        return f"{HOST}:{self.ports[port]}"

    def command(self) -> list[str]:
        """Write its configuration and return its arguments."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """Return the variables that it is started with, beside this process's own."""
        return {}

    def ready(self) -> bool:
        """Whether it answers; by default, whether all its ports do."""
        return all(listens(port) for port in self.ports.values())

    def start(self) -> None:
        """Start it, and return when it answers.

        Raises:
            RuntimeError: It ended, or did not answer in time.

        """
        command = [str(self._binary), *self.command()]
        with contextlib.ExitStack() as stack:
            process = stack.enter_context(running(command, self.log, self.environment()))
            try:
                wait_for(lambda: process.poll() is not None or self.ready(), UP)
            except TimeoutError:
                raise RuntimeError(f"{self.program.name} does not answer:\n{self.log.read_text()}") from None
            if process.poll() is not None:
                raise RuntimeError(f"{self.program.name} ended with status {process.returncode}:\n{self.log.read_text()}")
            self._running = stack.pop_all()

    def stop(self) -> None:
        """Kill it; what it had not yet passed on is lost."""
        self._running.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@contextlib.contextmanager
def running(command: list[str], log: Path, environment: Mapping[str, str] = MappingProxyType({})) -> Generator[subprocess.Popen[bytes]]:
    """Run a program. At the end it is killed; if this process is killed before, a shell that waits on a pipe from it sees to that."""
    with (
        log.open("wb") as out,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, env={**os.environ, **environment}
        ) as process,
    ):
        watch = ["sh", "-c", f"read -r line; kill -KILL {process.pid}"]
        try:
            with subprocess.Popen(watch, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True) as watching:
                try:
                    yield process
                finally:
                    watching.kill()
        finally:
            process.kill()


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for found in sockets:
            found.bind((HOST, 0))
        return [found.getsockname()[1] for found in sockets]


def listens(port: int) -> bool:
    """Whether somebody listens on a port."""
    with socket.socket() as tried:
        return tried.connect_ex((HOST, port)) == 0
