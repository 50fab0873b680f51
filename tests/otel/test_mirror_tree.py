from tests.otel.backends.waiting import wait_for
from tests.otel.mirroring import expected, loaded, run, seen, trace_of


def test_all_of_a_tree_arrives(jaeger, tmp_path):
    """Each node, also those of threads, tasks, forks and other processes, is exactly one span where it belongs; Jaeger warns of nothing."""
    txn, whole = run(["everything"], tmp_path, jaeger.http)
    assert "True" == whole
    wanted = expected(loaded(tmp_path, txn).session)
    assert wanted == seen(jaeger.wait_for_trace(trace_of(txn), len(wanted)))
    assert [] == [warning for span in jaeger.shown(trace_of(txn)) for warning in span.warnings]


def test_all_of_a_tree_passes_the_collector(collector, tmp_path):
    """Through the Collector each span comes once."""
    between = collector()
    txn, _ = run(["everything"], tmp_path, between.http)
    wanted = expected(loaded(tmp_path, txn).session)
    assert wanted == seen(wait_for(lambda: found if len(found := between.spans()) >= len(wanted) else []))
