"""Writes the corpus: files in each format that a user may have, and what the optree that wrote them reads in them.

    python -m tests.corpus.make tests/corpus/NAME

Run by the commit whose files are to be kept, with NAME for its version: `tests/corpus/test_corpus.py` reads every such folder with the
code as it is now. Folders are not made anew; where more is read in a file than before, `expected.json` is changed for that. Since
calls in transcripts are counted, with unknown cost, so it was for `transcript`. What is recorded follows from SEED; ids and times are those
of the run.
"""

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from shutil import copy, copytree

import zstandard

from tests.corpus.summary import ledger, loaded, summary

SEED = 7
WORDS = (
    "sky",
    "blue",
    "light",
    "air",
    "red",
    "sun",
    "ünïcode",
    "天",
    "scatters",
    "wave",
    "short",
    "long",
    '"quoted"',
    "back\\slash",
    "a\tb\nc",
)
FORMATS = ("markdown", "events", "events-v1", "ai-agent", "ai-agent-v1", "ai-agent-v3", "json", "transcript")
ROOT = Path(__file__).resolve().parents[2]


def text(random, words=6):
    """Return some words."""
    return " ".join(random.choices(WORDS, k=words))


def model(random, history):
    """Call a model that does not exist, with all that was said before."""
    import optree

    with optree.llm(provider="openai", model="gpt-4o") as op:
        history.append({"role": "user", "content": text(random)})
        op.request(messages=list(history), temperature=random.random())
        op.think(text(random))
        op.think(text(random))
        op.log(text(random), "WRN", details={"attempt": 1})
        op.account(input_tokens=random.randrange(2000), output_tokens=random.randrange(90), cost_usd=random.randrange(10**6) / 1e6)
        history.append({"role": "assistant", "content": text(random)})
        op.response(history[-1]["content"])


def tool(random):
    """Call a tool, which fails now and then."""
    import optree

    try:
        with optree.tool("search", provider="mcp") as op:
            op.request(query=text(random), limit=random.randrange(9))
            op.log(text(random))
            found = {"found": [text(random), None, 3.5, True]}
            op.response(found[random.choice(["found", text(random)])])
    except LookupError:
        pass


def program(way):
    """Record a session, up to where its way of ending says."""
    import optree

    rng, history = random.Random(SEED), [{"role": "system", "content": "be brief"}]
    with optree.session("lead", ticket="A-17") as session:
        session.title("Why the sky is blue")
        session.message({"role": "user", "content": text(rng)}, message_id="m1")
        calls = [{"id": "c1", "type": "function", "function": {"name": "task", "arguments": '{"name": "reader"}'}}]
        session.message({"role": "assistant", "content": None, "tool_calls": calls}, message_id="m2", cause="m1")
        for _ in range(2):
            with optree.turn(user=text(rng)):
                model(rng, history)
                tool(rng)
                tool(rng)
                with optree.session("reader") as reader, optree.turn(user=text(rng)):
                    reader.message({"role": "user", "content": text(rng)}, cause="m2")
                    model(rng, [])
        with optree.turn(user=text(rng)), optree.tool("open") as op:
            op.log("the last line")
            if way == "forked":
                if not (pid := os.fork()):
                    tool(rng)
                    optree.flush()
                    os._exit(0)
                os.waitpid(pid, 0)
                subprocess.run(agent("joined"), check=True, env=os.environ | optree.child_env(), stdout=subprocess.DEVNULL)
            if way not in ("ended", "joined"):
                optree.flush()
                tell(session.txn)
                sys.stdin.readline() if way != "closed" else hang_at_the_snapshot()
    tell(session.txn)


def tell(said):
    """Say something to the process that keeps the files."""
    sys.stdout.write(f"{said}\n")
    sys.stdout.flush()


def hang_at_the_snapshot():
    """Let the session end in its journal, and no snapshot of it be put into place."""

    def hang(*_, **__):
        tell("hangs")
        threading.Event().wait()

    os.replace = os.rename = os.link = hang


