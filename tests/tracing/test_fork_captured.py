"""Captured calls of a program that forks: what of them is the child's, and what stays its parent's."""

import msgspec
import pytest

CALLS = """
import json, signal, threading
import httpx
from optree._interrupts import _LOCKS
from optree.testing import replay

URL = "https://api.openai.com/v1/chat/completions"
CHAT = {"object": "chat.completion", "model": "m", "choices": [
    {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1}}

def asked(question="q", **more):
    return {"model": "m", "messages": [{"role": "user", "content": question}], **more}

def client(answer=lambda request: httpx.Response(200, json=CHAT)):
    return httpx.Client(transport=httpx.MockTransport(answer))

def piece(text):
    said = {"object": "chat.completion.chunk", "model": "m", "choices": [{"index": 0, "delta": {"content": text}}], "usage": CHAT["usage"]}
    return b"data: " + json.dumps(said).encode() + b"\\n\\n"

class Words(httpx.SyncByteStream):
    def __iter__(self):
        for text in ("w0 ", "w1 ", "w2"):
            yield piece(text)
        yield b"data: [DONE]\\n\\n"

def streaming(request):
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Words())

def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

optree.instrument()
"""


OWN_OP = """
with client() as one, optree.session("lead"), optree.turn(), optree.llm("openai:m"):
    for _ in range(2):
        if not (child := os.fork()):
            for question in ("first", "second"):
                one.post(URL, json=asked(question))
            os._exit(0 if optree.flush("sync", 30) else 3)
        print(ended(child))
    one.post(URL, json=asked("parent"))
"""


def test_what_children_ask_within_an_op_of_their_parents(finished, saved):
    """Each call is accounted for by the process that made it, the first one too, which joins the op."""
    code, out, err = finished(CALLS + OWN_OP)
    assert (0, "0\n0\n") == (code, out), err
    assert (5, 10) == ((totals := saved().session.totals).llm_requests, totals.input_tokens + totals.output_tokens)


def test_a_child_waits_for_no_lock_of_its_parents_threads(finished):
    """A child that is forked while another thread holds each lock there is makes captured calls, and ends."""
    code, out, err = finished(
        CALLS
        + """
with client() as one:
    one.post(URL, json=asked())
    held, stop = threading.Event(), threading.Event()

    def hold():
        locks = list(_LOCKS)
        for lock in locks:
            lock.acquire()
        held.set()
        stop.wait()
        for lock in locks:
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        optree.instrument()
        one.post(URL, json=asked("child"))
        with optree.session("child"):
            one.post(URL, json=asked("within"))
        os._exit(0 if optree.flush("sync", 30) else 3)
    print(ended(child))
    stop.set()
    thread.join()
""",
        env={"PYTHONWARNINGS": "ignore::DeprecationWarning"},  # the program has a thread of its own, as Python says
    )
    assert (0, "0\n", "") == (code, out, err), err


def test_a_lock_of_the_thread_that_forks_is_its_own_to_leave(finished):
    """A child that is forked by the thread that holds a lock, as in a signal's handler, holds it until it leaves it."""
    code, out, err = finished("""
        from optree._interrupts import new_rlock
        lock = new_rlock()
        with lock:
            child = os.fork()
            owned = lock._is_owned()
        if child == 0:
            os._exit(owned + 2 * lock._is_owned())
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert (0, "1\n", "") == (code, out, err)


@pytest.mark.parametrize("ending", ["sys.exit(0)", "stream.close(); optree.flush()", "list(pieces); optree.flush()"])
def test_a_captured_stream_is_the_parents(ending, finished, saved):
    """A child that is forked in the middle of a captured stream says nothing of it and records none of it, however it goes on."""
    code, out, err = finished(
        CALLS
        + f"""
with optree.session("root"), optree.turn(), client(streaming) as one:
    with one.stream("POST", URL, json=asked(stream=True)) as stream:
        pieces = stream.iter_raw()
        next(pieces), next(pieces)
        for _ in range(2):
            if (child := os.fork()) == 0:
                signal.alarm(60)
                {ending}
                sys.exit(0)
            assert ended(child) == 0
        list(pieces)
assert optree.flush("snapshot", 30)
"""
    )
    assert (0, "") == (code, out), err
    assert [] == [line for line in err.splitlines() if "cancelled" in line or "not recorded" in line]
    loaded = saved()
    [op] = loaded.session.turns[0].ops
    said = msgspec.json.decode(op.response.payload)
    assert ("ok", None, ()) == (op.status, op.response.partial, tuple(op.logs))
    assert "w0 w1 w2" == said["choices"][0]["message"]["content"]
