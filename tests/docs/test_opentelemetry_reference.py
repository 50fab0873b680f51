import re
from pathlib import Path

from optree_otel import settings
from optree_otel.signals import names
from optree_otel.signals.limits import PROFILES

DOCS = Path(__file__).resolve().parents[2] / "docs"
REFERENCE = DOCS / "reference" / "opentelemetry.md"
NO_NAMES = {"CONVENTIONS", "NEWER", "PROVIDERS", "OI_KINDS"}
"""What the table of names holds beside names: its version, sources, and values."""


def emitted():
    """Return every name in the table of names; a prefix ends with a dot."""
    found = set()
    for key, value in vars(names).items():
        if key.isupper() and key not in NO_NAMES:
            values = value.values() if isinstance(value, dict) else [value] if isinstance(value, str) else value
            found |= {one[0] if key == "REQUEST" else one for one in values}
    return found


def first_column(text):
    """Return the code in the first column of a page's tables."""
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return [found for cell in cells for found in re.findall(r"`([^`]+)`", cell)]


def test_names():
    """The reference lists each name that leaves, once, and no other."""
    listed = first_column(REFERENCE.read_text())
    assert sorted(emitted()) == sorted(listed)


def test_options():
    """The how-to lists each option of the mirror, with its variable."""
    listed = first_column((DOCS / "howto" / "opentelemetry.md").read_text())
    assert set(settings.OPTIONS) <= set(listed)
    text = (DOCS / "howto" / "opentelemetry.md").read_text()
    assert [] == [name for name in settings.OPTIONS if f"`OPTREE_OTEL_{name.upper()}`" not in text]


def test_profiles():
    """The page on backends says of each profile what it holds."""
    text = (DOCS / "backends.md").read_text()
    [table] = re.findall(r"## Profiles\n(.*?)(?=\n## |\Z)", text, re.DOTALL)
    lines = [[cell.strip(" `") for cell in line.split("|")] for line in table.splitlines() if line.startswith("| `")]
    assert {
        name: [f"{one.value_bytes:,}", f"{one.events:,}", f"{one.span_bytes:,}", f"{one.trace_bytes:,}" if one.trace_bytes else "–"]
        for name, one in PROFILES.items()
    } == {line[1]: line[2:6] for line in lines}
