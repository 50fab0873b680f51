"""A team of agents dies in the middle of its work, and comes back: `make demo`.

It starts a real language model on this machine, runs `research_team.py` with optree, kills it with SIGKILL while two of its agents are
working, loads what is on disk, resumes it to its end, and checks that nothing that was acknowledged is missing.
Where a Jaeger is at hand, or with --jaeger, the run is mirrored to it, and in the end each node must stand there as exactly one span.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jaeger_beside import Beside, jaeger_beside

import optree
from optree._ids import new_txn

HERE = Path(__file__).resolve().parent
KILL_AFTER_CALLS = 4
"""Finished model calls after which the run is killed, once two more are on their way."""
LINE = re.compile(r"\[txn:(?P<txn>[^]]+)] \[path:(?P<path>[^]]*)] (?P<agent>.*?) \[(?P<severity>\w+)] (?P<side>[→←]) (?P<kind>\w+) ")
TEAM = [sys.executable, str(HERE / "research_team.py")]
OPTREE = [sys.executable, "-m", "optree"]


def main() -> int:
    """Run the demo; 0 if all that was acknowledged came back."""
    parser = argparse.ArgumentParser(description="A team of agents dies in the middle of its work, and comes back.")
    parser.add_argument("--dir", default=".demo", help="where its sessions are kept (default: .demo)")
    parser.add_argument("--jaeger", action="store_true", help="fail if there is no Jaeger to mirror it to")
    options = parser.parse_args()
    os.environ["OPTREE_BASE_DIR"] = options.dir
    txn = new_txn()
    with jaeger_beside(txn, must=options.jaeger) as jaeger:
        code = acts(txn, jaeger)
        if jaeger is not None and sys.stdin.isatty():
            print(f"\nJaeger goes on until you press Enter: {jaeger.address()}", flush=True)
            with suppress(KeyboardInterrupt):
                sys.stdin.readline()
    return code


def acts(txn: str, jaeger: Beside | None) -> int:
    """Play it; returns the exit code."""
    started = time.monotonic()
    if jaeger is not None:
        print(f"Mirrored to a real Jaeger on this machine; watch it there: {jaeger.address()}", flush=True)
    title("1. A real language model on this machine")
    with model_server() as url:
        print(f"SmolLM2-135M answers at {url}")
        os.environ["OPENAI_BASE_URL"] = url
        title("2. A research team of four agents: the lines are optree's, live")
        seen = run_and_kill(txn)
        title("3. Killed with SIGKILL. What is on disk?")
        show("load", txn)
        lost = missing(seen, optree.load(txn))
        if jaeger is not None:
            print(f"\nJaeger has {jaeger.count()} spans of it: what had ended. Look: {jaeger.address()}", flush=True)
        title("4. Resumed: finished steps are not asked again")
        resumed = subprocess.run([*OPTREE, "load", txn, "--verbose", "--", *TEAM], check=False).returncode
    title("5. The whole tree, over both lives")
    show("tree", txn)
    show("cost", txn)
    if jaeger is not None:
        show("export", "--pending")
    return proof(txn, seen, lost, resumed, jaeger, time.monotonic() - started)


def run_and_kill(txn: str) -> list[re.Match[str]]:
    """Run the team until it is in the middle of its work, and kill it; returns the lines that it had shown."""
    process = subprocess.Popen(TEAM, env={**os.environ, "OPTREE_VERBOSE": "1", "OPTREE_TXN": txn}, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    seen: list[re.Match[str]] = []
    finished = on_the_way = 0
    for line in process.stderr:
        print(line, end="", flush=True)
        found = LINE.match(line)
        if found is None:
            continue
        seen.append(found)
        if found["kind"] == "llm" and found["severity"] == "VRB":
            on_the_way += 1 if found["side"] == "→" else -1
            finished += found["side"] == "←"
        if finished >= KILL_AFTER_CALLS and on_the_way >= 2:  # both readers are waiting for the model
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
    if not seen:
        raise SystemExit("demo: the team showed no line; run examples/research_team.py by hand to see why")
    return seen


def missing(seen: list[re.Match[str]], loaded: optree.Loaded) -> list[str]:
    """Return what was shown before the kill and is not in the loaded tree: begun nodes, and ends of ops."""
    there = {"": loaded.session.ended_at} | {op.path: op.ended_at for _, _, op in optree.walk_ops(loaded.session)}
    there |= {turn.path: turn.ended_at for session in optree.walk_sessions(loaded.session) for turn in session.turns}
    begun = [line["path"] for line in seen if line["path"] not in there]
    ended = [line["path"] for line in seen if line["side"] == "←" and line["severity"] == "VRB" and there.get(line["path"]) is None]
    return begun + ended


def proof(txn: str, seen: list[re.Match[str]], lost: list[str], resumed: int, jaeger: Beside | None, seconds: float) -> int:
    """Print and check what must hold; returns the exit code."""
    loaded = optree.load(txn)
    ops = [op for _, _, op in optree.walk_ops(loaded.session)]
    ledger = [line for line in optree.Directory.of().billing.read_text().splitlines() if f'"{txn}:' in line]
    entries = sum(len(op.accounting) for op in ops)
    cost = sum(entry.cost_usd or 0.0 for op in ops for entry in op.accounting)
    interrupted = sum(op.status == "interrupted" for op in ops)
    checks = {
        f"{len(seen)} lines were shown before the kill; of what they say, {len(lost)} is missing": not lost,
        f"the resumed run ended with exit code {resumed}, the session with {loaded.session.status}": resumed == 0
        and bool(loaded.session.success),
        f"{len(ops)} ops have {len({op.op_id for op in ops})} different ids": len({op.op_id for op in ops}) == len(ops),
        f"{interrupted} ops are marked as interrupted, none is open": interrupted > 0 and all(op.ended_at for op in ops),
        f"the ledger has {len(ledger)} entries, the tree {entries}": len(ledger) == entries,
        f"entries add up to ${cost:.8f}, the total says ${loaded.session.totals.cost_usd:.8f}": abs(cost - loaded.session.totals.cost_usd)
        < 1e-12,
        f"damage: {loaded.damage.state}": loaded.damage.state == "clean",
        **(jaeger.checks(loaded) if jaeger is not None else {}),
    }
    title("6. Did it hold?")
    for text, holds in checks.items():
        print(f"{'✓' if holds else '✗'} {text}")
    print(f"\n{seconds:.0f} s in all. Look around: OPTREE_BASE_DIR={os.environ['OPTREE_BASE_DIR']} .venv/bin/optree tree last")
    return 0 if all(checks.values()) else 1


@contextmanager
def model_server() -> Iterator[str]:
    """Start the model server; gives its base URL, and ends it afterwards."""
    server = subprocess.Popen([sys.executable, str(HERE / "model_server.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        url = server.stdout.readline().strip()
        if not url:
            raise SystemExit(server.wait())
        yield url
    finally:
        server.stdin.close()
        server.wait(10)


def show(command: str, txn: str) -> None:
    """Run one command of optree, and show that it is run."""
    print(f"$ optree {command} {txn}", flush=True)
    subprocess.run([*OPTREE, command, txn], check=False)


def title(text: str) -> None:
    """Print a heading."""
    sys.stdout.flush()
    print(f"\n── {text} ──", flush=True)


if __name__ == "__main__":
    sys.exit(main())
