"""One session while it lives: its lock, its journal, and what its threads do that callers must not wait for."""

from __future__ import annotations

import os
from collections.abc import MutableMapping, Sequence
from errno import EMFILE, ENFILE
from functools import partial
from pathlib import Path
from time import monotonic
from weakref import ref

from optree._background import Steps, side_by_side
from optree._builder import SessionTreeBuilder, Stream, Taker
from optree._builder.core import Core
from optree._interrupts import if_free
from optree._store.files import lock
from optree._store.journal import Journal
from optree._store.ledger import Ledger
from optree._store.ownership import are_many, files_closed, files_opened, make_room
from optree._store.reading.directory import LATE, LATE_UNWRITTEN, OWNERS, journals, nothing_saved, owners_journals
from optree._store.reading.numbering import known_vector, last_given, was_writer
from optree._store.reading.recovery import Loaded, load_to_resume
from optree._store.reading.snapshot import SnapshotWriter
from optree._store.saving import StoreOptions, saving
from optree._store.session_files import Journals, SessionFiles
from optree._store.settle import join, remove, settle, settle_beside, settle_later
from optree._store.upkeep import SETTLE_SECONDS, Late, Upkeep
from optree._version import __version__
from optree.errors import NotFoundError

_MISSED = 3
"""Looks, a second apart, after which it is said that there are no descriptors."""
_LOOK_SECONDS = 5.0
"""Of a session that is idle and has no files open it is looked as often whether they are there."""


