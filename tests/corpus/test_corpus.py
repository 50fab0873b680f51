"""Files that earlier versions wrote are read, and stand for the trees that they stood for then; `tests/corpus/make.py` wrote them."""

import json
from pathlib import Path

import pytest

from tests.corpus.summary import ledger, loaded, summary

HERE = Path(__file__).parent
EXPECTED = {path.parent: json.loads(path.read_text()) for path in sorted(HERE.glob("*/expected.json"))}
FILES = [pytest.param(corpus, name, id=f"{corpus.name}-{name}") for corpus, expected in EXPECTED.items() for name in expected]


@pytest.mark.parametrize(("corpus", "name"), [one for one in FILES if one.values[1] != "accounting"])
def test_a_file_of_an_earlier_version_stands_for_the_same_tree(corpus, name):
    """A journal, snapshot, export or OTLP payload gives the nodes, texts, times and sums that the version that wrote it read in it."""
    assert EXPECTED[corpus][name] == summary(loaded(corpus / name))


@pytest.mark.parametrize("corpus", EXPECTED, ids=[corpus.name for corpus in EXPECTED])
def test_the_ledger_of_an_earlier_version_adds_up(corpus):
    """It has the sums that it had then, and those are the sums of the session beside it."""
    assert EXPECTED[corpus]["accounting"] == ledger(corpus)


@pytest.mark.parametrize("corpus", EXPECTED, ids=[corpus.name for corpus in EXPECTED])
def test_each_file_is_read(corpus):
    """Every file of the corpus is of something that is compared."""
    assert {path.stem for path in corpus.iterdir()} == {*EXPECTED[corpus], "expected"}


@pytest.mark.parametrize("name", ["json", "plain", "gzip", "zstd"])
def test_what_holds_all_stands_for_one_tree(name):
    """A session is the same whichever of the files that hold all of it is read."""
    for expected in EXPECTED.values():
        assert expected["zstd"] == expected[name]
