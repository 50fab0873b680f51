import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from time import monotonic
from typing import Any

import grpc
import pytest

from optree_otel.otlp.batches import Limits
from optree_otel.otlp.responses import ExportResult
from optree_otel.otlp.sender import Clock, Sender
from optree_otel.otlp.transport import connect
from tests.otel import receiver as faults
from tests.otel.receiver import PROTOCOLS, Receiver, raw, receiver, until
from tests.otel.sending import SIZE, Holding, Names, Refusing, Simulated, names

BUSY_SECONDS = 10.0
"""Far more than a bounded call takes on any machine, far less than what it would wait for otherwise."""
QUICK = Limits(linger=0.01, attempt=0.4, first_backoff=0.02, last_backoff=0.1, denied_backoff=0.1)


@pytest.fixture(params=PROTOCOLS)
def collector(request: pytest.FixtureRequest) -> Iterator[Receiver]:
    """Run a receiver of each protocol."""
    with receiver(request.param) as one:
        yield one


@pytest.fixture
def source() -> Names:
    """Return a source."""
    return Names()


@pytest.fixture
def begin(source: Names) -> Iterator[Callable[..., Sender[str]]]:
    """Return a function that makes a sender to a receiver or a transport; they are closed at the end."""
    made: list[Sender[str]] = []

    def one(to: Any, limits: Limits = QUICK, clock: Clock | None = None, signal: Any = "traces", **destination: Any) -> Sender[str]:
        opened = (lambda: connect(to.destination(**destination))) if isinstance(to, Receiver) else (lambda: to)
        made.append(Sender(signal, source, opened, limits, clock))
        return made[-1]

    yield one
    for sender in made:
        sender.close(0.0)


def test_in_order(collector: Receiver, begin: Callable[..., Sender[str]], source: Names):
    """What is put arrives once, in order, in batches of bounded size, and is acknowledged when flush says so."""
    sender = begin(collector, Limits(linger=0.01, target_bytes=10_000, max_items=30))
    for name in names(500):
        sender.put(name)
    assert sender.flush(20)
    assert names(500) == [span.name for span in collector.spans()] == source.done
    assert max(len(one.body) for one in collector.received) <= 11_000
    health = sender.health()
    assert (500, 500, 0, "") == (health["sent"], health["delivered"], health["waiting"], health["last_error"])
    assert sum(len(one.body) for one in collector.received) == health["bytes"]


@pytest.mark.parametrize(
    "fault",
    [faults.unavailable(), faults.Fault(way="hang"), faults.throttled(0), faults.status(500, grpc.StatusCode.INTERNAL)],
    ids=["unavailable", "hang", "throttled", "failed"],
)
def test_tried_again(collector: Receiver, begin: Callable[..., Sender[str]], source: Names, fault: faults.Fault):
    """Whatever fails for now is tried again until it is delivered, in order."""
    sender = begin(collector)
    collector.script(fault, fault)
    for name in names(100):
        sender.put(name)
    assert sender.flush(20)
    assert names(100) == [span.name for span in collector.spans()] == source.done
    assert sender.health()["retried"] >= 2


def test_collector_comes_back(collector: Receiver, begin: Callable[..., Sender[str]]):
    """A flush while the collector is down says so within its timeout; the next one after it came back says that all is there."""
    collector.stop()
    sender = begin(collector)
    sender.put("one")
    started = monotonic()
    assert not sender.flush(0.3)
    assert monotonic() - started < BUSY_SECONDS
    assert sender.health()["trouble"]
    collector.start()
    assert sender.flush(20)
    assert ["one"] == [span.name for span in collector.spans()]
    assert "" == sender.health()["trouble"]


