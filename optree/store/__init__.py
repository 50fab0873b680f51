"""The store: journals, snapshots, the ledger, and the way back from disk to a tree."""

from optree.store.directory import Directory, Saved
from optree.store.recovery import Damage, Loaded, load
from optree.store.session_store import SessionStore, open_session, resume_session

__all__ = ["Damage", "Directory", "Loaded", "Saved", "SessionStore", "load", "open_session", "resume_session"]
