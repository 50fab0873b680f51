"""Files that a user names and that cannot be written: which it is, why, and what to do."""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from optree._interrupts import pass_on
from optree.errors import OptreeError, SetupError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ELSEWHERE = "name another place"
_IN_THE_WAY = f"a file stands where its directory would be; {_ELSEWHERE}"
_WHY = {
    errno.ENOENT: f"its directory is not there; make it first, or {_ELSEWHERE}",
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EEXIST: _IN_THE_WAY,
    errno.EISDIR: "it is a directory; name a file",
    errno.EACCES: f"you have no permission; change that, or {_ELSEWHERE}",
    errno.EPERM: f"you have no permission; change that, or {_ELSEWHERE}",
    errno.EROFS: f"nothing can be written there; {_ELSEWHERE}",
    errno.ENAMETOOLONG: "its name is too long; give a shorter one",
    errno.ELOOP: "it is a symbolic link; name the file itself",
}


@contextmanager
def usable(path: Path) -> Generator[None]:
    """Turn an `OSError` within into one that names *path*: `SetupError`, or `OptreeError` where there is no room. A closed pipe stays."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        pass_on(error)
        if error.errno in _NO_ROOM:
            raise OptreeError(f"{path} cannot be written: there is no room; make some, or {_ELSEWHERE}") from error
        why = _WHY.get(error.errno or 0) or f"{error.strerror or error}; {_ELSEWHERE}"
        raise SetupError(f"{path} cannot be written: {why}") from error
