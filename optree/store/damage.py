"""What could not be read of a session: where it stood, and whether the snapshot says it already."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from optree.store.reader import Flaw
from optree.values import is_list

TORN = "torn tail"
_COUNTS = {
    "dropped": "{} records were never written, since the disk would not take them",
    "missing": "{} entries are missing",
    "unknown": "{} records are of types that only a newer optree knows",
    "misplaced": "{} records belong to nodes that cannot be: their paths are none",
}


class Damage(Struct):
    """What could not be read, to the byte."""

    flaws: list[Flaw] = []
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
    """Records whose paths are none."""
    renamed: list[str] = []
    """Ids that the snapshot gave and that can be none, with what is there in their place: nothing is lost by that."""
    earlier: list[str] = []
    """What was lost before the session went on, as its snapshot says it: the files that showed it may be gone."""

    @property
    def state(self) -> str:
        """`clean`, `torn tail` (the last write of a killed process, normal) or `damaged`."""
        if self.snapshot or self.lost():
            return "damaged"
        return TORN if self.flaws else "clean"

    def unsaid(self) -> list[str]:
        """Return what was lost and the snapshot does not say, one line each."""
        said = [str(flaw) for flaw in self.flaws if flaw.kind != TORN]
        said += [self.snapshot] if self.snapshot and not self.replaced else []
        said += [line.format(getattr(self, name)) for name, line in _COUNTS.items() if getattr(self, name)]
        return [line for line in said if line not in self.earlier]

    def lost(self) -> list[str]:
        """Return what was lost for good, one line each: what the next snapshot says."""
        return [*self.earlier, *self.unsaid()]

    def lines(self) -> list[str]:
        """Return the damage for people, one line each."""
        normal = [str(flaw) for flaw in self.flaws if flaw.kind == TORN]
        normal += [self.snapshot] if self.replaced else []
        return [*(f"lost before: {line}" for line in self.earlier), *normal, *self.renamed, *self.unsaid()]


def earlier(meta: dict[str, Any]) -> list[str]:
    """Return what a snapshot's meta says was lost before it was written."""
    found: object = meta.get("damage")
    return [str(line) for line in found] if is_list(found) else []
