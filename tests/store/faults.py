"""An operating system whose calls fail where a test says."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from optree._store.files.system import OS

CALLS = [
    "create", "append", "own", "write", "read", "pieces", "ends_whole", "datasync", "sync", "sync_directory", "rename", "unlink",
    "make_directory", "remove_directory", "lock_waiting",
]  # fmt: skip


class Faulty(OS):
    """Fails calls named *call* from the *first* that is made after `arm` on, *times* times."""

    def __init__(self, call: str = "", code: int = errno.ENOSPC, first: int = 1, times: int = 1 << 30) -> None:
        self.call, self.code, self.first, self.times = call, code, first, times
        self.calls: Counter[str] = Counter()
        self.armed = False
        self.files: dict[int, str] = {}
        for name in CALLS:
            setattr(self, name, self._guarded(name, getattr(super(), name)))

    def arm(self, call: str = "", code: int = 0) -> None:
        """Let it fail from now on."""
        self.call, self.code = call or self.call, code or self.code
        self.armed = True
        self.calls.clear()

    def mend(self) -> None:
        """Let it work again."""
        self.armed = False

    def _guarded(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self.calls[name] += 1
            if self.armed and name == self.call and self.first <= self.calls[name] < self.first + self.times:
                raise OSError(self.code, os.strerror(self.code))
            return real(*args, **options)

        return call


class Short(OS):
    """Writes at most *most* bytes a call; after *until* bytes in all the disk is full, if that is given."""

    def __init__(self, most: int, until: int | None = None) -> None:
        self.most, self.until = most, until
        self.done = 0

    def write(self, fd: int, data: bytes) -> int:  # type: ignore[override]
        """Write a little."""
        room = self.most if self.until is None else min(self.most, self.until - self.done)
        if room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.done += (wrote := os.write(fd, data[:room]))
        return wrote


class ReadOnly(OS):
    """A file system that is mounted read-only."""

    def create(self, path: Path) -> int:
        """Refuse."""
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    def append(self, path: Path) -> int:
        """Refuse."""
        return self.create(path)

    def make_directory(self, path: Path) -> None:
        """Refuse, unless it is there."""
        if not path.is_dir():
            self.create(path)
