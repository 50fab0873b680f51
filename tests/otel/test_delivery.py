"""What a program has not sent at its end is delivered by a process of its own."""

import contextlib
import os
import re
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from optree._store.files import lock
from optree._store.files.system import REAL
from optree_otel import delivery, detached, handover
from optree_otel.delivered import Addressee, is_sending
from optree_otel.handover import LOCK, delivery_folder, is_possible
from optree_otel.session_exporter import nodes
from tests.otel import receiver as fake
from tests.otel.mirroring import AGENT, delivered_whole, environ, expected, loaded, run, sessions, trace_of, unsent
from tests.otel.receiver import away, receiver, unavailable, until

SPANS = 4
"""Those of the brief agent."""
WITHIN = 90.0
"""Seconds after a program's end in which all must have arrived, on any machine: as long as one round of delivery may take."""
ON = {"OPTREE_OTEL_DELIVER_AT_EXIT": "true"}
ASKING = """
import sys, optree
with optree.session("lead") as one, optree.turn():
    with optree.llm(provider="openai", model="m") as op:
        op.request([{"role": "user", "content": sys.argv[1]}])
print(one.txn)
"""
ASKED = 3
"""Spans of that program."""
SWEEPING = """
import optree
with optree.session("later"), optree.turn():
    pass
print(optree.flush("export", 20), optree.health()["otel"]["others"], optree.health()["problems"])
"""
CONTENT = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true"}
SOMEBODY = Addressee("0123456789abcdef", "")
FOR_SOMEBODY = SimpleNamespace(addressee=SOMEBODY)
SAID = re.compile(r"optree: OpenTelemetry: (\d+) spans are being delivered by a process of their own\n")