def agent(way):
    """Return the command that runs the program, with nothing of this machine in it."""
    return [sys.executable, "-c", f"{UNNAMED}; from tests.corpus import make; make.program({way!r})"]


UNNAMED = "import os; real = os.uname(); os.uname = lambda: os.uname_result((real[0], 'host', *real[2:]))"


def environment(base):
    """Return the variables to run it with."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "exporters")])
    return os.environ | {"OPTREE_BASE_DIR": str(base), "OPTREE_CONSOLE": "0", "PYTHONPATH": path}


def journals(way, base, target):
    """Keep the journals of a session: those of a running process, a killed one, one with processes that joined, and one that has ended."""
    with subprocess.Popen(agent(way), env=environment(base), cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        txn = process.stdout.readline().strip()
        if way == "closed":
            process.stdout.readline()
        if way != "live":
            process.send_signal(signal.SIGKILL)
            process.wait()
        copytree(base / "sessions" / f"{txn}.live", target / way / f"{txn}.live")
        process.kill()


def snapshots(base, target):
    """Keep a session that has ended as zstd, gzip and plain JSON, its ledger, and its exports; return its txn."""
    environ = environment(base)
    txn = subprocess.run(agent("ended"), env=environ, cwd="/", capture_output=True, text=True, check=True).stdout.split()[-1]
    saved = base / "sessions" / f"{txn}.json.zst"
    plain = zstandard.ZstdDecompressor().stream_reader(saved.read_bytes(), read_across_frames=True).read()
    for folder, name, data in (
        ("zstd", f"{txn}.json.zst", saved.read_bytes()),
        ("gzip", f"{txn}.json.gz", gzip.compress(plain, mtime=0)),
        ("plain", f"{txn}.json", plain),
    ):
        (target / folder).mkdir()
        (target / folder / name).write_bytes(data)
    copy(base / "accounting.jsonl", target / "accounting.jsonl")
    for name in FORMATS:
        command = [sys.executable, "-m", "optree", "export", txn, "--to", name, "-o", f"{target / name}/"]
        subprocess.run(command, env=environ, capture_output=True, check=True)
    (target / "otlp").mkdir()
    (target / "otlp" / "spans.bin").write_bytes(payload(txn, environ))


def payload(txn, environ):
    """Return what a collector gets of a session, as OTLP over HTTP."""
    bodies = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/v1/traces":
                bodies.append(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environ = environ | {"OTEL_RESOURCE_ATTRIBUTES": "host.id=0,host.name=host,ip=127.0.0.1"}
        environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "OPTREE_OTEL_CONTENT": "span_only"}
        subprocess.run([sys.executable, "-m", "optree", "export", txn], env=environ, capture_output=True, check=True)
        server.shutdown()
    return b"".join(bodies)  # requests follow one another as one message of protobuf


def main(target):
    """Write the corpus and, beside it, what is read in it."""
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as base:
        snapshots(Path(base), target)
        for way in ("live", "killed", "forked", "closed"):
            journals(way, Path(base), target)
    folders = [folder for folder in sorted(target.iterdir()) if folder.is_dir()]
    expected = {"accounting": ledger(target)} | {folder.name: summary(loaded(folder)) for folder in folders}
    each = [f'"{name}": {{\n{members(one)}\n}}' for name, one in expected.items()]
    (target / "expected.json").write_text("{\n" + ",\n".join(each) + "\n}\n")


def members(one):
    """Return the members of a summary as JSON, a line each, and a line for each node."""
    return ",\n".join(f'"{name}": {lines(value)}' for name, value in one.items())


def lines(value):
    """Return a value as JSON: a list with a line for each item."""
    if not isinstance(value, list) or not value:
        return json.dumps(value, ensure_ascii=False)
    return "[\n" + ",\n".join(json.dumps(item, ensure_ascii=False) for item in value) + "\n]"


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
