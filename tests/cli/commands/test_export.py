import json
import os
import signal
import sys

import pytest

from optree._ids import trace_id
from optree_otel.delivered import DeliveredFile
from tests.cli.conftest import ROOT, CommandLine
from tests.otel.receiver import away, receiver, refused, unavailable

NODES = 7
"""A session, its turn, a model call, a `session` op, the session in it, its turn, a tool call."""


@pytest.fixture
def line(tmp_path):
    """Return the command line, with the exporters that an installed optree would have, and no collector."""
    made = CommandLine(tmp_path)
    made.env = {name: value for name, value in made.env.items() if not name.startswith("OTEL_")}
    made.env["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "exporters")])
    return made


@pytest.fixture
def collector():
    """Return a receiver that accepts everything."""
    with receiver("http/protobuf") as running:
        yield running


def mirrored(line, endpoint, *steps, code=0):
    """Let the agent record a session while it is mirrored to an address; returns its txn."""
    line.env["OPTREE_OTEL"], line.env["OPTREE_OTEL_ENDPOINT"] = "on", endpoint
    txn = line.record(*steps, code=code)
    del line.env["OPTREE_OTEL"], line.env["OPTREE_OTEL_ENDPOINT"]
    return txn


def without(line, module):
    """Let a module be missing in all processes to come."""
    folder = line.folder / "missing"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules[{module!r}] = None\n")
    line.env["PYTHONPATH"] = os.pathsep.join([str(folder), line.env["PYTHONPATH"]])


def dead():
    """Return an address that nobody listens on."""
    with receiver("http/protobuf") as gone:
        pass
    return gone.endpoint


def exported(line, *args, code=0):
    """Run `optree export … --json` and return what it printed."""
    return json.loads(line("export", *args, "--json", code=code).stdout)


SEVERAL = """
import optree
with optree.session("ended"), optree.turn(user="u"):
    pass
with optree.session("running"), optree.turn(user="u"):
    assert optree.flush()
    print("open", flush=True)
    input()
"""


def test_a_run_of_which_a_session_is_running(line, collector):
    """Of a whole run the sessions that have ended are sent; one that is running is said, and the exit code is 1."""
    line.agent.write_text(SEVERAL)
    program = line.start(sys.executable, line.agent)
    assert "open\n" == program.stdout.readline()
    found = exported(line, "last", "--run", "--endpoint", collector.endpoint, code=1)
    assert [True, False] == [one["whole"] for one in found["sessions"]]
    assert "is running; export it when it has ended" in found["sessions"][1]["said"]
    program.communicate("\n")
    assert [True, True] == [one["whole"] for one in exported(line, "last", "--run", "--endpoint", collector.endpoint)["sessions"]]


def refusing(line, *args):
    """Export where nothing is taken, with more and more time, until there was an answer: a busy machine may take long to hear it."""
    for seconds in ("0.5", "5", "60"):
        said = line("export", *args, "--timeout", seconds, code=1)
        if "does not answer" not in said.stdout:
            break
    return said


def test_export(line, collector):
    """A session that was never mirrored is sent whole, each node once, in the trace that its txn stands for."""
    txn = line.record()
    found = exported(line, "last", "--endpoint", collector.endpoint)
    assert [{"txn": txn, "sent": NODES, "left": 0, "lost": 0, "whole": True, "said": ""}] == found["sessions"]
    assert (f"{collector.endpoint}/v1/traces", "otel", []) == (found["collector"], found["to"], found["problems"])
    assert NODES == len({span.span_id for span in collector.spans()}) == len(collector.spans())
    assert {trace_id(txn)} == {span.trace_id.hex() for span in collector.spans()}


@pytest.mark.parametrize(("missing", "options"), [("requests", []), ("grpc", ["--protocol", "grpc"]), ("opentelemetry", [])])
def test_a_library_is_missing(line, missing, options):
    """Where a library is missing that sends, it is said at once what to install, and nothing is waited for."""
    line.record()
    without(line, missing)
    if missing == "opentelemetry":
        line.env["OPTREE_OTEL_EXPORTER"] = "sdk"
    said = line("export", "last", *options, code=2).stderr
    assert f"optree: No module named {missing!r}: install what OpenTelemetry needs with: pip install 'optree-tracing[otel]'\n" == said


def test_again(line, collector):
    """What is delivered is not sent a second time, but with --again: then under the same ids."""
    txn = line.record()
    exported(line, txn, "--endpoint", collector.endpoint)
    [kept] = exported(line, txn, "--endpoint", collector.endpoint)["sessions"]
    assert (0, True, "is delivered already; send it once more with --again") == (kept["sent"], kept["whole"], kept["said"])
    assert NODES == exported(line, txn, "--again", "--endpoint", collector.endpoint)["sessions"][0]["sent"]
    assert (2 * NODES, NODES) == (len(collector.spans()), len({span.span_id for span in collector.spans()}))


def test_delivered_elsewhere(line, collector):
    """What another collector has is not said to be delivered to this one, and `--again` sends it there too."""
    txn = line.record()
    exported(line, txn, "--endpoint", collector.endpoint)
    with receiver("http/protobuf") as other:
        [report] = exported(line, txn, "--endpoint", other.endpoint, code=1)["sessions"]
        said = f"is delivered, to {collector.endpoint}/v1/traces; send it here as well with --again"
        assert (0, False, said) == (report["sent"], report["whole"], report["said"])
        assert "delivered to" not in line("export", txn, "--endpoint", collector.endpoint).stdout
        assert [NODES] == [one["sent"] for one in exported(line, txn, "--again", "--endpoint", other.endpoint)["sessions"]]
        assert NODES == len(other.spans())
        [report] = exported(line, txn, "--endpoint", other.endpoint)["sessions"]
        assert (0, True, "is delivered already; send it once more with --again") == (report["sent"], report["whole"], report["said"])


def test_another_process_is_sending_it(line, collector, tmp_path):
    """What a living process has on its way is not delivered yet: it is said so, with exit code 1."""
    txn = line.record()
    (sessions,) = {path.parent for path in tmp_path.rglob(f"{txn}.json.zst")}
    file = DeliveredFile(sessions, txn, "0000")
    file.begin()
    assert file.held
    [report] = exported(line, txn, "--endpoint", collector.endpoint, code=1)["sessions"]
    file.release()
    assert (0, False, "another process is sending it") == (report["sent"], report["whole"], report["said"])


def test_pending(line, collector):
    """What a run could not deliver goes out afterwards, of all sessions, and then nothing is pending."""
    with away(collector) as gone:
        txns = [mirrored(line, gone), mirrored(line, gone)]
    said = line("export", "--pending", "--endpoint", collector.endpoint)
    assert [[txn, str(NODES), "0", "0"] for txn in sorted(txns)] == [row.split() for row in said.stdout.splitlines()[1:3]]
    assert f"delivered to {collector.endpoint}/v1/traces" == said.stdout.splitlines()[-1]
    assert {trace_id(txn) for txn in txns} == {span.trace_id.hex() for span in collector.spans()}
    assert "nothing is pending\n" == line("export", "--pending", "--endpoint", collector.endpoint).stdout


def test_for_another_destination(line, collector):
    """What was to go to another address, or with other content, waits, and is named; --any-destination sends it all the same."""
    gone = dead()
    txns = [mirrored(line, gone), mirrored(line, gone)]
    found = exported(line, "--pending", "--endpoint", collector.endpoint)
    assert ([], {f"{gone}/v1/traces": 2}) == (found["sessions"], found["others"])
    said = line("export", "--pending", "--endpoint", collector.endpoint).stderr
    told = f"not sent, since mirrored with other settings: 2, for {gone}/v1/traces (2)"
    assert f"{told}; to send them here all the same: optree export --pending --any-destination" in said
    found = exported(line, "--pending", "--any-destination", "--endpoint", collector.endpoint)
    assert (sorted(txns), {}) == ([one["txn"] for one in found["sessions"]], found["others"])
    assert 2 * NODES == len(collector.spans())


def test_crash(line, collector):
    """Nodes that a crash left open go out as interrupted, and each node is sent once."""
    with away(collector) as gone:
        txn = mirrored(line, gone, "kill", code=-9)
    [report] = exported(line, "--pending", "--endpoint", collector.endpoint)["sessions"]
    assert (txn, NODES, True) == (report["txn"], report["sent"], report["whole"])
    told = [{one.key: one.value.string_value for one in span.attributes} for span in collector.spans()]
    assert ["", "1"] == sorted(one["optree.path"] for one in told if one["optree.status"] == "interrupted")
    assert NODES == len({span.span_id for span in collector.spans()}) == len(collector.spans())


def test_no_collector(line):
    """Where nothing listens, the address and the reason are said, the exit code is 1, and the session stays pending."""
    txn, gone = line.record(), dead()
    said = refusing(line, txn, "--endpoint", gone)
    assert [txn, "0", str(NODES), "0"] == said.stdout.splitlines()[1].split()[:4]
    assert f"not all could be delivered to {gone}/v1/traces; try again with: optree export --pending" in said.stderr
    assert "refused" in said.stdout
    assert [txn] == [one["txn"] for one in line.json("status")["pending"]]


def test_what_is_waited_for(line):
    """While nothing takes the spans it is said which address is waited for, how long at most, and why."""
    line.record()
    gone = dead()
    process = line.start(*line.command("export", "last", "--endpoint", gone, "--timeout", "600"))
    first = process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert first.startswith(f"optree: waiting for {gone}/v1/traces, up to 600 s in all (--timeout): ")
    assert 130 == process.returncode


@pytest.mark.parametrize(("fault", "counts"), [(unavailable(), (0, NODES, 0)), (refused(), (0, 0, NODES))])
def test_unwilling_collector(line, collector, fault, counts):
    """A collector that takes nothing now leaves the session pending; what it refuses for good is counted as lost."""
    line.record()
    collector.always = fault
    [report] = json.loads(refusing(line, "last", "--endpoint", collector.endpoint, "--json").stdout)["sessions"]
    assert counts == tuple(report[name] for name in ("sent", "left", "lost"))
    assert fault.text in report["said"]


def test_removed(line, collector):
    """A session that is gone from the disk is no longer pending."""
    with away(collector) as gone:
        txn = mirrored(line, gone)
    (line.sessions / f"{txn}.json.zst").unlink()
    assert [] == exported(line, "--pending", "--endpoint", collector.endpoint)["sessions"]
    assert [] == line.json("status")["pending"]


def test_unreadable(line, collector):
    """A pending session that cannot be read is named, with exit code 1, and the others are sent."""
    with away(collector) as gone:
        broken, sound = mirrored(line, gone), mirrored(line, gone)
    (line.sessions / f"{broken}.json.zst").write_bytes(b"broken")
    reports = {one["txn"]: one for one in exported(line, "--pending", "--endpoint", collector.endpoint, code=1)["sessions"]}
    assert (False, True, NODES) == (reports[broken]["whole"], reports[sound]["whole"], reports[sound]["sent"])
    assert broken in reports[broken]["said"]


def test_running(line, collector):
    """A session that is running is refused by name, and passed over among the pending ones: its own process sends it."""
    line.env |= {"OPTREE_OTEL": "on", "OPTREE_OTEL_ENDPOINT": dead()}
    with line.start(*line.command("run", "--", sys.executable, line.agent, "why", "wait")) as run:
        while run.stdout.readline().strip() != "ready":
            assert run.poll() is None
        [txn] = line.txns()
        assert f"session {txn} is running" in line("export", txn, "--endpoint", collector.endpoint, code=1).stderr
        assert [] == exported(line, "--pending", "--endpoint", collector.endpoint)["sessions"]
        run.communicate("\n")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "name a session (optree export last)"),
        (["last", "--pending"], "either sessions or --pending"),
        (["last", "--any-destination"], "--any-destination wants --pending"),
        (["--pending", "--again"], "--again wants the sessions named"),
        (["last", "--to", "paper"], "there is no exporter or format 'paper'; choose one of ai-agent"),
        (["last", "--endpoint", "nowhere"], "otel has nowhere to send to: endpoint='nowhere' is no address"),
    ],
)
def test_wrong_usage(line, args, said):
    """Wrong usage says what to do."""
    line.record()
    assert said in line("export", *args, code=2).stderr


