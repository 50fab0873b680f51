"""Runs the tests on each newer Python that this machine has or can get: `make test-pythons`.

    python -m tests.pythons [--quick | --wheel | --prepare] [VERSION | all | newest] [-- pytest's options]

A version is taken from PATH or from pyenv. Else it comes from Debian's later suites, which takes a system with apt and its superuser:
debootstrap puts a suite into a root of its own. Each version gets a copy of the repository, and an environment where the compiled parts are
built. All of it is kept in OPTREE_PYTHONS_DIR, by default ~/.cache/optree/pythons.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SUITES = {"3.12": None, "3.13": "trixie", "3.14": "forky", "3.15": "forky"}
"""The versions that are tested, oldest first, each with the suite of Debian that has it."""
TOOLS = ("e2fsprogs", "gcc", "git", "jq", "libc6-dev", "make", "procps", "zstd")
"""What the tests use of a system beside Python."""
HERE = Path(__file__).resolve().parents[2]
_LEAVES = (str(path.relative_to(HERE)) for path in sorted(HERE.glob("tests/test_*.py")))
QUICK = (*_LEAVES, *(f"tests/{name}" for name in ("providers", "tree", "builder", "console", "tracing", "store")), "-m", "not slow")
CACHE = Path(os.environ.get("OPTREE_PYTHONS_DIR") or Path.home() / ".cache/optree/pythons").resolve()
SHARED = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf")
"""How this machine reaches others: so does a root."""
COPIED = ("/etc/ssl", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates")
"""Whom it trusts. A root has copies, since its packages write there."""
ENTER = """
root=$1 copied=$2 shared=$3 folder=$4; shift 4
mount -t proc proc "$root/proc" || mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
for path in $copied; do mkdir -p "$root$path"; cp -au "$path/." "$root$path"; done
for path in $shared; do
  if [ -d "$path" ]; then mkdir -p "$root$path"; else mkdir -p "$(dirname "$root$path")"; touch "$root$path"; fi
  mount --rbind "$path" "$root$path"
done
exec chroot "$root" env --chdir "$folder" -- "$@"
"""
"""Runs a command in a root. What is mounted for it is so for this command only, and gone when it ends."""
READY = "import ensurepip, pathlib, sysconfig as s; pathlib.Path(s.get_path('include'), 'Python.h').stat(); print(s.get_python_version())"


class MissingError(Exception):
    """A Python cannot be had here; the message says why."""


class Python:
    """One version of Python: where it is, and how a command runs beside it."""

    def __init__(self, version: str) -> None:
        """Find it, or get it. Raises `MissingError`."""
        self.folder = CACHE / version
        self.repository = self.folder / "repository"
        self.venv = self.folder / "venv"
        (self.folder / "home").mkdir(parents=True, exist_ok=True)
        found = at_hand(version)
        self.inside = [] if found else entering(debian(version), self.repository, self.folder)
        self.program = found or f"/usr/bin/python{version}"

    def prepare(self) -> None:
        """Copy the repository as it stands, and install it. Raises `subprocess.CalledProcessError`."""
        copy(self.repository)
        if not (self.venv / "made").exists():
            shutil.rmtree(self.venv, ignore_errors=True)
            self.call(self.program, "-m", "venv", str(self.venv))
            self.pip("install", "hatchling", "editables", "setuptools")  # setuptools builds zstandard, which has no wheel for 3.15
            (self.venv / "made").touch()
        self.pip("install", "--no-build-isolation", "--editable", ".[test]")

    def pip(self, what: str, *arguments: str) -> None:
        """Run pip in the environment."""
        self.call(str(self.venv / "bin/python"), "-m", "pip", what, "--quiet", "--constraint", "constraints.txt", *arguments)

    def test(self, options: tuple[str, ...]) -> None:
        """Run pytest."""
        self.call(str(self.venv / "bin/python"), "-m", "pytest", "-q", *options)

    def wheel(self) -> None:
        """Build a wheel with its compiled parts."""
        self.pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", "wheels", ".")
        (wheel,) = self.repository.glob("wheels/*.whl")
        if wheel.name.endswith("-none-any.whl"):
            raise subprocess.CalledProcessError(1, f"{wheel.name} has no compiled parts")
        say(wheel.name)

    def call(self, *command: str) -> None:
        """Run a command; raise if it fails."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OPTREE_", "VIRTUAL_ENV", "PYENV_"))}
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" if self.inside else os.environ["PATH"]
        environ |= {"HOME": str(self.folder / "home"), "PATH": f"{self.venv / 'bin'}:{path}"}
        run(self.inside, *command, cwd=self.repository, env=environ)


def run(inside: list[str], *command: str, **options: Any) -> None:
    """Run a command, in a root or here. Raises `subprocess.CalledProcessError` with the command as it is there."""
    status = subprocess.run([*inside, *command], check=False, **options).returncode
    if status:
        raise subprocess.CalledProcessError(status, shlex.join(command))


