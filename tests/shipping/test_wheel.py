import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Return the path of the wheel, built from the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT], check=True)
    [path] = folder.iterdir()
    return path


def test_top_level_names(wheel):
    """The wheel installs optree and its two exporter packages, and no other top-level name."""
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {"optree", "optree_otel", "optree_formats", "optree_tracing-0.1.0.dist-info"} == names


def test_typed(wheel):
    """The wheel tells type checkers that optree is typed."""
    assert "optree/py.typed" in zipfile.ZipFile(wheel).namelist()


def test_complete(wheel, tmp_path):
    """What the wheel holds is enough to import every package, away from the checkout."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = "import optree, optree_otel, optree_formats; print(optree.__file__)"
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(tmp_path / "optree" / "__init__.py") == run.stdout.strip()
