"""The page of what capture was tried on is what tests say."""

import ast

import pytest

from tests.capture import matrix


def test_the_page_is_what_tests_say():
    """The page is as the markers of tests have it; after a change of those: python -m tests.capture.matrix."""
    assert matrix.page() == matrix.PAGE.read_text("utf-8"), "write it anew: python -m tests.capture.matrix"


def test_the_programs_that_are_asked_for_are_there():
    """Of each package that the page is to have there is a program as its documentation writes it, recorded in both ways with its price."""
    whole = {"tools", "sub-agents", "killed", "resumed"}
    wanted = {
        "openai": {"plain", "streamed", "tools", "parsed", "killed", "resumed"},
        "anthropic": {"plain", "streamed", "thinking", "cached", "tools", "killed", "resumed"},
        "google-genai": {"plain", "streamed", "tools", "parsed"},
        "ollama": {"plain", "streamed", "tools", "parsed"},
        "litellm": {"plain", "streamed", "tools"},
        "langchain-core": {"plain"},
        "openai-agents": whole,
        "langgraph": whole,
        "pydantic-ai-slim": whole,
        "google-adk": whole,
        "crewai": whole,
        "agno": whole | {"streamed"},
        "smolagents": whole | {"plain", "streamed"},
        "dspy": {"plain", *whole},
        "strands-agents": whole | {"streamed"},
        "llama-index-core": whole | {"plain", "streamed"},
        "claude-agent-sdk": whole,
    }
    found = {}
    for row in matrix.rows():
        if {"one line", "--auto"} == {*row.added} and {"tokens", "price"} <= {*row.checks}:
            found.setdefault(row.package, set()).update(row.what)
    assert wanted == found


@pytest.mark.parametrize(
    "wrong", ["'telepathic', added='one line', checks=()", "'plain', added='two lines', checks=()", "added=(), checks=()"]
)
def test_a_marker_that_says_nothing_known(wrong):
    """A marker with a word that the page does not explain is refused, with the test's name."""
    mark = ast.parse(f"pytest.mark.captured('openai', 'chat', {wrong})", mode="eval").body
    with pytest.raises(ValueError, match="test_x"):
        matrix._row(mark, "test_x")
