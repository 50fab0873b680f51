"""`optree formats`: which file formats sessions are written to and read from."""

from __future__ import annotations

from optree.cli.options import Json
from optree.cli.screen import complain, show, show_json, table
from optree.formats.installed import installed_formats


def formats(*, as_json: Json = False) -> None:
    """List the file formats for `optree export --to NAME` and `optree import`, with how their files' names end and what they leave out.

    Formats of other packages are among them; one that lacks a library is named with what to install.

    Example: [bold]optree formats[/bold]
    """
    found, problems = installed_formats()
    if as_json:
        listed = [{"name": one.name, "suffix": one.suffix, "about": one.about, "cannotHold": [*one.cannot_hold]} for one in found]
        show_json({"formats": listed, "problems": problems})
        return
    show("\n".join(table(("NAME", "SUFFIX", "ABOUT"), [(one.name, one.suffix, one.about) for one in found])), fold=True)
    for one in found:
        show(f"\n{one.name} leaves out: {', '.join(one.cannot_hold) or 'nothing'}", fold=True)
    for problem in problems:
        complain(problem)
