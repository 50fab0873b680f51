import email
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import optree
from optree import _speed as speed

ROOT = Path(__file__).resolve().parents[2]
NAME = f"optree_tracing-{optree.__version__}"
INFO = f"{NAME}.dist-info"


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
    """The wheel installs optree and its two exporter packages, and what OPTREE_AUTO has a Python run; no other top-level name."""
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {"optree", "optree_otel", "optree_formats", "optree_auto.py", "optree-auto.pth", INFO} == names


@pytest.mark.parametrize("package", ["optree", "optree_otel", "optree_formats"])
def test_typed(wheel, package):
    """The wheel tells type checkers that each of its packages is typed."""
    assert f"{package}/py.typed" in zipfile.ZipFile(wheel).namelist()


def test_license_in_the_wheel(wheel):
    """The wheel names the licence in its metadata and holds its text."""
    content = zipfile.ZipFile(wheel)
    metadata = email.message_from_bytes(content.read(f"{INFO}/METADATA"))
    assert ("Apache-2.0", ["LICENSE"]) == (metadata["License-Expression"], metadata.get_all("License-File"))
    assert (ROOT / "LICENSE").read_bytes() == content.read(f"{INFO}/licenses/LICENSE")


def test_license_in_the_source_distribution(tmp_path):
    """The source distribution names the licence in its metadata and holds its text."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", tmp_path]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    with tarfile.open(tmp_path / f"{NAME}.tar.gz") as content:
        metadata = email.message_from_binary_file(content.extractfile(f"{NAME}/PKG-INFO"))
        assert ("Apache-2.0", ["LICENSE"]) == (metadata["License-Expression"], metadata.get_all("License-File"))
        assert (ROOT / "LICENSE").read_bytes() == content.extractfile(f"{NAME}/LICENSE").read()


def test_complete(wheel, tmp_path):
    """What the wheel holds is enough to import every package, away from the checkout."""
    code = "import optree, optree_otel, optree_formats; print(optree.__file__)"
    assert str(tmp_path / "optree" / "__init__.py") == imported(wheel, tmp_path, code)


COMPILED = "import optree, optree._speed as speed; optree.SessionTreeBuilder('a').begin_op('tool', 'x').log('y'); print(speed.compiled())"


def test_compiled(wheel, tmp_path):
    """The wheel is one of this platform, with the compiled hot path in it and without the sources of it."""
    if not speed.compiled() and not os.environ.get("CI"):
        pytest.skip("no C compiler or Python headers here, or OPTREE_PURE is set")
    names = [name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("optree/_speed/")]
    assert [
        "optree/_speed/__init__.py",
        "optree/_speed/_twins" + sysconfig.get_config_var("EXT_SUFFIX"),
        "optree/_speed/_twins.pyi",
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
