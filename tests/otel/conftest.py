"""Real backends, started once a run and killed at its end. Where one is missing, CI fails; elsewhere its tests are left out, by name."""

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.otel.backends.binaries import MissingError
from tests.otel.backends.collector import Collector
from tests.otel.backends.jaeger import Jaeger
from tests.otel.backends.others import MLflow, Phoenix
from tests.otel.backends.server import Server
from tests.otel.backends.tempo import Tempo

LEFT_OUT = "left out: "


def pytest_configure(config):
    """Make the marker known."""
    config.addinivalue_line("markers", "others: needs Phoenix and MLflow (`make test-others`)")
    config.addinivalue_line("markers", "tempo: needs a Grafana Tempo on the machine (`make test-tempo`)")


def pytest_terminal_summary(terminalreporter):
    """Name the tests that were left out for want of a backend, each with what to do."""
    left_out = [report for report in terminalreporter.stats.get("skipped", []) if LEFT_OUT in str(report.longrepr)]
    if left_out:
        terminalreporter.section("left out for want of a backend")
    for report in left_out:
        terminalreporter.line(f"{report.nodeid}: {str(report.longrepr[2]).partition(LEFT_OUT)[2]}")


def started(backend: Callable[[], Server], *, must: bool) -> Server:
    """Start a backend; where its program is missing, fail the test if CI must have it, else leave it out."""
    try:
        return backend()
    except MissingError as missing:
        if must:
            pytest.fail(f"CI runs the tests of every backend, but {missing}", pytrace=False)
        pytest.skip(f"{LEFT_OUT}{missing}")


@pytest.fixture(scope="session")
def jaeger(tmp_path_factory) -> Iterator[Jaeger]:
    """A running Jaeger, for all tests: take trace ids and service names of your own."""
    with started(lambda: Jaeger(tmp_path_factory.mktemp("jaeger")), must=bool(os.environ.get("CI"))) as running:
        yield running


@pytest.fixture
def collector(tmp_path) -> Iterator[Callable[..., Collector]]:
    """Starts Collectors: `collector()` writes what it gets to its file, `collector(jaeger.grpc)` passes it on as well."""
    numbers = itertools.count()
    with ExitStack() as running:

        def start(to: str = "") -> Collector:
            folder = tmp_path / f"collector{next(numbers)}"
            return running.enter_context(started(lambda: Collector(folder, to), must=bool(os.environ.get("CI"))))

        yield start


@pytest.fixture(scope="session")
def tempo(tmp_path_factory) -> Iterator[Tempo]:
    """A running Tempo, for all tests marked `tempo`: only where the machine has one, as no package registry does."""
    with started(lambda: Tempo(tmp_path_factory.mktemp("tempo")), must=bool(os.environ.get("OPTREE_TEMPO"))) as running:
        yield running


@pytest.fixture
def phoenix(tmp_path) -> Iterator[Phoenix]:
    """A running Phoenix."""
    with started(lambda: Phoenix(tmp_path / "phoenix"), must=bool(os.environ.get("OPTREE_PHOENIX"))) as running:
        yield running


@pytest.fixture
def mlflow(tmp_path) -> Iterator[MLflow]:
    """A running MLflow."""
    with started(lambda: MLflow(tmp_path / "mlflow"), must=bool(os.environ.get("OPTREE_MLFLOW"))) as running:
        yield running
