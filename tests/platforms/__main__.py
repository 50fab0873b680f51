"""Runs pytest as if optree were on another system: ``python -m tests.platforms darwin|win32 [pytest's arguments]``.

What that system lacks is taken from typeshed's stubs, which mypy brings; optree's modules do not find it, here and in the programs that
tests start (`start/sitecustomize.py`). Everything else, pytest, the standard library and other packages, goes on as on this machine.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from tests.platforms.typeshed import differences

HERE = Path(__file__).parent


def main(system: str, arguments: list[str]) -> None:
    found = differences(system)
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
        json.dump({"system": system, **found}, file)
    os.environ["OPTREE_TEST_SYSTEM"] = file.name
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE / "start"), os.environ.get("PYTHONPATH")]))
    if system == "win32":
        os.environ["OPTREE_PURE"] = "1"  # there is no compiler that the build would know
    print(f"{system}: without {sum(map(len, found['lacking'].values()))} names and {len(found['absent'])} modules", flush=True)
    os.execv(sys.executable, [sys.executable, "-m", "pytest", "-p", "tests.platforms.plugin", *arguments])


main(sys.argv[1], sys.argv[2:])
