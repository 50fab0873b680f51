"""What could not be read of a session: where it stood, and whether the snapshot says it already."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from optree._store.files.system import OS
from optree._store.reading.directory import KEPT, SUFFIXES, Directory, exists, journals
from optree._store.reading.reader import Flaw
from optree._values import is_list

TORN = "torn tail"
_NOTHING_LOST = (TORN, "repeated")
_COUNTS = {
    "dropped": "{} records were never written, since the disk would not take them",
    "missing": "{} entries are missing",
    "unknown": "{} records are of types that only a newer optree knows",
    "misplaced": "{} records belong to nodes that cannot be: their paths are none",
}


class Damage(Struct):
    """What could not be read of a saved session, to the byte."""

    flaws: list[Flaw] = []
    """Each place where a file is not as it was written; `str` gives a line for people."""
    snapshot: str = ""
    """Empty, or what is missing from the snapshot."""
    replaced: bool = False
    """True if the journals have all that is missing from the snapshot."""
    dropped: int = 0
    """Records that writers say the disk did not take."""
    missing: int = 0
    """Entries that are known to be missing from the middle of lists."""
    unknown: int = 0
    """Records of types that only a newer optree knows."""
    misplaced: int = 0
    """Records whose paths are not valid."""
    renamed: list[str] = []
    """Values in the snapshot that cannot be ids, with the ids that replace them: nothing is lost by that."""
    kept: str = ""
    """Empty, or where the damaged files are kept, after the session has gone on."""
    earlier: list[str] = []
    """What was lost before the session went on, as its snapshot says it: the files that showed it may be gone."""

    @property
    def state(self) -> str:
        """``clean``, ``torn tail`` (the last write of a process that was killed: nothing acknowledged is lost) or ``damaged``."""
        if self.snapshot or self.lost() or any(flaw.kind != TORN for flaw in self.flaws):
            return "damaged"
        return TORN if self.flaws else "clean"

    def unsaid(self) -> list[str]:
        """Return what was lost and the snapshot does not say, one line each."""
        lines = [str(flaw) for flaw in self.flaws if flaw.kind not in _NOTHING_LOST]
        lines += [self.snapshot] if self.snapshot and not self.replaced else []
        lines += [line.format(getattr(self, name)) for name, line in _COUNTS.items() if getattr(self, name)]
        lines += [self.kept] if self.kept and lines else []
        return [line for line in lines if line not in self.earlier]

    def lost(self) -> list[str]:
        """Return what was lost for good, one line each: what the next snapshot says."""
        return [*self.earlier, *self.unsaid()]

    def keep(self, txn: str, directory: Directory, system: OS) -> None:
        """Keep the damaged files, beside the session, before anything replaces or removes them. Raises `OSError`."""
        names = {flaw.file for flaw in self.flaws if flaw.kind not in _NOTHING_LOST}
        paths = [path for path in journals(directory.live(txn)) if path.name in names]
        if self.snapshot:
            paths += [path for path in (directory.snapshot(txn, name) for name in SUFFIXES) if exists(path) and path.is_file()]
        folder = directory.sessions / f"{txn}{KEPT}"
        for path in paths:
            system.make_directory(folder)
            places = (folder / f"{path.name}{more}" for more in ("", *(f".{number}" for number in range(2, 1000))))
            target = next(place for place in places if not exists(place) or place.samefile(path))
            if not exists(target):
                system.keep(path, target)
            self.kept = f"what was damaged is kept as it was: {folder}"

    def lines(self) -> list[str]:
        """Return the damage for people, one line each."""
        normal = [str(flaw) for flaw in self.flaws if flaw.kind in _NOTHING_LOST]
        normal += [self.snapshot] if self.replaced else []
        normal += [self.kept] if self.kept and self.kept not in self.lost() else []
        return [*(f"lost before: {line}" for line in self.earlier), *normal, *self.renamed, *self.unsaid()]


def earlier(meta: dict[str, Any]) -> list[str]:
    """Return what a snapshot's meta says was lost before it was written."""
    lines: object = meta.get("damage")
    return [str(line) for line in lines] if is_list(lines) else []
