"""What is in a session's files, as JSON: by the command line, so that it says what users get."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import copy, copytree

ROOT = Path(__file__).resolve().parents[2]
START = 1_700_000_000
TXN = f"{'?' * 8}-{'?' * 8}.*"


def loaded(folder):
    """Return what `optree load --json` says of the one session in a copy of a folder."""
    with tempfile.TemporaryDirectory() as name:
        here = Path(copytree(folder, Path(name) / "sessions"))
        for path in here.rglob("*"):
            os.utime(path, (START, START))  # where a format holds no times, the file's is taken
        if folder.name == "otlp":
            optree("import", here / "spans.bin", base=name)
            return json.loads(optree("load", "last", "--json", base=name))
        [named] = [path for path in here.glob(TXN) if "summary" not in path.name]  # beside it may be files that it refers to
        return json.loads(optree("load", named.stem if named.suffix == ".live" else named, "--json", base=name))


def ledger(corpus):
    """Return what a ledger beside its session adds up to, once it is checked against that session."""
    with tempfile.TemporaryDirectory() as name:
        copytree(corpus / "zstd", Path(name) / "sessions")
        copy(corpus / "accounting.jsonl", name)
        optree("ledger", "--check", base=name)
        found = json.loads(optree("ledger", "--json", base=name), object_hook=_without_later)
        return {name: value for name, value in found.items() if name.startswith(("total", "by"))}


def _without_later(members):
    """Return an object of JSON without what version 0.1.0 did not count."""
    return {name: value for name, value in members.items() if name != "unknownTokens"}


def optree(*args, base):
    """Run the command line in a directory, and return what it prints."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OPTREE_")}
    environ |= {"OPTREE_BASE_DIR": str(base), "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "exporters")])}
    run = subprocess.run(
        [sys.executable, "-m", "optree", *map(str, args)], env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert 0 == run.returncode, run.stderr
    return run.stdout


def summary(found):
    """Return what a loaded session has: how it stands, its sums, and each node."""
    return {
        "txn": found["txn"],
        "agent": found["agentId"],
        "state": found["state"],
        "damage": found["damage"]["state"],
        "open": found["open"],
        "totals": found["totals"],
        "nodes": nodes(found["session"]),
    }


def nodes(session):
    """Return each session, turn and op, in order, as a list: path, what it is, status, error, times, and what it holds."""
    made = [[session["path"], session["callPath"], *ended(session), session.get("title"), session.get("messages", [])]]
    for turn in session["turns"]:
        made.append([turn["path"], f"turn {turn['index']}", *ended(turn), turn.get("prompts")])
        for op in turn["ops"]:
            made.append(
                [
                    op["path"],
                    f"{op['kind']} {op['name']}",
                    *ended(op),
                    [[entry["severity"], entry["message"]] for entry in op["logs"]],
                    [[entry.get(name) for name in ("status", "tokens", "costUsd")] for entry in op["accounting"]],
                    "".join(chunk["text"] for chunk in op.get("reasoning", {}).get("chunks", [])),
                    [op.get(side, {}).get("payload") for side in ("request", "response")],
                ]
            )
            made += nodes(op["childSession"]) if "childSession" in op else []
    return made


def ended(node):
    """Return how and when a node ended."""
    return [node.get("status"), node.get("error"), node["startedAt"], node.get("endedAt")]