def test_an_hour_without_a_collector(collector: Receiver, begin: Callable[..., Sender[str]], source: Names):
    """A collector that is gone for an hour gets all that was put meanwhile, in order; one batch at most is held as bytes."""
    collector.stop()
    sent: list[str] = []
    held: list[int] = []

    def at_wait(time: float) -> None:
        held.append(sender.held_bytes)
        if time < 3600:
            for _ in range(3):
                sent.append(f"span-{len(sent)}")
                sender.put(sent[-1])
        elif not sent[-1].endswith("last"):
            collector.start()
            sent.append("last")
            sender.put("last")

    sender = begin(collector, Limits(target_bytes=20_000), Simulated(at_wait))
    sent.append("first")
    sender.put("first")
    assert collector.wait_until(lambda: any(span.name == "last" for span in collector.spans()), 60)
    assert sender.flush(20)
    assert sent == [span.name for span in collector.spans()] == source.done
    assert len(sent) > 3600
    assert max(held) < 21_000
    assert 100 < sender.health()["retried"] < 400


def test_batches_are_full(begin: Callable[..., Sender[str]]):
    """Under load each batch is about as large as wanted: none is split for its last entry."""
    sender = begin(held := Holding(), Limits(linger=0.0, target_bytes=10 * SIZE))
    sender.put("first")
    assert held.reached.wait(20)
    for name in names(100):
        sender.put(name)
    held.go_on.set()
    assert sender.flush(20)
    assert (101, True) == (sum(held.sizes), min(held.sizes[1:-1]) >= 8)


def test_a_full_queue(begin: Callable[..., Sender[str]], source: Names):
    """Of what a full queue cannot hold the newest is given back to its source, counted; what stays is delivered in order."""
    sender = begin(held := Holding(), Limits(linger=0.0, queue=100))
    sender.put("first")
    assert held.reached.wait(20)
    for name in names(1000):
        sender.put(name)
    held.go_on.set()
    assert not sender.flush(20)
    assert ["first", *names(100)] == source.done
    assert names(1000)[100:] == source.away
    assert 900 == sender.health()["left"]
    sender.put("afterwards")
    assert sender.flush(20)


def test_a_full_queue_while_the_collector_hangs(begin: Callable[..., Sender[str]], source: Names):
    """The queue is kept to its limit also in the middle of an attempt; what was before stays, and is delivered in order."""
    sender = begin(held := Holding(), Limits(linger=0.0, queue=100))
    sender.put("first")
    assert held.reached.wait(20)
    for name in names(1000):
        sender.put(name)
    assert until(lambda: sender.waiting <= 101)
    assert names(1000)[100:] == source.away
    assert 1 == sender.health()["requests"]
    held.go_on.set()
    assert not sender.flush(20)
    assert ["first", *names(100)] == source.done
    assert 900 == sender.health()["left"]


def test_one_bad_span(collector: Receiver, begin: Callable[..., Sender[str]], source: Names):
    """Of a batch that is refused for one span only that span is lost, and it is named with the collector's reason."""
    collector.always = faults.refused(lambda message: any(span.name == "bad" for span in message.resource_spans[0].scope_spans[0].spans))
    sender = begin(collector)
    expected = names(60)
    for name in [*expected[:37], "bad", *expected[37:]]:
        sender.put(name)
    assert not sender.flush(20)
    assert expected == [span.name for span in collector.spans()] == source.done
    assert (["bad"], 1, True) == (source.missed, sender.health()["lost"], "zeros" in source.reasons[0])
    assert "bad is lost" in sender.health()["last_error"]
    sender.put("next")
    assert sender.flush(20)


def test_unencodable(collector: Receiver, begin: Callable[..., Sender[str]], source: Names):
    """An item whose encoding fails is lost alone; one that needs nothing is passed over."""
    sender = begin(collector)
    for name in ["one", "unencodable", "nothing", "two"]:
        sender.put(name)
    assert not sender.flush(20)
    assert ["one", "two"] == source.done
    assert (["unencodable"], True) == (source.missed, "ValueError" in source.reasons[0])


