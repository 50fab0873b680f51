"""What tests look at in what was recorded."""

from optree._tree import walk_ops, walk_sessions


def ops_of(recording, *names):
    """Return the ops that were recorded, those of some names if any are given."""
    return [op for _, _, op in walk_ops(recording.tree) if not names or op.name in names]


def calls_of(recording):
    """Return the calls of models."""
    return [op for op in ops_of(recording) if op.kind == "llm"]


def paths_of(recording):
    """Return the agents of all sessions."""
    return [session.call_path for session in walk_sessions(recording.tree)]
