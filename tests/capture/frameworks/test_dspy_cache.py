"""A replay of a program whose calls DSPy's own cache answers: that is said, and how to have the recording answer them."""

import sys
from importlib.util import find_spec

import pytest

if find_spec("dspy") is None:
    pytest.skip("dspy is tried in an environment of its own: make test-frameworks", allow_module_level=True)

from tests.capture.frameworks.documented_dspy import says
from tests.cli.conftest import CommandLine

PROGRAM = """
import sys, dspy
dspy.configure(lm=dspy.LM("openai/gpt-5", api_base=sys.argv[1] + "/v1", api_key="none", num_retries=0))
math = dspy.Predict("question -> answer")
print(math(question="Two?").answer, math(question="Three?").answer)
"""


def test_a_replay_with_a_warm_cache(provider, tmp_path):
    """What the cache answers is not said to be made live, and the exit code is 1, for the recording did not answer; else it does."""
    line = CommandLine(tmp_path)
    line.agent.write_text(PROGRAM)
    provider.says(says(answer="It rains"))
    program = ("--", sys.executable, line.agent, provider.url)
    warm, cold = ({"DSPY_CACHEDIR": str(tmp_path / name), "LITELLM_LOCAL_MODEL_COST_MAP": "True"} for name in ("warm", "cold"))
    assert "It rains It rains\n" == line("run", "--auto", *program, env=warm).stdout
    recorded = min(line.txns())
    sent = len(provider.requests)
    replayed = line("replay", recorded, *program, env=warm, code=1)
    said = "; 2 calls of models were answered by the program's own cache, and not by the recording: DSPY_CACHEDIR=an empty folder; "
    assert ("It rains It rains\n", 1) == (replayed.stdout, replayed.stderr.count(said))
    assert (0, 0) == (replayed.stderr.count("made live"), replayed.stderr.count("optree fork"))
    replayed = line("replay", recorded, *program, env=cold)
    assert ("It rains It rains\n", 0) == (replayed.stdout, replayed.stderr.count("own cache"))
    cached = line("run", "--auto", *program, env=warm).stderr.partition("session ")[2].partition(" ")[0]
    assert "2 calls of models were answered by the program's own cache, as then" in line("replay", cached, *program, env=warm).stderr
    assert sent == len(provider.requests)
