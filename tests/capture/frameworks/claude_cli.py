"""A child process in place of Claude Code, which the Claude Agent SDK starts: it says and does what a script has, a step a line.

Steps: `say` a message, wait for what the `user` says, `call` the SDK back and wait for its answer, be `interrupt`ed, `wait` until its
input ends (after the prompt, where the SDK cannot be called back), `work` until nobody reads it, be `kill`ed, `exit` with a code. What it
was sent is kept beside the script.
"""

import json
import os
import select
import signal
import sys
from pathlib import Path


class Child:
    """Speaks with the SDK by lines of JSON."""

    def __init__(self, kept):
        self.kept = kept
        self.number = 0

    def say(self, value):
        """Say a message."""
        sys.stdout.write(json.dumps(value) + "\n")
        sys.stdout.flush()

    def hear(self, wanted):
        """Hear messages, up to one that is wanted; each request is answered."""
        for line in sys.stdin:
            self.kept.write(line)
            self.kept.flush()
            told = json.loads(line)
            if told["type"] == "control_request":
                known = {"subtype": "success", "request_id": told["request_id"], "response": {}}
                self.say({"type": "control_response", "response": known})
            if wanted in (told["type"], told.get("request", {}).get("subtype")):
                return

    def call(self, request):
        """Call the SDK back, and wait for its answer."""
        self.number += 1
        self.say({"type": "control_request", "request_id": f"cli-{self.number}", "request": request})
        self.hear("control_response")

    def work(self):
        """Go on until nobody reads what is said."""
        read = select.poll()
        read.register(sys.stdout, 0)  # an error is told whatever is asked for
        read.poll()

    def run(self, script):
        """Do the steps of a script."""
        does = {
            "say": self.say,
            "call": self.call,
            "user": lambda _: self.hear("user"),
            "interrupt": lambda _: self.hear("interrupt"),
            "wait": lambda _: self.hear(""),
            "work": lambda _: self.work(),
            "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
            "exit": sys.exit,
        }
        self.hear("initialize")
        for line in script:
            for kind, value in json.loads(line).items():
                does[kind](value)
        self.hear("")


if __name__ == "__main__":
    script = Path(sys.argv[1])
    with script.with_name(f"{script.name}.sent").open("w") as kept:
        Child(kept).run(script.read_text().splitlines())
