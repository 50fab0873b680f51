import importlib
import re
from collections import Counter
from pathlib import Path

import pytest

from optree import Config
from tests.docs.test_docs import PUBLIC

DOCS = Path(__file__).resolve().parents[2] / "docs"
DIRECTIVE = re.compile(r"^::: (\S+)$", re.MULTILINE)


@pytest.mark.parametrize("package", PUBLIC)
def test_api_pages(package):
    """The API page of a package has each public name of it, once, and no other."""
    page = DOCS / "api" / f"{package.rpartition('.')[2]}.md"
    public = importlib.import_module(package).__all__
    assert Counter(f"{package}.{name}" for name in public) == Counter(DIRECTIVE.findall(page.read_text()))


def test_settings():
    """The page of settings has each option of `configure`, once, with its variable."""
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)`", (DOCS / "reference" / "settings.md").read_text(), re.MULTILINE)
    variables = {name: f"OPTREE_{name.upper()}" for name in Config.__struct_fields__} | {"enabled": "OPTREE_DISABLED"}
    assert sorted(variables.items()) == sorted(rows)