def test_switched_off(line):
    """Where OpenTelemetry is switched off, nothing is sent, and that is said."""
    line.record()
    assert "OTEL_SDK_DISABLED" in line("export", "last", code=2, env={"OTEL_SDK_DISABLED": "true"}).stderr


def test_run_and_load(line, collector):
    """--otel mirrors a run to a collector, and goes on with it there: one trace, in which each node of both lives is one span."""
    line("run", "--otel", collector.endpoint, "--", sys.executable, line.agent, "why", "kill", code=137)
    [txn] = line.txns()
    line("load", txn, "--otel", collector.endpoint, "--", sys.executable, line.agent, "why again")
    exported(line, "--pending", "--endpoint", collector.endpoint)  # what the exit of a program on a busy machine did not wait for
    assert [] == line.json("status")["pending"]
    assert {trace_id(txn)} == {span.trace_id.hex() for span in collector.spans()}
    assert 2 * NODES - 1 == len({span.span_id for span in collector.spans()})
    assert 1 == len({span.span_id for span in collector.spans() if not span.parent_span_id})


@pytest.mark.parametrize(("option", "choices"), [("--protocol", "http/protobuf, grpc"), ("--profile", "default, jaeger, tempo, ")])
def test_a_value_that_an_option_cannot_have(optree, option, choices):
    """A protocol or a profile that does not exist is wrong usage, with those that do, whether or not there is anything to send."""
    for what in (["--pending"], ["last"], ["last", "--to", "events"]):
        said = optree.read("export", *what, option, "foo", code=2).stderr
        assert f"'foo': choose from {choices}" in said
        assert (option in said, 1) == (True, said.count("\n"))
