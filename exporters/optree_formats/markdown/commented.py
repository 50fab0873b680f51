"""The comments of a `CommentedMap`, the form in which ruamel.yaml gives them to those who edit YAML with it."""

from __future__ import annotations

from io import StringIO
from typing import Any, cast

from optree_formats.markdown import foreign_yaml
from optree_formats.markdown.comments import Comments


def comments_of(value: Any) -> Comments:
    """Return the comments of a commented map by their places: it is written by its own library, and read again."""
    from ruamel.yaml import YAML

    written = StringIO()
    writer = cast("Any", YAML(typ="rt", pure=True))
    writer.width = 1 << 20
    writer.dump(value, written)
    return foreign_yaml.parse(written.getvalue()).comments
