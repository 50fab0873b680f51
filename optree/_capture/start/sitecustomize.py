"""Has `optree_auto` run, found by PYTHONPATH as `optree run --auto` sets it. Another sitecustomize runs as it would without."""

import os
import sys

try:
    import optree_auto  # noqa: F401 - it starts by itself
except ImportError:  # this Python is another than that which has optree
    sys.stderr.write("optree: calls of models are not recorded: optree is not installed for %s\n" % sys.executable)  # noqa: UP031

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != HERE]
own = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize  # noqa: F401 - the program's
except ImportError as error:
    if error.name != "sitecustomize":
        raise
finally:
    if own is not None:
        sys.modules.setdefault("sitecustomize", own)
