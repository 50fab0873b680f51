"""Checks that run before all other imports: they find the other package of this name, and Ctrl-C shows no traceback of imports.

``optree`` on PyPI is a PyTree library that some PyTorch and Keras code uses. Installed over ours (or ours over it), files of both lie side
by side, and each breaks the other in ways that are hard to understand.
"""

# Python has imported all of these already: until `end_by_interrupts` is done, Ctrl-C shows a traceback.
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import NoReturn
else:
    import _signal as signal  # a part of Python itself, as `signal` is not, which makes enumerations of it

_THEIRS = ("ops.py", "pytree.py", "treespec.py", "accessors.py", "dataclasses.py", "functools.py")
_ends = False
"""True while Ctrl-C ends the process, where it would raise."""


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


def end_by_interrupts() -> None:
    """Let Ctrl-C end the command by the signal while it imports the package: there is nothing yet that could catch it."""
    global _ends  # noqa: PLW0603 - a process imports the package once
    if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        try:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            _ends = True
        except ValueError:  # a program of that name imports it in a thread
            return


def raise_interrupts() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt` again, where it ended the command until now."""
    global _ends  # noqa: PLW0603 - as above
    if _ends:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _ends = False


def refuse_what_is_left(package: object) -> None:
    """Raise `ImportError` that says what to do if the other package's removal took `optree/__init__.py` along, which it had replaced."""
    if getattr(package, "__file__", None) is None:
        _refuse(
            "files of optree-tracing are missing, as after `pip uninstall optree` where the PyTree library optree was installed over it: "
            "pip install --force-reinstall --no-deps optree-tracing"
        )


def _refuse(message: str) -> "NoReturn":
    """Raise `ImportError`; the command `optree` ends with the message alone, which a traceback would hide."""
    if _is_command():
        raise SystemExit(f"optree: {message}")
    raise ImportError(message)


def _is_command() -> bool:
    """Tell whether this process is the command: by the script's name, or as ``python -m optree``."""
    name = os.path.basename(sys.argv[0] if sys.argv else "")  # noqa: PTH119 - as above
    if name in ("-m", "__main__.py"):
        return sys.orig_argv[-len(sys.argv) :][:1] in (["optree"], ["-moptree"])  # a child of multiprocessing has its parent's argv alone
    return name.partition(".")[0] == "optree"
