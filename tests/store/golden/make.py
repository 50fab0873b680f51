"""Made the golden files; run again only for a new version of a format: `python -m tests.store.golden.make DIRECTORY`.

The files of a released version are never made anew: they prove that what people have on disk stays readable.
"""

import gzip
import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

import zstandard

from optree._builder import SessionTreeBuilder
from optree._records import FORMAT
from optree._store import open_session
from optree._store.reading.directory import Directory
from optree._store.reading.snapshot import VERSION
from optree._store.saving import StoreOptions
from optree.testing import Ticking


def program(builder: SessionTreeBuilder) -> None:
    """Do one of everything; the second turn stays open."""
    builder.set_title("Why", status="asking")
    builder.append_message({"role": "user", "content": "why?"})
    first = builder.begin_turn(user="why?", system="be brief")
    model = builder.begin_op("llm", "openai:gpt-4o", attributes={"provider": "openai", "model": "gpt-4o"})
    model.request([{"role": "user", "content": "why?"}], temperature=0)
    model.think("because ")
    model.think("of that")
    model.log("retrying after 429", "WRN", direction="response")
    model.account(input_tokens=812, output_tokens=64, cost_usd=0.0031, latency=12.5)
    model.response("because")
    model.end(reasoning="because of that")
    call = builder.begin_op("session", "reader", parent=model)
    child = builder.attach_child_session(call, "reader")
    inner = child.begin_turn(user="read")
    tool = child.begin_op("tool", "mcp:fetch")
    tool.request(url="https://example.org/ünïcode")
    tool.log("fetching", details={"size": 3})
    tool.end("failed", "404")
    inner.end()
    child.end_session("failed", "nothing to read")
    call.end("failed", "nothing to read")
    first.end()
    builder.begin_turn(user="and now?")
    builder.begin_op("tool", "wait").log("waiting")


def main(target: Path) -> None:
    """Write the golden files."""
    with tempfile.TemporaryDirectory() as name, patch.object(socket, "gethostname", return_value="host"):
        directory = Directory.of(name)
        with patch.object(os, "getpid", return_value=1):
            builder, store = open_session("asker", StoreOptions(directory, now=Ticking()), txn="golden-1")
        program(builder)
        store.flush()
        shutil.copyfile(store.journal.path, target / f"journal-{FORMAT}.jsonl")
        builder.end_session("ok", final_report={"answer": "because", "session": 1})
        store.close(5.0)
        snapshot = directory.snapshot("golden-1")
        shutil.copyfile(snapshot, target / f"snapshot-{VERSION}.json.zst")
        plain = zstandard.ZstdDecompressor().stream_reader(snapshot.read_bytes(), read_across_frames=True).read()
        (target / f"snapshot-{VERSION}.json").write_bytes(plain)
        (target / f"snapshot-{VERSION}.json.gz").write_bytes(gzip.compress(plain, mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
