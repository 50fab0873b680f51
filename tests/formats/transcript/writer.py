"""A process that appends to a transcript: `writer.py DIRECTORY RUN_ID LINES`; it waits for the file `go` there."""

import sys
from pathlib import Path
from time import sleep

from optree_formats.transcript import Recorder

directory, run_id, lines = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
recorder = Recorder(directory, run_id)
print("ready", flush=True)  # noqa: T201 - its parent waits for it
while not (directory / "go").exists():
    sleep(0.001)
for number in range(lines):
    assert recorder.step_started("a", f"step {number} " + "x" * (number % 7 * 1000), "command")
recorder.close()
