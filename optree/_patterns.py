"""Regular expressions that are compiled when they are first used."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any


class Pattern:
    """A regular expression that is compiled when it is first used: to compile all of them takes most of the time of an import."""

    search: Callable[..., re.Match[str] | None]
    match: Callable[..., re.Match[str] | None]
    fullmatch: Callable[[str], re.Match[str] | None]
    finditer: Callable[[str], Iterator[re.Match[str]]]
    findall: Callable[[str], list[Any]]
    sub: Callable[[str | Callable[[re.Match[str]], str], str], str]

    def __init__(self, pattern: str, flags: int = 0) -> None:
        self._pattern, self._flags = pattern, flags

    def __getattr__(self, name: str) -> Any:
        compiled = re.compile(self._pattern, self._flags)
        self.search, self.match, self.fullmatch = compiled.search, compiled.match, compiled.fullmatch
        self.finditer, self.findall, self.sub = compiled.finditer, compiled.findall, compiled.sub
        return getattr(compiled, name)
