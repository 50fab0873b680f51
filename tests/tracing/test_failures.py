"""Why calls failed: told by their status, exception or text."""

import asyncio
import contextlib

import pytest
from botocore.exceptions import ClientError

import optree
from optree._tracing.failures import class_of_error, class_of_raised, class_of_status, class_of_text, status_of
from optree._tree import walk_ops
from optree.testing import capture


def refused_by_aws(code, status):
    """Return what botocore raises."""
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "Converse")


class OddError(Exception):
    """An exception whose attributes cannot be read."""

    @property
    def response(self):
        """Fail."""
        raise RuntimeError("odd")


@pytest.mark.parametrize(
    ("expected", "error"),
    [
        ("timeout", TimeoutError()),
        ("network", ConnectionResetError()),
        ("auth", PermissionError()),
        ("invalid", ValueError("no city")),
        ("rate_limit", refused_by_aws("ThrottlingException", 429)),
        ("quota", refused_by_aws("ServiceQuotaExceededException", 400)),
        (None, KeyError("city")),
        (None, OddError()),
        (None, None),
    ],
)
def test_the_class_of_an_exception(expected, error):
    """Exceptions of Python's and of clients' are told by their class and status; others have no class."""
    assert expected == class_of_error(error)


def test_a_status_without_a_text():
    """A status alone has its class."""
    assert ["auth", "invalid", "model"] == [class_of_status(status, None) for status in (401, 418, 503)]


SAID = [
    ("auth", "Error executing tool issues: 401 Unauthorized"),
    ("auth", "Authentication failed: bad credentials"),
    ("auth", "Invalid API key"),
    ("quota", "You exceeded your current quota"),
    ("rate_limit", "API rate limit exceeded for user 7"),
    ("rate_limit", "429 Too Many Requests"),
    ("timeout", "The request timed out after 30 s"),
    ("timeout", "504 Gateway Timeout"),
    ("network", "connect ECONNREFUSED 127.0.0.1:80"),
    ("network", "[Errno 111] Connection refused"),
    ("network", "Connection closed"),
    ("network", "getaddrinfo ENOTFOUND api.example.org"),
    ("invalid", "1 validation error for weatherArguments: city is missing"),
    ("invalid", "Unknown tool: wether"),
    ("invalid", "MCP error -32602: Invalid arguments"),
    (None, "Error executing tool weather"),
    (None, "no author has said so"),
    (None, ""),
]


@pytest.mark.parametrize(("expected", "said"), SAID)
def test_the_class_of_a_text(expected, said):
    """Where a failure is told by a text alone it is told by the words that are used for it; others have no class (S4-45)."""
    assert expected == class_of_text(said)


def failures(recording):
    """Return how each op ended, with the class of that."""
    return [(op.status, (op.attributes or {}).get("error.type")) for _, _, op in walk_ops(recording.tree)]


def by_block(kind, error):
    """Raise in a block."""
    with kind("x"):
        raise error


def by_decorator(kind, error):
    """Raise in a function."""

    @kind
    def raising():
        raise error

    raising()


def by_coroutine(kind, error):
    """Raise in a coroutine."""

    @kind
    async def raising():
        raise error

    asyncio.run(raising())


def by_generator(kind, error):
    """Raise in a generator."""

    @kind
    def raising():
        yield "a"
        raise error

    list(raising())


class DeepError(Exception):
    """An answer's body as its text, as Ollama's client has it."""

    def __init__(self):
        self.error, self.status_code = '{"a":' * 5000, 400
        super().__init__(self.error)


@pytest.mark.parametrize("way", [by_block, by_decorator, by_coroutine, by_generator])
def test_a_body_that_is_nested_too_deep_to_be_read(way, recording):
    """The op has failed as any other, and nothing went wrong in recording it."""
    with pytest.raises(DeepError), optree.session("agent"), optree.turn():
        way(optree.tool, DeepError())
    assert [("failed", "invalid")] == failures(recording)
    assert ("failed", "DeepError: Error code: 400") == (recording.tree.session.status, recording.tree.session.error)
    assert 0 == optree.health()["failures"]


@pytest.mark.parametrize("way", [by_block, by_decorator, by_coroutine, by_generator])
@pytest.mark.parametrize("kind", [optree.llm, optree.tool])
def test_an_op_of_the_programs_own(way, kind):
    """An op that the program records itself, an llm's or a tool's, has the class of the exception that it failed with (S4-45)."""
    with capture() as recording, optree.session("agent"), optree.turn():
        for error in (TimeoutError("slow"), KeyError("city")):
            with contextlib.suppress(TimeoutError, KeyError):
                way(kind, error)
    assert [("failed", "timeout"), ("failed", None)] == failures(recording)


def test_what_the_program_says_of_a_failure_stands():
    """A class that the program names is its own; an op that ends well while an exception is handled has none."""
    with capture() as recording, optree.session("agent"), optree.turn():
        try:
            by_block(optree.tool, KeyError("city"))
        except KeyError:
            with optree.tool("well"):
                pass
        with contextlib.suppress(TimeoutError), optree.tool("named", **{"error.type": "ours"}):
            raise TimeoutError
    assert [("failed", None), ("ok", None), ("failed", "ours")] == failures(recording)


def test_an_exception_that_is_handled_is_not_why_another_op_fails():
    """The class of the exception that is being handled is that of an op which failed with it, and of no other."""
    with capture(), optree.session("agent"), optree.turn():
        try:
            by_block(optree.tool, TimeoutError("slow"))
        except TimeoutError:
            found = [class_of_raised(error) for error in ("TimeoutError: slow", "no such city", None)]
    assert (["timeout", None, None], None) == (found, class_of_raised("TimeoutError: slow"))


def told(**members):
    """Return an exception with these attributes."""
    error = OSError("refused")
    vars(error).update(members)
    return error


@pytest.mark.parametrize(
    ("expected", "error"),
    [
        (429, refused_by_aws("ThrottlingException", 429)),
        (503, told(status_code=503)),
        (529, told(status=529)),
        (404, told(code=404)),
        (0, told(code=14)),  # gRPC's
        (0, told(code="404")),
        (0, told(status=True)),
        (0, SystemExit(143)),
        (0, OddError()),
        (0, None),
    ],
)
def test_the_status_that_an_exception_tells(expected, error):
    """It is an HTTP status of a client's exception, and no other number: not of gRPC, not the one that a process exits with."""
    assert expected == status_of(error)
