"""`optree instrument`: the libraries whose calls of models are recorded without a change of the program."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from optree._capture import LIBRARIES, compared, release_of
from optree._cli.options import Json
from optree._cli.screen import show, show_json, table
from optree._tracing.config import is_on

_MEMBERS = ("name", "installed", "tried", "compared", "on")


def instrument(
    *,
    _list: Annotated[bool, typer.Option("--list", help="List them, as without it.")] = False,
    as_json: Json = False,
) -> None:
    """List the libraries that `optree.instrument()` and `optree run --auto` record calls of models through: installed, tried, on or off.

    Example: [bold]optree instrument[/bold]
    """
    on = is_on(os.environ.get("OPTREE_AUTO", ""))
    found = [(name, release_of(name), library.tried) for name, library in LIBRARIES.items()]
    libraries = [(name, release, tried, compared(name, release), on and release is not None) for name, release, tried in found]
    if as_json:
        show_json({"auto": on, "libraries": [dict(zip(_MEMBERS, one, strict=True)) for one in libraries]})
        return
    rows = [
        (name, f"{release or 'not installed'}{f' ({age})' if age else ''}", tried, "" if release is None else "on" if is_hooked else "off")
        for name, release, tried, age, is_hooked in libraries
    ]
    show("\n".join(table(("LIBRARY", "INSTALLED", "TRIED", "ON"), rows)))
    show(f"\nOPTREE_AUTO is {'on' if on else 'off: optree run --auto, or optree.instrument(), records them'}", fold=True)