def test_too_large(collector: Receiver, begin: Callable[..., Sender[str]], source: Names):
    """A batch that is too large is halved; a single span that is, is cut where its source can, else lost."""
    collector.always = faults.too_large(1000)
    sender = begin(collector)
    for name in names(40):
        sender.put(name)
    assert sender.flush(20)
    assert names(40) == [span.name for span in collector.spans()]
    collector.always = faults.too_large(150)
    for name in ["large", "fixed"]:
        sender.put(name)
    assert not sender.flush(20)
    assert ("large", "cut", ["fixed"]) == (collector.spans()[-1].name, collector.spans()[-1].trace_state, source.missed)


def test_larger_than_a_request(collector: Receiver, begin: Callable[..., Sender[str]], source: Names):
    """A span that no request holds is cut or lost before anything is sent."""
    sender = begin(collector, Limits(linger=0.01, max_bytes=150))
    for name in ["large", "fixed"]:
        sender.put(name)
    assert not sender.flush(20)
    assert (["large"], ["fixed"], 1) == (source.done, source.missed, collector.requests)


def test_partial_success(collector: Receiver, begin: Callable[..., Sender[str]]):
    """What the collector took and threw away is counted and shown, is not sent again, and makes flush false."""
    collector.script(faults.partial(2, "too old"))
    sender = begin(collector)
    for name in names(5):
        sender.put(name)
    assert not sender.flush(20)
    health = sender.health()
    assert (3, 2, 0, True) == (health["delivered"], health["rejected"], health["retried"], "too old" in health["last_error"])
    assert 1 == collector.requests


def test_denied(collector: Receiver, begin: Callable[..., Sender[str]]):
    """Nothing is lost to wrong credentials: it is kept, said, and delivered when they are right."""
    collector.always = faults.status(401, grpc.StatusCode.UNAUTHENTICATED, "no key")
    sender = begin(collector)
    sender.put("one")
    assert collector.wait_until(lambda: collector.requests >= 2)
    assert "OTEL_EXPORTER_OTLP_HEADERS" in sender.health()["trouble"]
    collector.always = None
    assert sender.flush(20)
    assert ["one"] == [span.name for span in collector.spans()]


def test_everything_refused(begin: Callable[..., Sender[str]], source: Names):
    """Where every single entry is refused, few are lost a minute: it is not the entries."""
    waited: list[float] = []
    sender = begin(transport := Refusing(ExportResult("refused", "no")), Limits(), Simulated(waited.append))
    for name in names(512):
        sender.put(name)
    assert until(lambda: len(waited) > 120)
    minutes = waited[-1] / 60
    assert 8 <= len(source.missed) <= 8 + minutes + 2
    assert "refuses everything" in sender.health()["trouble"]
    assert len(transport.sizes) < 30 + 3 * minutes
    sender.close(0)


def test_not_served(begin: Callable[..., Sender[str]], source: Names):
    """A signal that the collector does not serve is switched off after one request, and not waited for."""
    sender = begin(transport := Refusing(ExportResult("unsupported", "takes no logs")), signal="logs")
    sender.put("one")
    assert sender.flush(20)
    for name in names(20):
        sender.put(name)
    assert sender.flush(20)
    assert (["logs"], ["one", *names(20)]) == (transport.signals, source.away)
    assert ("takes no logs", 21, 0) == (sender.health()["off"], sender.health()["left"], sender.waiting)


def test_backoff(begin: Callable[..., Sender[str]]):
    """Attempts come apart more and more, from one second to thirty; the collector's own wish wins, and no flush cuts it short."""
    waited: list[float] = []
    answers = [ExportResult("retry")] * 8 + [ExportResult("retry", after=100.0), ExportResult("delivered")]
    pauses: list[float] = []

    class Timed(Refusing):
        def send(self, signal: str, body: bytes, timeout: float) -> ExportResult:
            pauses.append(clock.time)
            return super().send(signal, body, timeout)

    clock = Simulated(waited.append)
    sender = begin(Timed(*answers), Limits(), clock)
    sender.put("one")
    assert until(lambda: len(pauses) == 10)
    assert sender.flush(20)
    apart = [later - earlier for earlier, later in pairwise(pauses)]
    for seconds, base in zip(apart, [1, 2, 4, 8, 16, 30, 30, 30], strict=False):
        assert 0.7 * base <= seconds <= base + 0.001
    assert 100.0 == pytest.approx(apart[8])


