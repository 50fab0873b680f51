import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from optree._cli.app import app

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "cli.md"
COMMANDS = get_command(app).commands


@pytest.mark.parametrize("name", COMMANDS)
def test_reference_is_complete(name):
    """Every command and each of its options and arguments stands in its section of the reference, and no other option."""
    sections = re.split(r"^## ", REFERENCE.read_text(), flags=re.MULTILINE)
    [text] = [section for section in sections if section.startswith(f"`optree {name} ")]
    options = {option for param in COMMANDS[name].params for option in param.opts if option.startswith("-")}
    assert options == named(text)


def named(text):
    """Return the options in the first column of a section's table."""
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `-")]
    return {option for cell in cells for option in re.findall(r"(?<![\w-])(--?[a-z][\w-]*)", cell)}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example(optree, name):
    """The help of every command ends its text with an example that names it."""
    said = optree.read(name, "--help").stdout
    assert f"Example: optree {name}" in said


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_filled(optree, name):
    """The text of a help breaks where the terminal ends, and not where the source does; a list keeps its lines."""
    wide, narrow = (optree.read(name, "--help", env={"COLUMNS": str(columns)}).stdout.partition("╭")[0] for columns in (600, 60))
    paragraphs = [text for text in re.split(r"\n\s*\n", wide.partition("transcripts each")[0]) if text.strip()]
    assert [] == [text for text in paragraphs if "\n" in text.strip()]
    assert wide.split() == narrow.split()


def test_help(optree):
    """The help lists the commands and the exit codes; --version tells the version; no command at all is wrong usage."""
    said = optree.read("--help").stdout
    assert [] == [name for name in COMMANDS if f" {name} " not in said]
    assert "Exit codes: 0 done" in said
    assert re.fullmatch(r"optree \d+\.\d+\.\d+ \((compiled|pure Python)\)\n", optree.read("--version").stdout)


INTERRUPTED = """
import os, signal, sys
import optree._cli

class Interrupting:
    def find_spec(self, name, *_):
        if name == WHERE:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.argv = ["optree", "ls"]
optree._cli.main()
"""


@pytest.mark.parametrize("where", ["typer", "optree._cli.commands.ls", "optree._cli.screen"])
def test_an_interrupt_while_a_command_starts(optree, where):
    """Ctrl-C at an import of the command line's ends it with exit code 130, and no traceback."""
    command = [sys.executable, "-c", INTERRUPTED.replace("WHERE", repr(where))]
    ended = subprocess.run(command, env=optree.env, capture_output=True, text=True, check=False)
    assert (130, "", "") == (ended.returncode, ended.stdout, ended.stderr)


INTERRUPTING = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, *_):
        if name == os.environ["WHERE"]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
"""
SCRIPTS = {
    "optree": "import sys\nfrom optree._cli import main\nsys.exit(main())\n",
    "agent.py": "try:\n    import optree\nexcept KeyboardInterrupt:\n    print('pressed')\n",
}


@pytest.mark.skipif(os.name == "nt", reason="no signal ends a process there")
@pytest.mark.parametrize("where", ["optree._version", "msgspec", "optree._tracing.controls"])
@pytest.mark.parametrize(
    ("script", "expected"),
    [("-m", (-signal.SIGINT, "", "")), ("optree", (-signal.SIGINT, "", "")), ("agent.py", (0, "pressed\n", ""))],
)
def test_an_interrupt_while_the_package_is_imported(optree, tmp_path, script, expected, where):
    """Ctrl-C ends the command by its signal, without a traceback, before it can catch anything; in a program it is the program's."""
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTING)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / script).write_text(SCRIPTS.get(script, ""))
    command = ["-m", "optree"] if script == "-m" else [str(tmp_path / "bin" / script)]
    env = optree.env | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{optree.env['PYTHONPATH']}", "WHERE": where}
    ended = subprocess.run([sys.executable, *command, "ls"], env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert expected == (ended.returncode, ended.stdout, ended.stderr)


@pytest.mark.parametrize("ignored", [True, False])
def test_what_an_interrupt_does_is_as_before_once_the_package_is_imported(optree, tmp_path, ignored):
    """A program that is called optree too gets its `KeyboardInterrupt`; where a shell lets Ctrl-C be ignored, it stays ignored."""
    (tmp_path / "optree").write_text(
        "import signal\nimport optree\nfound = signal.getsignal(signal.SIGINT)\nprint(getattr(found, 'name', None) or found.__name__)\n"
    )
    before = (lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if ignored else None
    command = [sys.executable, tmp_path / "optree"]
    ended = subprocess.run(command, env=optree.env, cwd=optree.folder, capture_output=True, text=True, check=False, preexec_fn=before)
    assert ("SIG_IGN\n" if ignored else "default_int_handler\n", "") == (ended.stdout, ended.stderr)


@pytest.mark.parametrize("args", [["nosuch"], ["ls", "--nosuch"], ["tree", "--depth", "x"]])
def test_wrong_usage(optree, args):
    """Wrong usage gives exit code 2, on stderr."""
    assert "" == optree.read(*args, code=2).stdout


def test_a_choice_that_is_none(optree):
    """A word that is none of an option's is answered with those that are, and without what the library of the options calls it."""
    said = optree.read("messages", "--view", "foo", code=2).stderr
    assert said.startswith("optree: invalid value for '--view': 'foo' is not one of 'transcripts', 'dialog', ")


def test_unreadable_directory(ended):
    """A directory that cannot be read gives one line and exit code 3."""
    if not os.geteuid():
        pytest.skip("root reads every directory")
    closed = ended.folder / "closed"
    closed.mkdir(mode=0)
    [line] = ended.read("ls", "--sessions-dir", closed, code=3).stderr.splitlines()
    assert line.startswith("optree: ")


@pytest.mark.parametrize("redirection", [">/dev/full", ">&-", ">&- 2>&-"])
@pytest.mark.parametrize("command", ["tree", "ls --json", "logs", "export last --to events -o -", "--help", "tree --help", "--version"])
def test_stdout_that_takes_nothing(ended, command, redirection):
    """Where stdout is full or closed, one line says so, and the exit code is 1."""
    line = f"exec {shlex.join(ended.command())} {command} {redirection}"
    run = subprocess.run(["sh", "-c", line], env=ended.env, check=False, capture_output=True, text=True)
    expected = "" if "2>" in redirection else "optree: stdout cannot be written: "
    assert (1, expected, 0 if "2>" in redirection else 1) == (run.returncode, run.stderr[: len(expected)], len(run.stderr.splitlines()))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has such a device")
@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("run -- sh -c 'exit 7'", 7),
        ("run --json -- sh -c 'exit 7'", 7),
        ("load last -- sh -c 'exit 7'", 7),
        ("export last --to events --force -o x.jsonl", 0),
        ("tree nosuch", 1),
    ],
)
def test_stderr_that_takes_nothing(ended, command, code):
    """Where stderr is full, what would be said is lost, and the exit code is what it is without."""
    line = f"exec {shlex.join(ended.command())} {command} 2>/dev/full"
    run = subprocess.run(["sh", "-c", line], env=ended.env, cwd=ended.folder, check=False, stdout=subprocess.DEVNULL)
    assert code == run.returncode


@pytest.mark.parametrize(
    ("words", "expected"), [("optree load ", ["last", "{txn}"]), ("optree tree {part}", ["{txn}"]), ("optree lo", ["load", "logs"])]
)
def test_completion(ended, words, expected):
    """A shell completes commands and txns."""
    line = words.format(part=ended.txn[:6])
    env = {"_OPTREE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    assert [one.format(txn=ended.txn) for one in expected] == ended.read(env=env).stdout.split()


def test_completion_script(optree):
    """The script for a shell is the command's own to print."""
    assert "complete_bash" in optree.read("--show-completion", "bash", env={"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}).stdout


@pytest.mark.parametrize("total", [None, 3])
def test_progress_bar(optree, total):
    """What takes long shows a bar on a terminal, and takes it away at the end."""
    code = f"""
from optree._cli.screen import working
with working("loading it", {total}, after=0) as step:
    step()
    input()
print("done")
"""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-c", code], optree.env)
    shown = b""
    while b"loading it" not in shown:
        shown += os.read(terminal, 4096)
    os.write(terminal, b"\n")
    while b"done" not in shown:
        shown += os.read(terminal, 4096)
    os.close(terminal)
    os.waitpid(pid, 0)
    assert b"\x1b[2K" in shown  # the line is cleared


def test_no_progress_bar_in_a_pipe(optree):
    """A pipe gets no bar."""
    code = "from optree._cli.screen import working\nwith working('loading it', after=0): input()"
    run = subprocess.run([sys.executable, "-c", code], env=optree.env, input="\n", capture_output=True, text=True, check=True)
    assert ("", "") == (run.stdout, run.stderr)


def test_quick_work_shows_no_bar(optree):
    """What is done within the time shows nothing, and loads no library for it."""
    code = """
import sys
from optree._cli.screen import working
with working("loading it"):
    pass
print("rich" in sys.modules, sys.stderr.isatty())
"""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-c", code], optree.env)
    shown = b""
    while b"\n" not in shown:
        shown += os.read(terminal, 4096)
    os.close(terminal)
    os.waitpid(pid, 0)
    assert b"False True" == shown.strip()


@pytest.mark.parametrize("command", [["--help"], ["tree", "--help"]])
def test_the_reader_of_a_help_goes_away(command):
    """Who reads the first line of a help and no more changes nothing: no error, no word."""
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": REFERENCE.parents[2]}
    started = subprocess.Popen([sys.executable, "-m", "optree", *command], **piped)
    started.stdout.close()
    with started:
        assert b"" == started.stderr.read()
    assert 0 == started.returncode
