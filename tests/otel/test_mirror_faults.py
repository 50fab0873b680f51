from collections import Counter

import optree
from tests.otel import receiver as fake
from tests.otel.backends.waiting import wait_for
from tests.otel.mirroring import expected, loaded, mirrored, resume, tracing
from tests.otel.receiver import PROTOCOLS, Fault, partial, receiver

HANGS = Fault(way="hang")


def ids(collector):
    """Return how often each span came, by its id in hex."""
    return Counter(span.span_id.hex() for span in collector.spans())


def test_what_is_delivered_stays_delivered(tmp_path):
    """After a kill in the middle of a request only what the collector has not acknowledged is sent again."""
    with receiver("http/protobuf") as collector:
        collector.script(Fault(), HANGS)
        with tracing(tmp_path, collector.endpoint, "slow") as (program, txn):
            assert collector.wait_until(lambda: collector.requests >= 2, 30)
            program.kill()
            program.wait()
        first = ids(collector)
        assert first
        assert [txn, "True"] == resume(txn, ["brief", "flush"], tmp_path, collector.endpoint)
        assert {1} == set(ids(collector).values())
        assert {node.span_id for node in expected(loaded(tmp_path, txn).session)} == set(ids(collector))


def test_partial_success_is_counted(tmp_path):
    """What the collector takes and throws away is counted and said, and the flush is no success."""
    with receiver("http/protobuf") as collector, mirrored(tmp_path, collector.endpoint):
        collector.script(partial(1, "too old"))
        with optree.session("lead"), optree.turn():
            pass
        assert not optree.flush("export", 20)
        counts = optree.health()["otel"]["traces"]
    assert (1, 1) == (counts["delivered"], counts["rejected"])
    assert "too old" in counts["last_error"]


def test_trouble_is_readable(tmp_path):
    """While nothing passes, health says why; once it does, it says so no longer, and nothing is missing."""
    with receiver("http/protobuf") as collector, mirrored(tmp_path, collector.endpoint):
        collector.always = fake.unavailable()
        with optree.session("lead"), optree.turn():
            pass
        assert not optree.flush("export", 0.5)
        assert [f"OpenTelemetry traces: {collector.endpoint}/v1/traces answered 503: try later"] == optree.health()["problems"]
        collector.always = None
        assert wait_for(lambda: optree.flush("export", 10))
        assert [] == optree.health()["problems"]
        assert [1, 1] == list(ids(collector).values())


def test_bad_nodes_do_not_cost_the_others(tmp_path):
    """Half characters, no numbers, 40 MiB, thousands of lines, an end before the start: each is sent, marked, and so are its neighbours."""
    for protocol in PROTOCOLS:
        with receiver(protocol) as collector, mirrored(tmp_path, collector.endpoint, protocol=protocol, content="true"):
            with optree.session("lead", note="\ud800"), optree.turn(user="\udfff"):
                with optree.tool("half \ud800 name", deep={"x": float("nan")}) as op:
                    op.log("\udc00")
                    op.account(cost_usd=float("nan"))
                with optree.llm(model="inf", temperature=float("inf")) as op:
                    op.response("x" * (40 << 20))
                with optree.tool("lines", big="y" * (40 << 20)) as op:
                    for number in range(5_000):
                        op.log(f"line {number}")
                with optree.tool("") as op:
                    op.bare.started_at += 60_000
                with optree.tool("good"):
                    pass
            assert optree.flush("export", 60)
            assert 7 == len(ids(collector)) == sum(ids(collector).values())
            spans = {key.key: span for span in collector.spans() for key in span.attributes if key.key.startswith("optree.invalid.")}
            assert "optree.invalid.time" in spans
            assert all(span.end_time_unix_nano > span.start_time_unix_nano > 0 for span in collector.spans())
            assert all(one.message.ByteSize() < 4 << 20 for one in collector.received)
            assert (0, 0) == tuple(optree.health()["otel"]["traces"][count] for count in ("lost", "rejected"))
