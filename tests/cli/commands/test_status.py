import pytest

from tests.cli.commands.test_export import NODES, collector, dead, line, mirrored, without
from tests.otel.receiver import unavailable

__all__ = ["collector", "line"]


def test_nothing_is_mirrored(line):
    """Where no session was mirrored, status says nothing of it, and asks no collector."""
    line.record()
    assert "not sent" not in line.read("status", env={"OTEL_EXPORTER_OTLP_ENDPOINT": dead()}).stdout
    assert ([], None) == tuple(line.json("status")[name] for name in ("pending", "collector"))


def test_pending(line):
    """Sessions that no collector has are named with their spans, with where they are to go, and with the command that sends them."""
    gone = dead()
    txn = mirrored(line, gone)
    assert [{"txn": txn, "spans": NODES, "destination": f"{gone}/v1/traces"}] == line.json("status")["pending"]
    said = line.read("status").stdout.splitlines()
    assert f"not sent     1: {txn} ({NODES}) spans of mirrored sessions" in said
    assert f"waiting for  {gone}/v1/traces (1)" in said
    assert "send them    optree export --pending" == said[-1]


@pytest.mark.parametrize("willing", [True, False])
def test_collector(line, collector, willing):
    """Whether the collector that the environment names takes anything is asked, and its reason shown."""
    mirrored(line, dead())
    collector.always = None if willing else unavailable()
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}
    assert {"endpoint": f"{collector.endpoint}/v1/traces", "trouble": ""} == line.json("status", env=environment)[
        "collector"
    ] or not willing
    shown = next(row for row in line.read("status", env=environment).stdout.splitlines() if row.startswith("collector"))
    assert f"{collector.endpoint}/v1/traces: " in shown
    assert ("answers" if willing else "try later") in shown
    assert [] == collector.spans()


@pytest.mark.parametrize("willing", [True, False])
def test_the_collector_that_is_waited_for_is_named_once(line, collector, willing):
    """Where sessions wait for the collector that the environment names, what it answers stands beside its address."""
    collector.always = unavailable()
    mirrored(line, collector.endpoint)
    collector.always = None if willing else unavailable()
    said = line.read("status", env={"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}).stdout
    [shown] = [row for row in said.splitlines() if collector.endpoint in row]
    assert shown.startswith(f"waiting for  {collector.endpoint}/v1/traces (1): ")
    assert ("answers" if willing else "try later") in shown


def test_a_library_is_missing(line):
    """Where the library is missing that asks the collector, that stands in its place, with what to install."""
    gone = dead()
    mirrored(line, gone)
    without(line, "requests")
    shown = line("status", env=line.env | {"OTEL_EXPORTER_OTLP_ENDPOINT": gone}).stdout
    why = "No module named 'requests': install what OpenTelemetry needs with: pip install 'optree-tracing[otel]'"
    assert f"waiting for  {gone}/v1/traces (1): {why}" in shown.splitlines()


def test_unreadable(line):
    """A pending session that cannot be read is named all the same."""
    gone = dead()
    txn = mirrored(line, gone)
    (line.sessions / f"{txn}.json.zst").write_bytes(b"broken")
    assert [{"txn": txn, "spans": None, "destination": f"{gone}/v1/traces"}] == line.json("status")["pending"]
    assert f"{txn} (unreadable)" in line.read("status").stdout


def test_removed(line):
    """A session whose files were removed is not among those that are to be sent."""
    txn = mirrored(line, dead())
    (line.sessions / f"{txn}.json.zst").unlink()
    assert [] == line.json("status")["pending"]
