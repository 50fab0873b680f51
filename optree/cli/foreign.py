"""Files of other formats where a session is meant: read as they are, without being imported."""

from __future__ import annotations

from pathlib import Path

from optree.cli.installed import detected, installed
from optree.errors import FormatError
from optree.formats import Format
from optree.store.damage import Damage
from optree.store.lines import check_size
from optree.store.recovery import Loaded
from optree.tree.naming import name_safely

_OWN = frozenset({"json", "ai-agent", "ai-agent-v1"})
"""Formats that `optree.load` reads itself."""


def read_foreign(path: Path) -> Loaded | None:
    """Return the session in a file or folder of an installed format; None if it is of none.

    What was wrong in it is in the damage. Raises `FormatError` if it holds no session, or several; `OSError`.
    """
    form = _format_of(path)
    if form is None:
        return None
    check_size(path)
    found = form.read(path)
    if len(found.trees) != 1:
        there = f"{len(found.trees)} sessions" if found.trees else "no session"
        raise FormatError(f"{path} is {form.name} and holds {there}: optree import {path}, and look at what is listed then")
    [tree] = found.trees
    flaws = [f"line {fault.line}: {fault.said}" if fault.line else fault.said for fault in found.faults]
    return Loaded(
        tree.session.origin_txn_id, tree, Damage(renamed=name_safely(tree), earlier=flaws), [str(path)], {}, {"source": form.name}
    )


def _format_of(path: Path) -> Format | None:
    formats = [one for one in installed()[0] if one.name not in _OWN]
    return next(iter(detected(path, formats)), None)
