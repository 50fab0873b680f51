"""What a program has run out of: its own results are what they are without optree."""

import subprocess
import sys

PROGRAM = """
import os, resource, sys, tempfile
import optree
optree.configure(base_dir=tempfile.mkdtemp(), console=False)
ran = []

@optree.tool
def tool(x):
    ran.append(x)
    return x * 2

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
print(tool(4), ran)
for one in held:
    os.close(one)

def deep(levels):
    return tool(1) if levels == 0 else deep(levels - 1)

ran.clear()
print({deep(sys.getrecursionlimit() - room) for room in range(12, 60)}, len(ran))
"""


def test_no_descriptors_and_no_stack():
    """Without descriptors, and near the recursion limit, a decorated function runs once and gives its result."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (0, "8 [4]\n{2} 48\n") == (done.returncode, done.stdout), done.stderr