def end(base, endpoint, *arguments, **more):
    """Run the brief agent to its end; returns its txn, and what it said on stderr."""
    command = [sys.executable, str(AGENT), "brief", *arguments]
    done = subprocess.run(command, env=environ(base, endpoint, **ON | more), capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.split()[0], done.stderr


def ask(base, endpoint, words, **more):
    """Run a program that calls a model, to its end; returns its txn, and what it said on stderr."""
    command = [sys.executable, "-c", ASKING, words]
    done = subprocess.run(command, env=environ(base, endpoint, **ON | more), capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.split()[0], done.stderr


def export_pending(base, endpoint, *arguments, **more):
    """Run `optree export --pending` to its end; returns what it printed and what it said on stderr."""
    command = [sys.executable, "-m", "optree", "export", "--pending", *arguments]
    done = subprocess.run(command, env=environ(base, endpoint, **more), capture_output=True, text=True, timeout=60, check=True)
    return done.stdout, done.stderr


def delivery_folders(base):
    """Return the folders in which processes that deliver are found, one for each addressee."""
    return list((sessions(base) / ".otel" / ".delivery").glob("*"))


def heard(collector):
    """Return all texts that a collector was sent."""
    return " ".join(str(one.message) for one in collector.received)


@contextmanager
def busy(count):
    """Keep the machine busy meanwhile."""
    with ExitStack() as running:
        for _ in range(count):
            hog = running.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            running.callback(hog.kill)
        yield


def arrived(collector, *txns, spans=SPANS):
    """Tell whether all spans of these sessions are there."""
    return all(spans == len(of(collector, txn)) for txn in txns)


def of(collector, txn):
    """Return the ids of a session's spans, each with that of its parent."""
    return {
        (span.span_id.hex(), span.parent_span_id.hex())
        for span in collector.spans()
        if txn in [one.value.string_value for one in span.attributes if one.key == "optree.txn"]
    }


def names(folder):
    """Return the names of a folder's files, sorted."""
    return sorted(path.name for path in folder.iterdir())


def deliverer(base):
    """Wait for the process that delivers, and return its id."""
    [lock_file] = [folder / LOCK for folder in delivery_folders(base)]
    assert until(lambda: lock_file.exists() and lock_file.read_text())
    return lock_file.read_text()


def parts_of(process):
    """Return a process's open files, its folder, its session, and its parent."""
    about = Path("/proc", str(process))
    files = {}
    for path in (about / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            files[int(path.name)] = str(path.readlink())
    _, _, rest = (about / "stat").read_text().rpartition(")")
    _, parent, _, session, *_ = rest.split()
    return files, str((about / "cwd").readlink()), int(session), int(parent)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", fake.PROTOCOLS)
def test_busy_machine(tmp_path, protocol):
    """The trace of an instant program is whole soon after its end, each time, with three busy processes beside it."""
    with receiver(protocol) as collector, busy(3):
        for _ in range(6 if protocol == "http/protobuf" else 2):
            txn, _ = end(tmp_path, collector.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
            assert collector.wait_until(lambda txn=txn: arrived(collector, txn), WITHIN)


@pytest.mark.slow
@pytest.mark.parametrize("hogs", [0, 3])
def test_each_to_its_own(tmp_path, hogs):
    """Programs that share a directory and not a collector: what each has left goes to its own, with its own content and headers."""
    more = {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20of-the-first"}
    with receiver("http/protobuf") as slow, receiver("http/protobuf") as quick, busy(hogs):
        slow.delay = 0.7
        firsts, seconds = [], []
        for _ in range(3):
            firsts.append(ask(tmp_path, slow.endpoint, "open words", **CONTENT, **more)[0])
            seconds.append(ask(tmp_path, quick.endpoint, "private words")[0])
        for collector, txns in ((slow, firsts), (quick, seconds)):
            collector.wait_until(lambda c=collector, t=txns: arrived(c, *t, spans=ASKED), 2 * WITHIN)
        assert ([ASKED] * 3, [ASKED] * 3) == ([len(of(slow, txn)) for txn in firsts], [len(of(quick, txn)) for txn in seconds])
        assert until(lambda: not unsent(tmp_path), WITHIN)
    assert ([set()] * 3, [set()] * 3) == ([of(slow, txn) for txn in seconds], [of(quick, txn) for txn in firsts])
    assert (True, False, False) == ("open words" in heard(slow), "private words" in heard(slow), "private words" in heard(quick))
    assert {None} == {one.headers.get("authorization") for one in quick.received}


@pytest.mark.parametrize(
    "other",
    [{}, CONTENT, {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20another"}, {"OPTREE_REDACT": '{"mask":["email"]}'}],
    ids=["endpoint", "content", "account", "redaction"],
)
def test_another_program_sends_nothing_of_it(tmp_path, other):
    """What waits for one destination no program with other settings sends, nor `export --pending`, which names it; a person may say so."""
    with receiver("http/protobuf") as collector:
        with away(collector):
            address = collector.endpoint if other else f"http://someone:password@127.0.0.1:{fake.free_port()}"
            txn, _ = ask(tmp_path, address, "private words", OPTREE_OTEL_DELIVER_AT_EXIT="false")
        done = subprocess.run([sys.executable, "-c", SWEEPING], env=environ(tmp_path, collector.endpoint, **other), capture_output=True, text=True, timeout=60, check=True)  # fmt: skip # noqa: E501
        shown = f"{address.replace('someone:password', '[REDACTED]')}/v1/traces"
        assert f"True {{'{shown}': 1}} []\n" == done.stdout
        printed, said = export_pending(tmp_path, collector.endpoint, **other)
        assert (set(), [txn]) == (of(collector, txn), unsent(tmp_path))
        assert "nothing is pending" in printed
        assert f"not sent, since mirrored with other settings: 1, for {shown} (1); to send them here" in said
        export_pending(tmp_path, collector.endpoint, "--any-destination", **other)
        assert ASKED == len(of(collector, txn))
        assert [] == unsent(tmp_path)


def test_the_same_program_sends_it(tmp_path):
    """What waits for a destination the next run with the same settings sends, also one that has another process's resource attributes."""
    with receiver("http/protobuf") as collector:
        with away(collector) as gone:
            txn, _ = ask(tmp_path, gone, "words", OPTREE_OTEL_DELIVER_AT_EXIT="false", OTEL_RESOURCE_ATTRIBUTES="k8s.pod.name=a")
        environment = environ(tmp_path, collector.endpoint, OTEL_RESOURCE_ATTRIBUTES="k8s.pod.name=b")
        subprocess.run([sys.executable, "-c", SWEEPING], env=environment, capture_output=True, timeout=60, check=True)
        assert ASKED == len(of(collector, txn))


def test_noted_by_an_earlier_version(tmp_path):
    """A session of which nobody noted where it was to go is sent by a person's `optree export --pending` alone."""
    with receiver("http/protobuf") as collector:
        with away(collector) as gone:
            txn, _ = ask(tmp_path, gone, "words", OPTREE_OTEL_DELIVER_AT_EXIT="false")
        notes = sessions(tmp_path) / ".otel" / "notes" / txn / "0000.jsonl"
        notes.write_text(re.sub(r',">[^"]*"', "", notes.read_text()))
        done = subprocess.run([sys.executable, "-c", SWEEPING], env=environ(tmp_path, collector.endpoint), capture_output=True, text=True, timeout=60, check=True)  # fmt: skip # noqa: E501
        assert ("True {'unknown': 1} []\n", set()) == (done.stdout, of(collector, txn))
        export_pending(tmp_path, collector.endpoint)
        assert ASKED == len(of(collector, txn))


def test_jaeger(jaeger, tmp_path):
    """Two programs that end one after the other are both whole in Jaeger, without a third; the first could not wait for it."""
    first, _ = end(tmp_path, jaeger.http, OPTREE_OTEL_DELIVER_AT_EXIT="false")
    second, _ = end(tmp_path, jaeger.http)
    assert [SPANS, SPANS] == [len(jaeger.wait_for_trace(trace_of(txn), SPANS)) for txn in (first, second)]
    assert until(lambda: not unsent(tmp_path), WITHIN)


@pytest.mark.parametrize("protocol", fake.PROTOCOLS)
def test_what_is_left(tmp_path, protocol):
    """What the collector did not take arrives after the program's end; stderr names how much."""
    with receiver(protocol) as collector:
        collector.always = unavailable()
        txn, said = end(tmp_path, collector.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
        assert [str(SPANS)] == SAID.findall(said)
        collector.always = None
        assert collector.wait_until(lambda: arrived(collector, txn), WITHIN)
        assert until(lambda: delivered_whole(tmp_path, txn), WITHIN)  # the answer has to arrive, too
    by_name = {span.name: span for span in collector.spans()}
    assert by_name["execute_tool search"].span_id == by_name["execute_tool fetch"].parent_span_id  # an op that began in another
    assert until(lambda: [[LOCK]] == [names(folder) for folder in delivery_folders(tmp_path)])


@pytest.mark.parametrize("protocol", fake.PROTOCOLS)
def test_a_killed_run(tmp_path, protocol):
    """After the next program's end what a killed run had ended is there; what it left open goes out by `optree export --pending`."""
    with receiver(protocol) as collector:
        with away(collector) as gone:
            [killed] = run(["crashing", "undelivered"], tmp_path, gone, OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
        before = loaded(tmp_path, killed).session
        ended = [key for key, node in nodes(before) if node.ended_at is not None]
        wanted = {(node.span_id, node.parent_id) for node in expected(before)}
        end(tmp_path, collector.endpoint, OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
        assert collector.wait_until(lambda: len(ended) <= len(of(collector, killed)), WITHIN)
        assert until(lambda: killed not in unsent(tmp_path) and not is_sending(sessions(tmp_path), killed), WITHIN)  # it is let go of later
        export_pending(tmp_path, "", "--endpoint", collector.endpoint, "--protocol", protocol)
        assert wanted == of(collector, killed)
        assert len(ended) < len(wanted)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="left out: this system has no /proc to look into")
def test_detached(tmp_path):
    """The process holds nothing of the program's: no file, no folder, no terminal's session; the program's own end is as ever."""
    with receiver("http/protobuf") as collector, (tmp_path / "open").open("w") as file:
        collector.always = unavailable()
        os.set_inheritable(file.fileno(), True)
        with subprocess.Popen(
            [sys.executable, str(AGENT), "brief"],
            env=environ(tmp_path, collector.endpoint, **ON), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, close_fds=False,
        ) as program:  # fmt: skip
            txn, said = program.communicate(timeout=60)  # would wait for whoever has its stdout
        assert [str(SPANS)] == SAID.findall(said)
        process = deliverer(tmp_path)
        files, _, session, parent = parts_of(process)
        assert {os.devnull} == {files[number] for number in range(3)}
        assert [] == [name for name in files.values() if str(tmp_path / "open") in name or "pipe" in name]
        assert int(process) == session
        assert program.pid != parent
        collector.always = None
        assert collector.wait_until(lambda: arrived(collector, txn.strip()), WITHIN)
    assert 0 == program.returncode


def test_one_at_a_time(tmp_path):
    """While a process delivers, programs that end leave it word and start none; it delivers theirs too."""
    with receiver("http/protobuf") as collector:
        collector.always = unavailable()
        first, said = end(tmp_path, collector.endpoint)
        assert [str(SPANS)] == SAID.findall(said)
        process = deliverer(tmp_path)
        second, said = end(tmp_path, collector.endpoint)
        assert [str(SPANS)] == SAID.findall(said)
        assert process == deliverer(tmp_path)
        collector.always = None
        assert collector.wait_until(lambda: arrived(collector, first, second), WITHIN)


def test_waits_for_the_end(tmp_path, monkeypatch):
    """Nothing is read before the program that left word has gone, nor for ever where it stays."""
    folder = delivery_folder(tmp_path, SOMEBODY)
    folder.mkdir(parents=True)
    held, waits = lock.take(folder / "1"), []

    def wait(_seconds):
        waits.append(len(waits))
        if len(waits) == 3:
            lock.release([held])

    def swept(*_, **__):
        assert 3 == len(waits)
        return []

    monkeypatch.setattr(delivery, "sleep", wait)
    monkeypatch.setattr(delivery, "sweep", swept)
    mirror = SimpleNamespace(flush=lambda _: True, addressee=SOMEBODY)
    delivery.deliver(mirror, tmp_path)
    held = lock.take(folder / "1")
    monkeypatch.setattr(delivery, "END_SECONDS", 0.0)
    delivery.deliver(mirror, tmp_path)
    lock.release([held])
    assert ([0, 1, 2], [LOCK]) == (waits, names(folder))


def test_switched_off(tmp_path):
    """Where it is switched off nothing is started, and the line says what to do."""
    with receiver("http/protobuf") as collector:
        collector.always = unavailable()
        _, said = end(tmp_path, collector.endpoint, OPTREE_OTEL_DELIVER_AT_EXIT="false")
    told = f"{SPANS} spans are not sent yet: the next run with the same settings sends them, or optree export --pending"
    assert f"optree: OpenTelemetry: {told}\n" in said
    assert [] == delivery_folders(tmp_path)


def test_options(tmp_path):
    """What the program said by `configure` holds for the process too; `health()` names it, and that is no fault."""
    program = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(optree.health()['otel']['delivering']))\n"
        "import optree; optree.configure(otel={'endpoint': sys.argv[1], 'openinference': True, 'deliver_at_exit': True})\n"
        "with optree.session('lead') as one, optree.turn(), optree.tool('x'): print(one.txn)"
    )
    with receiver("http/protobuf") as collector:
        collector.always = unavailable()
        command = [sys.executable, "-c", program, collector.endpoint]
        done = subprocess.run(command, env=environ(tmp_path), capture_output=True, text=True, timeout=60, check=True)
        assert SAID.findall(done.stderr)[0] in done.stdout
        collector.always = None
        assert collector.wait_until(lambda: 3 == len(collector.spans()), WITHIN)
        assert {"AGENT", "CHAIN", "TOOL"} == {
            one.value.string_value for span in collector.spans() for one in span.attributes if one.key == "openinference.span.kind"
        }


def test_where_it_cannot_be(monkeypatch):
    """No process is started by tests that did not ask, by programs that are no Python, or by a container's first process."""
    assert (False, True) == (is_possible(None), is_possible(True))
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        monkeypatch.delenv(name)
    with monkeypatch.context() as now:
        now.delitem(sys.modules, "pytest")
        assert (True, False) == (is_possible(None), is_possible(False))
    for module, name, value in [
        (sys, "frozen", True),
        (sys, "executable", ""),
        (sys, "executable", "/usr/bin/uwsgi"),
        (os, "getpid", lambda: 1),
    ]:
        with monkeypatch.context() as now:
            now.setattr(module, name, value, raising=False)
            assert not is_possible(True)
    with monkeypatch.context() as now:
        now.setattr(detached, "IS_POSSIBLE", False)
        assert not is_possible(True)


def test_a_library_is_missing(tmp_path):
    """Where the library is missing that sends, none is started, which could not send either."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['requests'] = None\n")
    path = os.pathsep.join([str(tmp_path), environ(tmp_path, "")["PYTHONPATH"]])
    txn, said = end(tmp_path, "http://127.0.0.1:9", PYTHONPATH=path)
    assert [] == SAID.findall(said)
    assert "optree export --pending" in said
    assert [txn] == unsent(tmp_path)


def test_forked_child(tmp_path):
    """A forked child starts none: its parent goes on."""
    program = (
        "import os, optree\n"
        "with optree.session('lead'), optree.turn():\n"
        "    if not os.fork():\n"
        "        with optree.tool('x'): pass\n"
        "        raise SystemExit\n"
        "    os.wait()\n"
        "os._exit(0)"
    )
    with receiver("http/protobuf") as collector:
        collector.always = unavailable()
        command = [sys.executable, "-W", "ignore", "-c", program]
        done = subprocess.run(
            command, env=environ(tmp_path, collector.endpoint, **ON), capture_output=True, text=True, timeout=60, check=True
        )
    assert [] == SAID.findall(done.stderr)
    assert [] == delivery_folders(tmp_path)


def test_what_is_redacted_by_choice(tmp_path):
    """The process redacts as the program does; where a function of the program's does so, none is started."""
    program = (
        "import sys, optree\n"
        "optree.configure(redact=eval(sys.argv[2]))\n"
        "optree.configure(otel={'endpoint': sys.argv[1], 'content': 'span_only', 'deliver_at_exit': True})\n"
        "with optree.session('lead'), optree.turn(), optree.tool('x') as op: op.request(customer='ACME-12345678')"
    )
    with receiver("http/protobuf") as collector:
        collector.always = unavailable()
        chosen = ["optree.Redaction(patterns=(r'ACME-\\d{8}',))", "optree.Redaction(callback=lambda text: text.replace('ACME', '-'))"]
        started = []
        for settings in chosen:
            command = [sys.executable, "-c", program, collector.endpoint, settings]
            done = subprocess.run(
                command, env=environ(tmp_path / str(len(started))), capture_output=True, text=True, timeout=60, check=True
            )
            started.append(SAID.findall(done.stderr))
        collector.always = None
        assert collector.wait_until(lambda: 3 == len(collector.spans()), WITHIN)
        shown = [one.value.string_value for span in collector.spans() for one in span.attributes]
    assert [["3"], []] == started
    assert ([], True) == ([text for text in shown if "ACME" in text], any("[REDACTED]" in text for text in shown))


def test_nobody_waits_for_it(tmp_path):
    """A program that waits for all its children before it ends does not wait for the process."""
    program = (
        "import atexit, os, sys, time\n"
        "def reap():\n"
        "    try:\n"
        "        while True: os.wait()\n"
        "    except ChildProcessError: print('reaped')\n"
        "atexit.register(reap)\n"
        "import optree; optree.configure(otel={'endpoint': sys.argv[1], 'deliver_at_exit': True})\n"
        "with optree.session('lead'), optree.turn(), optree.tool('x'): pass"
    )
    with receiver("http/protobuf") as collector:
        collector.always = unavailable()
        command = [sys.executable, "-c", program, collector.endpoint]
        done = subprocess.run(command, env=environ(tmp_path), capture_output=True, text=True, timeout=60, check=True)
        assert ("reaped\n", ["3"]) == (done.stdout, SAID.findall(done.stderr))
        assert deliverer(tmp_path)  # it is still at it: the collector takes nothing yet


def test_bounded(tmp_path, monkeypatch):
    """A collector that stays away is given up after a while: the spans stay pending, and the lock and the words are gone."""
    gone = f"http://127.0.0.1:{fake.free_port()}"
    run(["brief"], tmp_path, gone)
    monkeypatch.setattr(delivery, "SECONDS", 0.1)
    mirror = delivery.make({"endpoint": gone})
    folder = delivery_folder(sessions(tmp_path), mirror.addressee)
    folder.mkdir(parents=True)
    (folder / "1").touch()
    delivery.deliver(mirror, sessions(tmp_path))
    mirror.close(0.0)
    assert [LOCK] == names(folder)
    assert (1, False) == (len(unsent(tmp_path)), handover._announce(folder))
    lock.release(handover._held)
    handover._held.clear()


def test_no_word_is_lost(tmp_path, monkeypatch):
    """Who leaves word while a round goes on, or just before the lock is gone, is served."""
    folder = delivery_folder(tmp_path, SOMEBODY)
    folder.mkdir(parents=True)
    (folder / "1").touch()
    rounds = []
    release = lock.release

    def one_round(_mirror, _sessions, words):
        rounds.append(sorted(path.name for path in words))
        if rounds == [["1"]]:
            (folder / "2").touch()
        return True

    def late(fds, system=REAL):
        if len(rounds) == 2:
            (folder / "3").touch()
        release(fds, system)

    monkeypatch.setattr(delivery, "_round", one_round)
    monkeypatch.setattr(delivery, "unlock", late)
    delivery.deliver(FOR_SOMEBODY, tmp_path)
    assert [["1"], ["2"], ["3"]] == rounds
    assert [LOCK] == names(folder)


def test_another_delivers(tmp_path):
    """A process that finds another at it ends at once, and leaves the words to that."""
    folder = delivery_folder(tmp_path, SOMEBODY)
    folder.mkdir(parents=True)
    (folder / "1").touch()
    held = lock.take(folder / LOCK)
    delivery.deliver(FOR_SOMEBODY, tmp_path)
    lock.release([held])
    assert ["1", LOCK] == names(folder)


def test_what_is_no_word(tmp_path):
    """A directory, a link or a pipe among the words holds nobody up: what was left arrives, and the next program counts what lies there."""
    with receiver("http/protobuf") as collector:
        with away(collector) as gone:
            ask(tmp_path, gone, "words")
        [folder] = delivery_folders(tmp_path)
        (folder / "1").mkdir()
        (folder / "2").symlink_to(tmp_path / "nowhere")
        os.mkfifo(folder / "3")
        with away(collector) as gone:
            txn, said = ask(tmp_path, gone, "words")
        assert collector.wait_until(lambda: arrived(collector, txn, spans=ASKED), WITHIN)
        assert until(lambda: ["1", "2", "3", LOCK] == names(folder), WITHIN)
    assert "3 entries below .otel/.delivery in the sessions directory are no files of optree's and are passed over; remove them" in said


def test_a_word_that_cannot_be_left(tmp_path):
    """Where something lies in the place of the lock no process is started, and stderr says why."""
    with receiver("http/protobuf") as collector:
        collector.always = unavailable()
        ask(tmp_path, collector.endpoint, "words", OPTREE_OTEL_DELIVER_AT_EXIT="false")
        [noted] = (sessions(tmp_path) / ".otel" / "notes").glob("*/0000.jsonl")
        digest = re.search(r'">(\w+) ', noted.read_text())[1]
        (sessions(tmp_path) / ".otel" / ".delivery" / digest / LOCK).mkdir(parents=True)
        _, said = ask(tmp_path, collector.endpoint, "words")
    assert "it is a directory, and no file" in said
    assert "spans are not sent yet: the next run" in said


@pytest.mark.parametrize(
    "entries", ["b'/bytes'", "7, None", "pathlib.Path('/path')", "'/nul' + chr(0)", "'/surrogate' + chr(0xDCFF)", "'relative'"], ids=str
)
def test_any_search_path(tmp_path, entries):
    """Whatever a program has put into `sys.path`: what Python would not read either is left out, and what is left is delivered."""
    program = (
        "import os, pathlib, sys, optree\n"
        "optree.configure(otel={'endpoint': sys.argv[1], 'deliver_at_exit': True})\n"
        "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')\n"
        "with optree.session('lead'), optree.turn(), optree.tool('x'): pass\n"
        f"sys.path.extend(['', {entries}])\n"
    )
    (tmp_path / "program.py").write_text(program)  # by -c, Python 3.13.0 can import hardly anything once the directory is gone
    with receiver("http/protobuf") as collector:
        collector.always = unavailable()
        command = [sys.executable, "program.py", collector.endpoint]
        done = subprocess.run(command, env=environ(tmp_path / "base"), cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
        assert ["3"] == SAID.findall(done.stderr), done.stderr
        collector.always = None
        assert collector.wait_until(lambda: 3 == len(collector.spans()), WITHIN)


BUSY_LOADING = """
import threading, time, optree, optree_otel.pending

optree_otel.pending.sweep = lambda *_, **__: threading.Event().wait()  # the disk is slow
with optree.session("lead") as one, optree.turn():
    pass
while optree.health()["otel"]["traces"]["waiting"]:
    time.sleep(0.01)
"""
"""A program that ends before it has come to what earlier ones left, with all of its own delivered."""


def test_a_program_that_does_not_come_to_it(tmp_path):
    """What an earlier run left is delivered after the next program's end, also if that was over before it could look."""
    with receiver("http/protobuf") as collector:
        with away(collector) as gone:
            left, _ = ask(tmp_path, gone, "words", OPTREE_OTEL_DELIVER_AT_EXIT="false")
        for _ in range(2):  # the second finds nothing left, and starts no process
            where = environ(tmp_path, collector.endpoint, **ON)
            done = subprocess.run([sys.executable, "-c", BUSY_LOADING], env=where, capture_output=True, text=True, timeout=60, check=True)
            assert "" == done.stderr
            assert until(lambda: not unsent(tmp_path), WITHIN)
            for folder in delivery_folders(tmp_path):
                (folder / LOCK).unlink(missing_ok=True)
        assert ASKED == len(of(collector, left))
        assert until(lambda: [[]] == [names(folder) for folder in delivery_folders(tmp_path)], WITHIN)