def test_flush_cuts_a_pause_short(collector: Receiver, begin: Callable[..., Sender[str]]):
    """A flush tries at once, also in the middle of a long pause of our own."""
    collector.script(faults.unavailable())
    sender = begin(collector, Limits(linger=0.0, first_backoff=300.0, last_backoff=300.0))
    sender.put("one")
    assert until(lambda: sender.health()["retried"] == 1)
    assert sender.flush(20)


@pytest.mark.parametrize("way", ["hang", "drip", "html"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_close_is_bounded(protocol: str, way: str, begin: Callable[..., Sender[str]]):
    """Closing returns within its timeout whatever the other side does, and says that not all is there."""
    with raw(way) as port:
        endpoint = f"http://127.0.0.1:{port.port}/v1/traces" if protocol != "grpc" else f"127.0.0.1:{port.port}"
        sender = begin(Receiver(protocol), endpoint=endpoint)
        sender.put("one")
        started = monotonic()
        assert not sender.close(0.25)
        assert monotonic() - started < BUSY_SECONDS
        assert not sender.flush(5)


def test_closed(collector: Receiver, begin: Callable[..., Sender[str]]):
    """Closing delivers what is queued; what is put afterwards is not kept."""
    sender = begin(collector)
    sender.put("one")
    assert sender.close(20)
    for name in names(10):
        sender.put(name)
    assert until(lambda: sender.waiting == 0)
    assert ["one"] == [span.name for span in collector.spans()]


def test_closed_at_work(begin: Callable[..., Sender[str]]):
    """A sender that is closed in the middle of a request ends with that request, and keeps nothing."""
    sender = begin(held := Holding())
    sender.put("one")
    assert held.reached.wait(20)
    assert not sender.close(0.0)
    for name in names(10):
        sender.put(name)
    held.go_on.set()
    assert until(lambda: sender.waiting == 0)
    assert until(lambda: sender._thread is not None and not sender._thread.is_alive())
    sender.put("later")
    assert 0 == sender.waiting


def test_nothing_put(begin: Callable[..., Sender[str]]):
    """A sender that was given nothing has no thread and nothing to wait for."""
    before = threading.active_count()
    sender = begin(Refusing(ExportResult("delivered")))
    assert sender.flush(0)
    assert before == threading.active_count()


def test_many_threads(collector: Receiver, begin: Callable[..., Sender[str]]):
    """What several threads put all arrives, each thread's in its order, while others flush."""
    sender = begin(collector, Limits(linger=0.001, max_items=50))

    def put(which: int) -> None:
        for number in range(300):
            sender.put(f"{which}:{number}")
            if number % 100 == 0:
                sender.flush(20)

    threads = [threading.Thread(target=put, args=(which,)) for which in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sender.flush(20)
    arrived = [span.name for span in collector.spans()]
    for which in range(4):
        assert [f"{which}:{number}" for number in range(300)] == [name for name in arrived if name.startswith(f"{which}:")]
    assert 1200 == len(arrived)


def test_a_source_that_raises(collector: Receiver, begin: Callable[..., Sender[str]], source: Names):
    """An error of the source's own is counted as text, and the thread goes on."""

    def fail(_: Sequence[str]) -> None:
        raise OSError("disk full")

    source.delivered = fail  # type: ignore[method-assign]
    sender = begin(collector)
    sender.put("one")
    assert sender.flush(20)
    assert "disk full" in sender.health()["last_error"]
    sender.put("two")
    assert sender.flush(20)


def test_library_missing(source: Names):
    """Where the transport's library is missing, the text says what to install."""

    def absent() -> Any:
        raise ModuleNotFoundError("No module named 'grpc'")

    sender = Sender("traces", source, absent, QUICK)
    sender.put("one")
    assert not sender.flush(0.3)
    assert "pip install" in sender.health()["trouble"]
    sender.close(0)