class SessionStore(SessionFiles):
    """Keeps one root session on disk. Nothing here raises once it is open; `problems` says what went wrong."""

    _billed = _is_left_to_disk = False
    _final = -1  # number of the last record that a snapshot has which was written as the session's last
    late_stores: MutableMapping[str, SessionStore] | None = None  # in a child forked after the end: where it puts itself at a record
    counted = _healed = 0  # records that were lost when it was closed; those that were given up, and that a snapshot has since
    _saved = True  # False while the last snapshot that was tried is not on disk, or the bill of an ended session
    _is_others = False  # True if another store of this process goes on with the session
    _missed = 0  # how often one after another a look found records that are in no file
    _looks_at = 0.0  # when an idle session's files are looked for next
    _left = False  # True if the session has ended, and journals remain, as while another process writes to it

    def __init__(
        self,
        txn: str,
        options: StoreOptions,
        *,
        owner: bool = True,
        takers: Sequence[Taker] = (),
        resume: bool = False,
        later: bool = False,
        unused: bool = False,
        first: bool = False,
        only_open: bool = False,
        stores: MutableMapping[str, SessionStore] | None = None,
    ) -> None:
        """Open or make the live directory and a new journal; with *resume*, load the session first; an *unused* txn has no files.

        Raises `BusyError` if another process owns it, or with *first* has ever begun it, `NotFoundError` if it has ended and *only_open* is
        set, `OSError`, and what `load` raises. With *later* a disk or directory that cannot be written does not raise: files are made once
        they can be, tried for each second, and records are kept until then. At its end it stands in *stores*: an interrupt after that
        leaves no store that cannot be found.
        """
        super().__init__(txn, options, owner=owner, unused=unused, first=first, again=resume, later=later)
        self.builder: SessionTreeBuilder | None = None
        self._core: ref[Core] | None = None
        self._upkeep = Upkeep(self._beat, self._tick, self._save, self._leave, self._problem)
        self._writer = SnapshotWriter(options.compression, reuse=not options.redacted)
        try:
            if owner:
                self._make_files()
            self._loaded = self._to_resume(only_open=only_open) if resume else None
            self.lost = self._loaded.damage.lost() if self._loaded else []  # of the session's files; its snapshots say it
            known = {} if unused or resume else known_vector(options.directory, txn, owner=owner, later=self._later)
            self.vector = self._loaded.vector if self._loaded else known  # per writer, the number of its last record in the tree
            self._begin_journal()
            self.stream = Stream([self.journal, *takers], options.write)
            if stores is not None:
                stores[txn] = self
        except BaseException as error:
            self._unmake(error)
            raise

    def _to_resume(self, *, only_open: bool) -> Loaded:
        loaded = load_to_resume(self.txn, self.options.directory, self._os)
        if only_open and loaded.session.ended_at is not None:
            raise NotFoundError(f"session {self.txn} has ended: there is nothing to end")
        return loaded

    def take_loaded(self) -> Loaded | None:
        """Return what was loaded to resume it, once."""
        loaded, self._loaded = self._loaded, None
        return loaded

    def attach(self, builder: SessionTreeBuilder) -> None:
        """Keep this builder's session from now on: a snapshot after each sub-agent, the last one at the end."""
        builder.core.listeners.append(self._session_ended)  # first: an interrupt leaves no builder whose end is not listened for
        self.builder, self._core = builder, ref(builder.core)
        self._upkeep.start()
        if self.owner:
            files_opened(self)
            make_room()
            settle_beside(self.options)

    @property
    def unwritten(self) -> int:
        """Records that are in no file at this moment."""
        return self.journal.lost - self._healed

    @property
    def has_lock(self) -> bool:
        """True while the session is this store's to write."""
        return self._lock.is_held

    @property
    def finished(self) -> bool:
        """True if the session has ended and all of it is saved and billed, or is left to who settles it: nothing is left to do here."""
        done = self._saved and self._billed and not self._left and self.journal.last == self._covered
        return self.ended and (done or self._is_left_to_disk)

    def snapshot(self) -> bool:
        """Write a snapshot now, on the caller's thread; False if it could not be written (`problems` says why)."""
        with self._writing:
            self._saved = side_by_side([self._write()]) == [True]
            return self._saved

    def save_soon(self) -> None:
        """Write a snapshot on the thread that saves."""
        self._upkeep.ask()

    def flush(self, level: str = "write", timeout: float = 5.0) -> bool:
        """Deliver what is pending, to the operating system (`write`), to the disk (`sync`) or into a snapshot (`snapshot`).

        True only if that is done. Snapshots are the owner's: in a process that joined, `snapshot` is `write`.
        """
        delivered = self.stream.flush()
        self.stream.alone(self._look_for_files)
        done = self._retry() and delivered
        if level == "sync":
            return done and (self.finished or self._upkeep.within(timeout, self._journals.sync))
        return self.save(timeout) if level == "snapshot" and self.owner else done

    def save(self, timeout: float) -> bool:
        """Have a snapshot written, and wait for it; False if it is not within *timeout* seconds, or could not be."""
        saved = self.finished or (not self._closed and self._upkeep.ask(timeout) and self._saved)
        return saved or self.finished or not self.owner  # another thread may have closed it meanwhile, or gone on with it

    def sync_soon(self) -> None:
        """Force to the disk what is due, together with other sessions' journals."""
        if not self.finished:
            self._upkeep.sync_soon(partial(self._journals.sync, gone=True))

    def wait(self, timeout: float) -> bool:
        """Wait until a snapshot that was asked for, as at the end, is tried; False if it is not within *timeout* seconds."""
        return self._upkeep.wait(timeout)

    def close(self, timeout: float = 0.25) -> bool:
        """Wait at most *timeout* seconds for the last snapshot; False if it is not done: the journal has all of it then."""
        until = monotonic() + timeout
        self.stream.flush()
        wanted = self.ended and not self.finished
        done = (self._upkeep.ask(timeout) if wanted else self._upkeep.wait(timeout)) and self._saved
        self._closed = True
        if self.finished and self.owner:
            self._upkeep.end()
            self._release_lock()
        else:
            self._upkeep.stop()
            if not self._upkeep.join(until - monotonic()):
                self._release_lock()
        self.stream.close()
        if self.journal.fd >= 0 or not self.finished:  # else later records begin a new file, for the process that settles the session
            self.stream.alone(lambda _: None if self.unwritable_reason and not self.journal.retry() else self.journal.close())
        if not self.owner:
            self._tried("settling", partial(settle, self.txn, self.options, leaving=True))  # it may have been the last to write to it
        self._expect_late()
        return done

    def let_go(self) -> bool:
        """Close a session that has ended: the process that settles it saves what is on disk, the rest is lost. False while it is saved."""
        if free := bool(if_free(self._writing, self._abandon)):
            self._beat()
            self._release_lock()
            self._expect_late()
        return free

    def discard(self) -> None:
        """Close a session whose begin was interrupted: nothing of it is kept, unless it was resumed."""
        if not self.again:
            self.stream.flush()
            self.journal.rest()
            self._remove_unbegun(self.journal.path)
        self.close(0.0)

    def forget(self) -> None:
        """In a forked child: leave the parent's files alone."""
        self._forget_files()
        self.stream.after_fork(())

    def _forget_files(self) -> None:
        self.journal.forget()
        self._release_lock()
        self.owner, self._later, self._healed, self._fresh = False, True, 0, False
        self._forget_problems()
        self._upkeep = Upkeep(self._beat, self._tick, self._save, self._leave, self._problem)

    def leave_to_parent(self) -> None:
        """In a child that was forked while the session began: record nothing into it."""
        self.forget()
        self.stream.close()

    def after_fork(self, flushed: MutableMapping[str, SessionStore] | None = None) -> None:
        """In a forked child: write a journal of one's own into the session; if that has ended, at a record, and stand in *flushed* then.

        Into one that is idle too only at a record: thousands may be open, and the child's descriptors are its program's.
        """
        lazy = self._is_idle
        self.forget()
        self.process = os.getpid()
        self._begin_again(flushed, lazy=lazy)
        self.unwritable_reason = self.journal.problem and self.unwritable_reason
        self.stream.after_fork((self.journal,))
        if flushed is not None:
            self.stream.close()  # no flush knows of it before its first record
            self._expect_late()
        if self._core is not None and (core := self._core()) is not None:
            core.listeners.clear()
            core.after_fork(self.journal.base)

    def go_late(self, seconds: float) -> bool:
        """Write a journal of one's own for what is recorded late, since another store of this process goes on with the session.

        False if that is just being saved, and for longer than so many seconds: it would be saved over what comes; or if there are records
        that no file takes.
        """
        return self.late_stores is not None or bool(if_free(self._writing, partial(self.stream.alone, self._go_late), seconds))

    def _go_late(self, _held: bool) -> bool:
        if not (self.journal.whole or self.journal.retry()) or self.unwritten:
            return False
        self._forget_files()
        self._begin_again({}, is_others=True)
        self.stream.go_to((self.journal,))
        self._expect_late()
        if self._core is not None and (core := self._core()) is not None:
            core.listeners.clear()
            core.count_from(self.journal.base)
        return True

    def _begin_again(self, late_stores: MutableMapping[str, SessionStore] | None, *, is_others: bool = False, lazy: bool = False) -> None:
        """Write a new journal of one's own, as if nothing had ended; what comes after the end stands in *late_stores*."""
        self.late_stores, self._is_others = late_stores, is_others
        self.ended = self._closed = self._billed = self._left = self._is_left_to_disk = False
        self._begin_journal(lazy=lazy)

    # Lock and journal

    def _abandon(self) -> bool:
        """Stop the upkeep of the session, and drop the records that the disk has not taken."""
        self._closed, self.builder = True, None
        self._upkeep.end()
        self.stream.close()
        self.stream.alone(self._abandon_journal)
        return True

    def _abandon_journal(self, _held: bool) -> None:
        self.journal.abandon(self._covered)
        if self._lock.is_held and self.journal.lost and not self.again:
            self._remove_unbegun()

    def _own_again(self) -> None:
        """Take the lock for what comes after the session was removed, unless another process has gone on with it."""
        with self._guard:  # the thread that writes a snapshot comes here too
            if self.owner and self._lock.fd < 0:
                if not self._lock.take_back(self.journal.forced):
                    known = self._take_again()
                    if any(number > self.vector.get(writer, 0) for writer, number in known.items() if writer != "0000"):
                        self._leave_to_disk()
                files_opened(self)
            else:
                self._upkeep.start()
            if self.late_stores is not None:
                self.late_stores.setdefault(self.txn, self)
            self.unwritable_reason = ""

    def _leave_to_disk(self) -> None:
        """Write journals alone from now on: another process has saved records of its own since, which the tree here has not."""
        self.journal.at_the_end = 1
        if not self._closed:
            self._closed = self._is_left_to_disk = True
            self.builder = None
            self._upkeep.end()
            self._expect_late().close_soon()

    def _begin_journal(self, *, lazy: bool = False) -> None:
        """Begin a journal of this process, if *lazy* at its first record; numbers of records and writers go on from all that were given."""
        first = self.vector.get("0000", 0) + 1 if self.owner else 1
        if self.owner and not (self._loaded or self._fresh):
            first = last_given(self.live, self.vector, self._os, later=self._later) + 1
        self.journal = Journal(
            self.live, self.txn, __version__, first=first, sync=self.options.sync, system=self._os, ready=self._own_again,
            reopened=self._opened_again, make=False
        )  # fmt: skip
        if self.late_stores is not None or lazy:
            self.journal.make_late()
        else:
            self.journal.make(0 if self.owner else None, max(map(int, self.vector), default=0), lazy=self._later, fresh=self._fresh)
            if not self.owner and was_writer(self.journal.ordinal, self.options.directory, self.txn):
                self.journal.close()  # which removes it
                self.journal.make_late()
        self._journals = Journals(self.journal, self._os, others=self.owner, fault=partial(self._problem, "files"), forced=self._beat)

    def _expect_late(self) -> Late:
        """Close the files again that records open which come later."""
        late = Late(self.txn, self._close_again, self.stream.alone, lambda: not self.journal.whole and LATE not in self.current_problems)
        self.stream.subscribe(late, ordered=False)
        return late

    def _close_again(self) -> bool:
        """Close again, after late records, as of an object that ends with the process; False if some are not written."""
        self.journal.close(1)  # it is tried again, and the program may wait for it
        self._beat()  # which notes what the disk has refused
        if_free(self._writing, self._release_lock)  # else the thread that saves it has the lock, and lets go of it then
        settle_later(self.txn, self.options, own=not self._is_others)
        (LATE_UNWRITTEN.add if self.unwritten else LATE_UNWRITTEN.discard)(self)
        if done := self.journal.whole or bool(self.unwritable_reason):
            for step in (LATE, "files", "snapshot"):  # which is another's to write
                self.current_problems.pop(step, None)
        return done or self._problem(LATE, OSError(f"records are in no file ({self.journal.problem})"))

    def _session_ended(self, path: str) -> None:
        if self.owner:  # else a signal's handler has forked this process while the session ended
            self.ended = self.ended or not path
            (self._upkeep.want if path else self._upkeep.ask)()

    def _tick(self) -> None:
        """Do what is due each second: tell that this process lives, force the journal to the disk, look for late records, heal gaps."""
        if not self._is_idle or self.ended or monotonic() >= self._looks_at:
            self._look_after()
        if self.options.sync != "write":  # also what a child has recorded that is gone
            self.sync_soon()

    def _look_after(self) -> None:
        self._looks_at = monotonic() + _LOOK_SECONDS
        self.stream.alone(self._look_for_files)
        self._beat()
        written = self._retry()
        self._missed = 0 if written else self._missed + 1
        no_descriptor = os.strerror(self.journal.errno) if self._missed == _MISSED and self.journal.errno in (EMFILE, ENFILE) else ""
        if (why := self.journal.refusal if self._missed == 1 else no_descriptor) and not self.unwritable_reason:
            self.report(nothing_saved(self.options.directory, why))
        late = (self.ended and (self._left or self.journal.last > self._covered)) or (not written and self.journal.fd >= 0)
        if self.owner and (late or not self._saved or (self.ended and not self.finished)):
            self._upkeep.want(soon=late)
        elif are_many():
            self.rest()

    def _retry(self) -> bool:
        """Write what the disk has not taken, if it takes it now; False if there are records that are in no file."""
        if not self.journal.whole:
            self.stream.alone(lambda held: held and self.journal.retry())
        return self.journal.whole and not self.unwritten

    def _leave(self) -> None:
        """Force the last second to the disk, and let go of the session."""
        self._beat()
        if self.options.sync != "write" and not self.finished:
            self._journals.sync()
        self._release_lock()

    def _save(self) -> Steps[None]:
        """Write the snapshot that is due."""
        with self._writing:
            try:
                self._saved = False if self.unwritable_reason else (yield from self._finish() if self.ended else self._write())
            except BaseException:
                self._saved = False
                raise
            for step in ("last snapshot", "background thread") if self._saved else ():
                self.current_problems.pop(step, None)

    # Snapshots and the end

    def _write(self, *, last: bool = False) -> Steps[bool]:
        if (builder := self.builder) is None or not self.owner:  # a signal's handler may have forked where it was asked for
            return False
        self.stream.flush()
        number, dropped = self.journal.last, self.journal.dropped  # before the nodes are settled: the file may be ahead, never behind
        if not builder.core.settle(SETTLE_SECONDS):
            return self._problem("snapshot", TimeoutError("another thread holds the session's lock"))
        try:
            if self._lock.fd < 0:
                self._own_again()
            if self._is_left_to_disk:
                return False
            if not last:  # then a reader that finds less in the journal than in the snapshot knows that it was cut
                self._journals.sync_own()
            self._begun, touched, position = number, builder.core.touched, {**self.vector, f"{self.journal.ordinal:04d}": number}
            yield from saving(builder.whole, position, touched, self.options, self._writer, last=last, lost=self.lost, only=self._unused)
        except Exception as error:  # noqa: BLE001 - the journal still has everything: say it and go on
            return self._problem("snapshot", error)
        self._covered, self._healed, self._final = number, dropped, number if last else -1
        for step in ("snapshot", "last snapshot", *(["files"] if self._lock.is_held else [])):
            self.current_problems.pop(step, None)
        return True

    def _finish(self) -> Steps[bool]:
        """The root session has ended: join other processes' journals, save, bill, remove. False if it is not saved and billed."""
        if (builder := self.builder) is None or builder.node.ended_at is None or not self.owner:
            return True
        if self._lock.rests:
            self._own_again()
        paths = journals(self.live)
        held = lock.hold(others := [path for path in paths if not path.name.startswith(OWNERS)], self._os)
        try:
            if self._billed and self.journal.last == self._covered and (held is None or not self._left):
                return True
            left = held is None or not self.stream.alone(partial(self._join, builder, others))
            self._left = True  # until the files are gone: the session is not closed before, which would leave them
            write = [] if self._final == self.journal.last and not others else [self._write(last=True)]
            self._billed &= not write
            for step in (*write, *([] if self._billed else [self._bill(builder)])):
                # while it holds others' journals it waits for no other session: those take descriptors
                if not (side_by_side([step]) == [True] if held else (yield from step)):
                    self._left = left
                    return False
            self._left = left or not self.stream.alone(partial(self._remove, paths))
            return True
        finally:
            lock.release(held or [], self._os)

    def _join(self, builder: SessionTreeBuilder, others: list[Path], held: bool) -> bool:
        """Fold the journals of processes that joined into the tree; False if the tree could not be locked for it."""
        if not (held and (others or lock.notes_of_refused(self.live))):
            return not others
        builder.core.settle()
        touched, damage = join(builder.whole, self.live, others, self.vector, self._os)
        damage.keep(self.txn, self.options.directory, self._os)
        builder.core.touched |= touched
        self.lost += [line for line in damage.lost() if line not in self.lost]
        return True

    def _bill(self, builder: SessionTreeBuilder) -> Steps[bool]:
        again, self.again = self.again, True
        try:
            bill = Ledger(self.options.directory.billing, self._os).bill(builder.node, again=again)
            if bill.lines:
                yield bill
        except OSError as error:
            return self._problem("ledger", error)
        self._billed = True
        self.current_problems.pop("ledger", None)
        return True

    def _remove(self, paths: list[Path], held: bool) -> bool:
        """Remove the journals, which the snapshot has; what is recorded later begins new ones. False if something came meanwhile."""
        if not held or self.journal.last != self._covered:
            return False
        try:
            if not self._closed:
                self.journal.rest()  # first: a thread that syncs it at this moment knows then why it is gone
            with self._guard:
                if self.journal.path not in paths:
                    paths += owners_journals(self.live)
                remove(self.live, paths, self._os, [self._lock.fd] if self._lock.fd >= 0 else [], fresh=self._fresh)
                self._lock.fd = -1
                files_closed(self)
        except OSError as error:
            return self._problem("removal of journals", error)
        self.current_problems.pop("removal of journals", None)
        return True
