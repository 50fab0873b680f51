"""Which root sessions one run of a program recorded: each has the run's id in its `ingress`."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec import UNSET

from optree import _records as r
from optree._ids import SOON, is_txn, txn_time
from optree._interrupts import pass_on
from optree._store.files.descriptors import open_regular
from optree._store.reading.directory import Directory, Saved, owners_journals
from optree._store.reading.formats import read_meta
from optree._store.reading.recovery import Loaded, load, names_file
from optree._values import decode, is_object, object_of
from optree.errors import FormatError

_FIRST_LINES: Final = 8
"""Lines of a journal among which the session begins: the first is its header."""
MOST_TOGETHER: Final = 100
"""Sessions of a run that are loaded for one of them: a service's may be thousands, each of which is a run of its own to its users."""
MOST_LOOKED_AT: Final = 1000
"""Sessions that are looked at for what is said beside something else."""


class ProgramRun(NamedTuple):
    """A run of a program."""

    id: str
    sessions: list[Saved]
    """Its root sessions, in the order in which they began."""
    unread: tuple[str, ...] = ()
    """Sessions that were begun since, and whose files do not tell of which run they are: they are damaged."""


def run_of(saved: Saved) -> str:
    """Return the id of the run that recorded a session; of one that does not say it, as earlier versions' do not, its own txn."""
    return _told(saved) or saved.txn


def run_in(ingress: object, txn: str) -> str:
    """Return the same as `run_of` for a session of which its `ingress` is known."""
    run = ingress.get("run") if is_object(ingress) else None
    return run if isinstance(run, str) and is_txn(run) else txn


def was_auto(saved: Saved) -> bool:
    """Tell whether the program of a session was recorded without a change of it, as by `optree run --auto`."""
    return (_ingress(saved) or {}).get("auto") is True


def _told(saved: Saved) -> str | None:
    """Return the same as `run_of`; None where the files cannot be read."""
    ingress = _ingress(saved)
    return None if ingress is None else run_in(ingress, saved.txn)


def _ingress(saved: Saved) -> dict[str, Any] | None:
    """Return what a session says of where its program was started; None where its files cannot be read."""
    meta = read_meta(saved.snapshot) if saved.snapshot is not None else {}
    begun = None if "ingress" in meta else _begun_with(saved.live)
    return object_of((meta if begun is None else begun).get("ingress")) if meta or begun else None


def find_run(txn: str, directory: Directory, *, most: int | None = None) -> ProgramRun:
    """Return the run that recorded a session; if more than *most* were begun since, that session alone: each is looked at.

    Raises what `Directory.find` does.
    """
    first = directory.find(txn)
    run = run_of(first)
    since = (txn_time(run) or 0.0) - SOON  # none of its sessions is older; clocks may be set back
    listed = [saved for saved in reversed(directory.saved()) if (txn_time(saved.txn) or since) >= since]
    if most is not None and len(listed) > most:
        return ProgramRun(run, [first])
    told = [(saved, run if saved.txn == first.txn else _told(saved)) for saved in listed]
    return ProgramRun(run, [saved for saved, of in told if of == run], tuple(saved.txn for saved, of in told if of is None))


def load_run(what: str | Path, directory: Directory, *, but: str = "") -> dict[str, Loaded]:
    """Load all sessions of the run that recorded a session, by txn, that one first.

    A file's path means the session in it alone, as does the txn of one of the run *but*, or of one with more than `MOST_TOGETHER`.
    Raises what `load` does.
    """
    first = str(what) if names_file(what) else directory.find(str(what)).txn
    run = ProgramRun("", []) if names_file(what) else find_run(first, directory)
    others = [saved.txn for saved in run.sessions if saved.txn != first] if run.id != but and len(run.sessions) <= MOST_TOGETHER else []
    return {loaded.txn: loaded for loaded in (load(one, directory) for one in (first, *others))}


def _begun_with(live: Path | None) -> dict[str, Any]:
    """Return the attributes that a session began with, by its first journal; empty if that does not tell."""
    try:
        for path in owners_journals(live)[:1] if live is not None else ():
            with open_regular(path) as file:
                for line in islice(file, _FIRST_LINES):
                    record = r.parse(line)
                    if isinstance(record, r.SessionBegin) and not record.path:
                        return {} if record.attributes is UNSET else object_of(decode(record.attributes))
    except (OSError, FormatError) as error:  # it has ended meanwhile, or is damaged, which loading it tells
        pass_on(error)
    return {}
