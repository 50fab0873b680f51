"""What a program has run out of: its own results are what they are without optree."""

import os
import subprocess
import sys

import pytest

ALL_DESCRIPTORS = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
"""
"""Takes all descriptors that there are, until each of *held* is closed."""
PROGRAM = """
import os, sys, tempfile
import optree
optree.configure(base_dir=tempfile.mkdtemp(), console=False)
ran = []

@optree.tool
def tool(x):
    ran.append(x)
    return x * 2

ALL_DESCRIPTORS
print(tool(4), ran)
for one in held:
    os.close(one)

def deep(levels):
    return tool(1) if levels == 0 else deep(levels - 1)

ran.clear()
print({deep(sys.getrecursionlimit() - room) for room in range(12, 60)}, len(ran))
""".replace("ALL_DESCRIPTORS", ALL_DESCRIPTORS)


def test_no_descriptors_and_no_stack():
    """Without descriptors, and near the recursion limit, a decorated function runs once and gives its result."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (0, "8 [4]\n{2} 48\n") == (done.returncode, done.stdout), done.stderr


DEPTHS = """
import sys, tempfile
import optree
optree.configure(base_dir=tempfile.mkdtemp(), console=False)

def nothing():
    pass

def entered(scope):
    with scope:
        pass

def control():
    nothing()

WAYS = {
    "session": lambda: optree.session("a"), "turn": lambda: optree.turn(), "llm": lambda: optree.llm(model="m"),
    "tool": lambda: optree.tool("t"),
    "current": lambda: optree.current(), "current_session": lambda: optree.current_session(), "flush": lambda: optree.flush(),
    "health": lambda: optree.health(), "child_env": lambda: optree.child_env(), "wrap": lambda: optree.wrap(len),
    "configure": lambda: optree.configure(), "builder": lambda: optree.SessionTreeBuilder("a"),
    "log": lambda: op.log("x"), "think": lambda: op.think("x"), "chunk": lambda: op.chunk("x"),
    "account": lambda: op.account(input_tokens=1),
    "request": lambda: op.request(a=1), "response": lambda: op.response("x"), "node": lambda: op.node,
    "begin_op": lambda: op.builder.begin_op("tool", "t"), "begin_turn": lambda: op.builder.begin_turn(),
    "message": lambda: run.message("x"), "history": lambda: run.history(), "tree": lambda: run.tree,
    "snapshot": lambda: run.builder.snapshot(),
    "with session": lambda: entered(optree.session("a")), "with llm": lambda: entered(optree.llm("x")),
    "with turn": lambda: entered(optree.turn()), "with tool": lambda: entered(optree.tool("t")),
}

def deep(levels, call):
    return call() if levels == 0 else deep(levels - 1, call)

def possible(room, call):
    try:
        deep(sys.getrecursionlimit() - room, call)
    except RecursionError:
        return False
    return True

base = next(room for room in range(1, 60) if possible(room, lambda: control()))
with optree.session("run") as run, optree.turn(), optree.llm("x") as op:
    for name, call in WAYS.items():
        more = 1 if name.startswith("with") else 0
        refused = [room for room in range(base + more, base + more + 60) if not possible(room, call)]
        print(name, refused) if refused else None
    full = [said for said in optree.health()["problems"] if "stack was full" in said]
    print(len(full), optree.health()["failures"] > 0, len(WAYS))
"""


@pytest.mark.parametrize("pure", ["", "1"])
def test_every_way_in_at_every_depth(pure):
    """Where the program can call a function that calls another, each call of optree returns; it is counted and said once."""
    environ = os.environ | {"OPTREE_PURE": pure}
    done = subprocess.run([sys.executable, "-c", DEPTHS], capture_output=True, text=True, check=False, env=environ)
    assert (0, "1 True 29\n") == (done.returncode, done.stdout), done.stderr


FIRST_LLM = """
import os, resource, tempfile, optree
base = tempfile.mkdtemp()
optree.configure(base_dir=base, console=False)
@optree.llm(provider="openai", model="gpt-4o")
def model(messages):
    said = [{"message": {"role": "assistant", "content": "yes"}}]
    usage = {"prompt_tokens": 5, "completion_tokens": 7}
    return {"id": "1", "object": "chat.completion", "model": "gpt-4o", "choices": said, "usage": usage}
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True: held.append(os.open(os.devnull, os.O_RDONLY))
except OSError: pass
print(model([{"role":"user","content":"x"}])["id"])
with optree.session("a") as s, optree.turn(), optree.llm("x") as op:
    op.request([{"role":"user","content":"x"}]); op.account({"prompt_tokens": 5}); op.response({"a": 1})
    s.message("x"); s.history(); print(s.running)
for one in held: os.close(one)
print(model([{"role":"user","content":"x"}])["id"], optree.flush(), optree.health()["lost"] > 0)
print(len(optree.Directory.of(base).saved()))
"""


def test_the_first_llm_without_descriptors():
    """What is read for the first time when no descriptor is left keeps no call from its result; all is saved once there are some."""
    done = subprocess.run([sys.executable, "-c", FIRST_LLM], capture_output=True, text=True, check=False)
    assert (0, ["1", "True", "1 True False", "3"]) == (done.returncode, done.stdout.splitlines()), done.stderr