def at_hand(version: str) -> str | None:
    """Return a Python of this machine that can fill an environment and compile, if there is one."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    for python in (shutil.which(f"python{version}"), *map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}")))):
        if python:
            said = subprocess.run([python, "-c", READY], capture_output=True, text=True, check=False)
            if (0, version) == (said.returncode, said.stdout.strip()):
                return python
    return None


def debian(version: str) -> Path:
    """Return a root with a suite of Debian that has this version, made once. Raises `MissingError`."""
    suite = SUITES[version]
    if suite is None:
        raise MissingError("it is not on PATH, nor in pyenv, and no later suite of Debian has it")
    if os.geteuid() or not shutil.which("apt-get"):
        raise MissingError("it is not on PATH, nor in pyenv; to get it from Debian takes apt and its superuser")
    root = CACHE / suite
    try:
        if not root.exists():
            bootstrap(suite, root)
        if not (root / f"usr/include/python{version}/Python.h").exists():
            say(f"== installing Python {version} into {suite}'s root")
            install(entering(root, Path("/")), f"python{version}-dev", f"python{version}-venv", *TOOLS)
    except subprocess.CalledProcessError as error:
        raise MissingError(str(error)) from error
    return root


def bootstrap(suite: str, root: Path) -> None:
    """Put a suite into a root, from where this machine has its own packages."""
    if not shutil.which("debootstrap"):
        install([], "debootstrap")
    targets = ["apt-get", "indextargets", "--format", "$(ORIGIN) $(REPO_URI) $(SIGNED_BY)", "Created-By: Packages"]
    found = subprocess.run(targets, capture_output=True, text=True, check=True).stdout.split("\n")
    mirrors = [line.split() for line in found if line.startswith("Debian ")]
    mirror = next((words[1] for words in mirrors if "security" not in words[1]), None)
    if mirror is None:
        raise MissingError("apt of this machine names no mirror of Debian")
    say(f"== making a root of Debian's suite {suite} (a download of some 150 MB; one to three minutes, once)")
    scratch = root.with_name(f".making-{suite}")
    shutil.rmtree(scratch, ignore_errors=True)  # left by one that was killed
    script = Path("/usr/share/debootstrap/scripts", suite)
    log = root.with_name(f"{suite}.log")
    with log.open("w") as output:
        command = [
            "debootstrap",
            "--variant=minbase",
            suite,
            str(scratch),
            mirror,
            str(script if script.exists() else script.with_name("sid")),
        ]
        run(["unshare", "--mount", "--propagation", "private"], *command, stdout=output, stderr=subprocess.STDOUT)
    (scratch / "etc/dpkg/dpkg.cfg.d/quick").write_text("force-unsafe-io\n")
    # Signatures are checked; that a mirror's copy is an old one, as debootstrap also allows, is no matter for a root that only runs tests.
    (scratch / "etc/apt/apt.conf.d/old").write_text('Acquire::Check-Valid-Until "false";\n')
    scratch.rename(root)


def install(inside: list[str], *packages: str) -> None:
    """Install packages of Debian, in a root or here."""
    environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    keep = "Dpkg::Options::=--force-confold"  # a root shares this machine's /etc/ssl: nobody is there to be asked about openssl's settings
    for words in (["update"], ["install", "--yes", "--no-install-recommends", "-o", keep, *packages]):
        run(inside, "apt-get", "-qq", *words, env=environ, stdout=subprocess.DEVNULL)


def entering(root: Path, folder: Path, *shared: Path) -> list[str]:
    """Return what a command is put behind to run in a root, in a folder there."""
    named = [value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_")) and Path(value).is_absolute()]
    elsewhere = [path for path in named if not any(Path(path).is_relative_to(one) for one in COPIED)]
    paths = " ".join(path for path in dict.fromkeys([*SHARED, *elsewhere, *map(str, shared)]) if Path(path).exists())
    copied = " ".join(path for path in COPIED if Path(path).exists())
    return ["unshare", "--mount", "--propagation", "private", "sh", "-ec", ENTER, "enter", str(root), copied, paths, str(folder)]


def copy(folder: Path) -> None:
    """Copy what git knows of the repository, as it stands."""
    shutil.rmtree(folder, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=HERE, capture_output=True, check=True
    )
    for name in map(os.fsdecode, filter(None, listed.stdout.split(b"\0"))):
        if (HERE / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(HERE / name, folder / name)


def result(version: str, options: tuple[str, ...], wanted: argparse.Namespace) -> str:
    """Say what became of the tests on one version."""
    started = time.monotonic()
    try:
        python = Python(version)
        say(f"== Python {version}: {python.program}")
        python.prepare()
        if wanted.wheel:
            python.wheel()
        elif not wanted.prepare:
            python.test(options)
    except MissingError as missing:
        return f"not run: {missing}"
    except subprocess.CalledProcessError as error:
        return f"FAILED: {error}"
    return f"passed in {time.monotonic() - started:.0f} s"


def say(text: str) -> None:
    """Show a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Run the tests on what was asked for; 0 if they pass on each version that could be had, and one could."""
    parser = argparse.ArgumentParser(prog="python -m tests.pythons", description="Runs the tests on newer versions of Python.")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--quick", action="store_true", help="only the tests that take seconds")
    what.add_argument("--wheel", action="store_true", help="build a wheel, and run no tests")
    what.add_argument("--prepare", action="store_true", help="get what the tests are run with, and run none")
    parser.add_argument("version", nargs="?", default="all", choices=[*SUITES, "all", "newest"])
    wanted, rest = parser.parse_known_args()
    options = (*(QUICK if wanted.quick else ()), *(word for word in rest if word != "--"))
    results: dict[str, str] = {}
    for version in {"all": [*SUITES], "newest": [*SUITES][-1:]}.get(wanted.version, [wanted.version]):
        results[version] = result(version, options, wanted)
    for version, said in results.items():
        say(f"== Python {version}: {said}")
    words = [said.split()[0] for said in results.values()]
    return int("FAILED" in words or "passed" not in words)


if __name__ == "__main__":
    sys.exit(main())
