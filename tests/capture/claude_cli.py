"""A child process in place of Claude Code, which the Claude Agent SDK starts: it says and does what a script has, a step a line.

Steps: `say` a message, wait for what the `user` says, `call` the SDK back and wait for its answer, be `interrupt`ed, `wait` to be left,
be `kill`ed, `exit` with a code. What it was sent is kept beside the script.
"""

import json
import os
import signal
import sys


def main(script, kept):
    """Do the steps of a script."""

    def say(value):
        sys.stdout.write(json.dumps(value) + "\n")
        sys.stdout.flush()

    def hear(wanted):
        """Return the next message that is wanted; what comes before it is answered, or passed over."""
        for line in sys.stdin:
            kept.write(line)
            kept.flush()
            told = json.loads(line)
            if told["type"] == "control_request":
                say({"type": "control_response", "response": {"subtype": "success", "request_id": told["request_id"], "response": {}}})
            if wanted in (told["type"], told.get("request", {}).get("subtype")):
                return told
        return None

    hear("initialize")
    for number, line in enumerate(script):
        kind, value = next(iter(json.loads(line).items()))
        if kind == "say":
            say(value)
        elif kind == "user":
            hear("user")
        elif kind == "call":
            say({"type": "control_request", "request_id": f"cli-{number}", "request": value})
            hear("control_response")
        elif kind == "interrupt":
            hear("interrupt")
        elif kind == "wait":
            hear("")
        elif kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == "exit":
            sys.exit(value)
    hear("")


if __name__ == "__main__":
    with open(sys.argv[1]) as script, open(f"{sys.argv[1]}.sent", "w") as kept:
        main(script, kept)
