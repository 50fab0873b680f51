"""Notices when the other package of this name lies in the same folder.

``optree`` on PyPI is a PyTree library that some PyTorch and Keras code uses. Installed over ours (or ours over it), files of both lie side
by side, and each breaks the other in ways that are hard to understand.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

_THEIRS = ("ops.py", "pytree.py", "treespec.py", "accessors.py", "dataclasses.py", "functools.py")


def refuse_the_other_optree(init_file: str) -> None:
    """Raise `ImportError` that says what to do if files of the PyTree library lie beside ours."""
    folder = os.path.dirname(os.path.abspath(init_file))  # noqa: PTH100, PTH120 - pathlib would double the time of `import optree`
    mixed = [name for name in os.listdir(folder) if name in _THEIRS or name.startswith("_C.")]  # noqa: PTH208 - as above
    if mixed:
        _refuse(
            f"two packages named optree are mixed up in {folder} ({', '.join(sorted(mixed))} belong to the PyTree library optree). "
            "This one is optree-tracing. Put them into separate environments: "
            "pip uninstall -y optree optree-tracing, then pip install optree-tracing"
        )


def refuse_what_is_left(package: object) -> None:
    """Raise `ImportError` that says what to do if the other package's removal took `optree/__init__.py` along, which it had replaced."""
    if getattr(package, "__file__", None) is None:
        _refuse(
            "files of optree-tracing are missing, as after `pip uninstall optree` where the PyTree library optree was installed over it: "
            "pip install --force-reinstall --no-deps optree-tracing"
        )


def _refuse(said: str) -> NoReturn:
    """Raise `ImportError`; the command `optree` ends with the message alone, which a traceback would hide."""
    if _is_command():
        raise SystemExit(f"optree: {said}")
    raise ImportError(said)


def _is_command() -> bool:
    """Tell whether this process is the command: by the script's name, or as ``python -m optree``."""
    name = os.path.basename(sys.argv[0] if sys.argv else "")  # noqa: PTH119 - as above
    if name in ("-m", "__main__.py"):
        return sys.orig_argv[-len(sys.argv)] in ("optree", "-moptree")
    return name.partition(".")[0] == "optree"
