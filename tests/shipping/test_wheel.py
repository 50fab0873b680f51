import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from optree import speed

ROOT = Path(__file__).resolve().parents[2]


def built(folder, **environment):
    """Return the path of a wheel, built from the checkout into an empty folder."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT], check=True, env=os.environ | environment)
    [path] = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Return the path of the wheel."""
    return built(tmp_path_factory.mktemp("wheel"))


def imported(wheel, folder, code):
    """Return what code prints that imports from the wheel's content, away from the checkout."""
    zipfile.ZipFile(wheel).extractall(folder)
    environment = os.environ | {"PYTHONPATH": str(folder)}
    run = subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return run.stdout.strip()


def test_top_level_names(wheel):
    """The wheel installs optree and its two exporter packages, and no other top-level name."""
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {"optree", "optree_otel", "optree_formats", "optree_tracing-0.1.0.dist-info"} == names


def test_typed(wheel):
    """The wheel tells type checkers that optree is typed."""
    assert "optree/py.typed" in zipfile.ZipFile(wheel).namelist()


def test_complete(wheel, tmp_path):
    """What the wheel holds is enough to import every package, away from the checkout."""
    code = "import optree, optree_otel, optree_formats; print(optree.__file__)"
    assert str(tmp_path / "optree" / "__init__.py") == imported(wheel, tmp_path, code)


COMPILED = "from optree import SessionTreeBuilder, speed; SessionTreeBuilder('a').begin_op('tool', 'x').log('y'); print(speed.compiled())"


def test_compiled(wheel, tmp_path):
    """The wheel is one of this platform, with the compiled hot path in it and without the sources of it."""
    if not speed.compiled() and not os.environ.get("CI"):
        pytest.skip("no C compiler or Python headers here, or OPTREE_PURE is set")
    names = [name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("optree/speed/")]
    assert [
        "optree/speed/__init__.py",
        "optree/speed/_twins" + sysconfig.get_config_var("EXT_SUFFIX"),
        "optree/speed/_twins.pyi",
    ] == sorted(names)
    assert not wheel.name.endswith("-none-any.whl")
    assert "True" == imported(wheel, tmp_path, COMPILED)


@pytest.mark.parametrize(
    "environment", [{"CC": "/nowhere/cc"}, {"CC": '"'}, {"CC": "false"}, {"OPTREE_PURE": "1"}], ids=["none", "no command", "fails", "pure"]
)
def test_pure(tmp_path, environment):
    """Without a compiler, or on request, the wheel is built all the same: one for every platform, and it works."""
    wheel = built(tmp_path / "wheel", **environment)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "False" == imported(wheel, tmp_path / "content", COMPILED)
