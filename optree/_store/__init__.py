"""The store: journals, snapshots, the ledger, and the way back from disk to a tree.

In come a builder's records, out go files, and from files again trees and damage. Bytes of a journal are never changed, and a file is
touched by its one writer, or under the session's lock; what writes, renames, removes or syncs goes through `files/system.py`.
"""

from optree._store.opening import open_session, resume_session
from optree._store.reading.directory import Directory, Saved
from optree._store.reading.recovery import Damage, Loaded, load
from optree._store.session_store import SessionStore

__all__ = ["Damage", "Directory", "Loaded", "Saved", "SessionStore", "load", "open_session", "resume_session"]
