import os
import signal
import subprocess
import sys
from pathlib import Path

from optree.conversation import AgentCreated, Session, read_events
from tests.conversation.conftest import lines

ROOT = Path(__file__).resolve().parents[2]
WRITERS, EACH = 4, 500
WRITER = """
import sys
from optree.conversation import Session
from optree._store.files import line_log
line_log.WAIT_SECONDS = 30  # however busy the machine is
session = Session.load(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
agent = session.create_agent(name=sys.argv[2])
for number in range(int(sys.argv[3]) - 1):
    session.log_transcript_entry(agent, {"role": "user", "content": f"{sys.argv[2]} {number} " + "x" * (number % 700)})
"""


def test_four_processes(file):
    """Four processes log 500 lines each into one file: none is torn or out of order, and no message or agent id is given twice (S1-36)."""
    Session(file).close()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WRITER, str(file)]
    writers = [
        subprocess.Popen(
            [*command, f"writer{number}", str(EACH)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for number in range(WRITERS)
    ]
    assert ["ready\n"] * WRITERS == [writer.stdout.readline() for writer in writers]
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=120)
    assert [0] * WRITERS == [writer.returncode for writer in writers]

    found = lines(file)
    assert [f"msg_{number:03d}" for number in range(1, WRITERS * EACH + 1)] == [line["message_id"] for line in found]
    events, faults = read_events(file)
    assert [] == faults
    created = [event for event in events if isinstance(event, AgentCreated)]
    assert {f"agent_{number:03d}" for number in range(1, WRITERS + 1)} == {event.agent_id for event in created}
    for one in created:
        said = [int(event.content.split()[1]) for event in events if event.agent_id == one.agent_id and event is not one]
        assert list(range(EACH - 1)) == said


def test_agents_of_another_process(file):
    """What another process logs is known here too: its agents are listed, and can be revived (S1-21, S1-34)."""
    with Session(file) as session:
        session.create_agent(name="here")
        with Session.load(file) as other:
            there = other.create_agent(name="there")
            other.log_transcript_entry(there, {"role": "user", "content": "Hi"})
        assert ["here", "there"] == [record.name for record in session.list_agents().values()]
        assert [{"role": "user", "content": "Hi"}] == session.revive(there).transcript
        assert "agent_003" == session.allocate_agent_id()


def test_fork(file):
    """A forked process that goes on with a session of its parent gives no id that the parent gives (S1-36)."""
    with Session(file) as session:
        session.create_agent(name="parent")
        children = []
        for number in range(3):
            pid = os.fork()
            if pid == 0:
                try:
                    agent = session.create_agent(name=f"child{number}")
                    for count in range(50):
                        session.log_transcript_entry(agent, {"role": "user", "content": str(count)})
                finally:
                    os._exit(0)
            children.append(pid)
        for _ in range(50):
            session.log_transcript_entry("agent_001", {"role": "user", "content": "x"})
        assert [0] * 3 == [os.waitpid(pid, 0)[1] for pid in children]
        assert 4 == len(session.list_agents())
    assert [f"msg_{number:03d}" for number in range(1, 205)] == [line["message_id"] for line in lines(file)]


KILLED = """
import os, signal, sys
from pathlib import Path
from optree.conversation import Session
from optree.conversation.file_home import FileHome
from optree._store.files.system import OS

class Killed(OS):
    def write_all(self, fd, data):
        if os.environ.get("now"):
            os.kill(os.getpid(), signal.SIGKILL)
        super().write_all(fd, data)

session = Session.over(FileHome(Path(sys.argv[1]), system=Killed()))
session.create_agent()
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
os.environ["now"] = "1"
session.log_transcript_entry("agent_001", {"role": "user", "content": "x"})
"""


def test_a_worker_keeps_no_lock(file):
    """A writer is killed with the file locked while a process that it forked lives on: others write at once, under the next id."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", KILLED, str(file)], env=environment, stdin=subprocess.PIPE) as writer:
        assert -signal.SIGKILL == writer.wait(20)
        with Session.load(file) as session:
            assert "msg_002" == session.log_transcript_entry("agent_001", {"role": "user", "content": "y"})
    assert ["msg_001", "msg_002"] == [line["message_id"] for line in lines(file)]


LOCKED = """
import fcntl, sys
from optree.conversation import Session
session = Session(sys.argv[1])
with open(sys.argv[1]) as other:
    fcntl.flock(other, fcntl.LOCK_EX)
    print(session.log_transcript_entry("agent_001", {"role": "user", "content": "x"}))
"""


def test_the_end_of_a_program_writes_what_is_late(file):
    """What was logged while the file was locked is in it when the program has ended, though nobody closed the session."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "-c", LOCKED, str(file)], env=environment, capture_output=True, text=True, check=True)
    assert [ran.stdout.strip()] == [line["message_id"] for line in lines(file)]
