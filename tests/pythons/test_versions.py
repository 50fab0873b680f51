import tomllib
from pathlib import Path

from tests.pythons.__main__ import SUITES

ROOT = Path(__file__).resolve().parents[2]


def test_versions_that_are_promised_are_tested():
    """The versions that the package names are the oldest one, which CI runs on, and those that `make test-pythons` runs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [
        words[-1] for words in (one.split(" :: ") for one in project["classifiers"]) if words[:-1] == ["Programming Language", "Python"]
    ]
    assert [project["requires-python"].removeprefix(">="), *SUITES] == named
