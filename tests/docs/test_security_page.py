import re
from pathlib import Path

from optree.redaction._forms import FORMS, NAMES

ROOT = Path(__file__).resolve().parents[2]


def test_count_of_detectors():
    """The page on security, and the changelog, say of as many forms and kinds of names as redaction has."""
    page, changes = (" ".join((ROOT / name).read_text().split()) for name in ("docs/security.md", "CHANGELOG.md"))
    assert [(str(len(FORMS)), str(len(NAMES)))] == re.findall(r"two tables: (\d+) forms .*? and (\d+) kinds of names", page)
    assert [str(len(FORMS))] == re.findall(r"Redaction finds (\d+) forms of credentials", changes)
