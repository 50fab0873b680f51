"""What the tests of the event log share: logs with a ticking clock, the seed's own examples, and the queries that people run."""

import re
import subprocess
from pathlib import Path

from optree.testing import START, Ticking
from optree_formats.markdown import EventLog, LogEvent, tool_call, tool_error

STARTED = START
"""When the clock of `log` begins, in epoch seconds."""

SEED = """# Session Log: sess-001

Started: 2025-12-30T12:00:00Z
Protocol: EVENT-LOG/0.2

---

## 12:00:00 — Session Start

<!-- Minimal metadata for session initialization -->

```yaml
type: session_start
session_id: sess-001
protocol: EVENT-LOG/0.2
```

---

## 12:00:05 — Tool Call: fs.read

Reading parser to check recursive descent handling.

```yaml
type: tool_call
tool: fs.read
call_id: call-001
args:
  path: src/parser.ts
  # Check if the recursive descent handles nested expressions
  # This is part of the expression parser audit
  why: "Check if recursive descent handles nested expressions"
```

---

## 12:00:05 — Tool Result: fs.read

```yaml
type: tool_result
call_id: call-001
success: true
duration_ms: 12
result:
  lines: 50
  # File contains the expected parseExpression function
```

---
"""
"""The log that the seed shows, byte for byte."""


def log(directory, name="sess-001", **more):
    """Open a log in *directory*, with a clock that ticks by seconds."""
    return EventLog(directory / name, now=more.pop("now", Ticking(STARTED, 1.0)), **more)


def call(number=1, tool="fs.read", **more):
    """Return a tool call."""
    return tool_call(tool, {"path": f"src/{number}.ts"}, why=f"look at {number}", call_id=f"call-{number:03}", **more)


def result(number=1, **more):
    """Return a call's result."""
    return LogEvent("tool_result", call_id=f"call-{number:03}", success=True, duration_ms=12, result={"lines": 50}, **more)


def error(number=1, code="NOT_FOUND", **more):
    """Return a call's failure."""
    return tool_error(f"call-{number:03}", code, f"File not found: src/{number}.ts", suggestion="Check if it was renamed", **more)


def session(directory, calls=4, **more):
    """Write a whole session: calls with results, one that fails, a repair, and the end; returns its log's path."""
    made = log(directory, **more)
    made.append(LogEvent("user_message", length=5, content="Hello", narrative="The user greets."))
    for number in range(1, calls + 1):
        made.append(call(number, narrative=f"Look at {number}.").comment("args.why", f"comment {number}"))
        made.append(result(number))
    made.append(call(99))
    made.append(error(99).comment("error.message", "the file was renamed"))
    made.append(LogEvent("repair", demon="checklist_repairer", action="created", path="hot.yml").comment("", "was missing"))
    made.end(retrospective="All done.")
    return made.path


def naive_blocks(text):
    """Return the blocks that the seed's own extractor finds."""
    return re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)


def shell(command, directory: Path):
    """Run a shell's command line in a directory; returns what it prints."""
    run = subprocess.run(["bash", "-c", command], cwd=directory, capture_output=True, text=True, timeout=30, check=True)
    return run.stdout.replace("\0", "\n")
