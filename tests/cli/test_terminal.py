"""What reaches a terminal: colours of optree's own and nothing else that acts on it; whole values on narrow ones."""

import json
import re
import sys

import pytest

from optree._cli.commands.messages import MessageView

SGR = re.compile(r"\x1b\[(?:0|1|2|3[1-6]|2;37|90)m")
HOSTILE = "\x1b[8mhid\x1b]0;t\x07\x9b2J\u202er\u200b\U000e0041\u2066 \n[txn:forged] [path:9.9] x [ERR] ← tool y: z [bold]b[/bold]"
AGENT = f"""
import optree
H = {HOSTILE!r}
with optree.session("agent " + H) as s, optree.turn(user=H, system=H):
    s.title(H)
    s.message({{"role": "user", "content": H}})
    with optree.llm(provider="p" + H, model="m" + H) as op:
        op.request(messages=[{{"role": H, "content": H}}], **{{H: H}})
        op.think(H)
        op.log(H, severity="WRN", details={{H: H}})
        op.account(input_tokens=1, output_tokens=1, cost_usd=0.1)
        op.response(H)
    try:
        with optree.tool("tool " + H):
            raise ValueError(H)
    except ValueError:
        pass
    for number in range(4):
        with optree.llm(provider="p" + H, model=f"m{{number // 2}}" + H) as op:
            told = [f"{{number}} {{H}}", H + "x" * 9000, "end"][: 3 - number % 2]
            tools = [{{"name": f"{{number}} {{H}}", "description": H}}]
            op.request(messages=[{{"role": H, "content": text}} for text in told], system=f"{{number}} {{H}}", tools=tools)
            op.account(input_tokens=10, cache_read_tokens=1 if number < 2 else 0, cache_write_tokens=4000 if number < 2 else 0)
            op.response(H)
"""
COMMANDS = [
    ["tree"], ["load", "last"], ["ls"], ["show", "last", ""], ["show", "last", "1"], ["show", "last", "1.1"], ["show", "last", "1.2"],
    ["logs"], ["logs", "--severity", "TRC"], ["logs", "--json"], ["cost"], ["cost", "--all"], ["messages"],
    ["messages", "--format", "md"], ["messages", "--view", "dialog", "--format", "mermaid"],
    *(["messages", "--view", view] for view in MessageView if view not in ("flow", "references", "during")),
    ["diff", "last", "last", "--all"], ["diff-context"],
    ["diff-context", "--all"], ["tree", "--json"], ["show", "last", "1.1", "--json"], ["status"],
    ["tree", HOSTILE], ["show", "last", HOSTILE], ["logs", "--grep", "(" + HOSTILE], ["ls", "--" + HOSTILE], [HOSTILE],
    ["messages", "--agent", HOSTILE], ["diff-context", "--agent", HOSTILE], ["export", "last", "--to", HOSTILE],
]  # fmt: skip


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Return a command line with a session of an agent that would like to drive the terminal."""
    from tests.cli.conftest import CommandLine

    line = CommandLine(tmp_path_factory.mktemp("hostile"))
    line.said = line("run", "-v", "--trace-llm", "--trace-tools", "--", sys.executable, "-c", AGENT).stderr
    return line


def acting(shown):
    """Return the characters that act on a terminal or hide in it, and lines that somebody forged."""
    left = SGR.sub("", shown)
    return [one for one in left if not one.isprintable() and one != "\n"] + re.findall(r"^\[txn:forged\].*", left, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command)[:30])
def test_nothing_acts_on_the_terminal(hostile, command):
    """Text of the traced program or of the command line reaches a terminal as text, in colours and without (S4-81)."""
    env = {"FORCE_COLOR": "1", "COLUMNS": "100"}
    for told in ({}, env):
        found = hostile.both(*command, env=told)
        assert found.strip()
        assert [] == acting(found)


def test_names_break_no_line(hostile):
    """A context's changes, an agent's model and what is said of a cache are one line each, whatever they name."""
    for command in (["diff-context", "--all"], ["messages", "--view", "agents"]):
        shown = hostile.both(*command)
        assert "[txn:forged]" in shown
        assert [] == re.findall(r"^\s*\[txn:forged\].*", shown, re.MULTILINE)
    shown = hostile.both("diff-context", "--all")
    assert {"first: ", "note: ", "message 0 ", "tools: ", "model: "} == {
        said for said in ("first: ", "note: ", "message 0 ", "tools: ", "model: ") if said in shown
    }


def test_nothing_acts_from_the_console(hostile):
    """So do the lines of a running agent: each is one line, whatever it is told."""
    assert [] == acting(hostile.said)
    assert 8 <= len(hostile.said.splitlines())
    assert [] == [line for line in hostile.said.splitlines() if not line.startswith(("[txn:mw", "[txn:", "optree: "))]


def test_real_terminal(hostile):
    """On a real terminal there are colours, of optree's own only."""
    shown = hostile.terminal("tree")
    assert {"\x1b[0m", "\x1b[1m", "\x1b[36m", "\x1b[35m"} <= set(SGR.findall(shown))
    assert [] == acting(shown)
    assert "\x1b[8m" not in shown


def test_markup_is_text(hostile):
    """What looks like markup is shown as it is."""
    assert "[bold]b[/bold]" in hostile.read("show", "last", "1").stdout
    assert "[bold]b[/bold]" in hostile.both("ls", "--" + HOSTILE)


def test_json_is_whole(hostile):
    """JSON says what was recorded, hidden characters as escapes."""
    assert HOSTILE == json.loads(hostile.read("tree", "--json").stdout)["session"]["turns"][0]["prompts"]["user"]


SEVERITY = "optree: invalid value for --severity: {}: choose from VRB, WRN, ERR, TRC, THK, FIN (optree logs --help)"
USAGE = [
    (["ls", "--foo"], "optree: no such option: --foo (optree ls --help)"),
    (["lss"], "optree: no such command 'lss'. Did you mean 'ls'? (optree --help)"),
    (["show"], "optree: missing argument 'TXN' (optree show --help)"),
    (["tree", "a", "b"], "optree: got unexpected extra argument(s) (b) (optree tree --help)"),
    (["logs", "--severity", "wrn,[red]x"], SEVERITY.format("[red]x")),
    (["logs", "--severity", "sk-proj-abcdefghijklmnop"], SEVERITY.format("[REDACTED]")),
]  # fmt: skip


@pytest.mark.parametrize(("command", "said"), USAGE, ids=lambda found: found[0] if isinstance(found, list) else "")
def test_usage_errors_are_one_line(ended, command, said):
    """Wrong usage is one line that begins with the command's name and says where help is; exit code 2."""
    found = ended.read(*command, code=2)
    assert ("", said + "\n") == found


def test_nothing_asked_for(ended):
    """Without a command there is help, and nothing else; exit code 2."""
    found = ended.read(code=2)
    assert ("Usage: optree" in found.stdout, "") == (True, found.stderr)


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Return a command line with a session whose lines are long."""
    from tests.cli.conftest import CommandLine

    line = CommandLine(tmp_path_factory.mktemp("wide"))
    source = """
import optree
with optree.session("an agent with ghp_" + "a1B2" * 9), optree.turn(user="a question of many words " * 3):
    for name in ("openai:gpt-4o-mini-2024-07-18", "日本語のモデル", "openai:" + "sk-proj-" + "a1B2" * 10):
        with optree.llm(name) as op:
            op.account(input_tokens=1234567, output_tokens=76543, cost_usd=1234.567891)
            op.log("x")
"""
    line("run", "--", sys.executable, "-c", source)
    return line


def values(text):
    """Return what is not to be broken: words, with a number and its unit, or a date and its time, as one."""
    bare = re.sub(r"[├└─│]", " ", SGR.sub("", text))
    return re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|[\d.,→]+ (?:s|ms|tok|kB|B)\b|\S+", bare)


@pytest.mark.parametrize("columns", [60, 100])
@pytest.mark.parametrize("command", ["ls", "cost", "tree", "load last", "cost --all", "status", "formats"])
def test_folded_between_values(wide, command, columns):
    """On a narrow terminal lines go on in the next one, and no value is broken; in a pipe they stay whole (S4-112)."""
    whole = wide.read(*command.split()).stdout
    shown = wide.terminal(*command.split(), columns=columns)
    assert values(whole) == values(shown)
    from optree._visible import columns as taken

    too_long = [line for line in SGR.sub("", shown).split("\n") if taken(line) > columns]
    assert [] == [line for line in too_long if len(line.split()) > 2]


def test_tables_align(wide):
    """Columns stand below each other, also behind names in wide characters, and where credentials were."""
    from optree._visible import columns as taken

    for command in ("cost", "ledger"):
        rows = [line for line in wide.read(command).stdout.splitlines() if "$" in line]
        assert 4 <= len(rows)
        assert 1 == len({taken(line) for line in rows})
    head, row = wide.read("ls").stdout.splitlines()
    assert "an agent with [REDACTED]" in row
    assert head.index("STATE") == row.index("ended")


def test_completion_shows_agents_as_text(optree):
    """Beside the txns that a shell completes stand the agents, without credentials, markup or anything that acts on a terminal."""
    key = "ghp_" + "a1B2" * 9
    optree("run", "--", sys.executable, "-c", f"import optree\nwith optree.session({f'agent {key} [red]x[/red] ' + HOSTILE!r}): pass")
    env = {"_OPTREE_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "optree tree ", "_TYPER_COMPLETE_TESTING": "1"}
    shown = optree.both("tree", env=env)
    assert "agent [REDACTED] [red]x[/red]" in shown
    assert [] == acting(shown)


def test_complaints_of_the_library(optree):
    """What tracing itself says on stderr of the traced program's surroundings is one line, without credentials."""
    key = "ghp_" + "a1B2" * 9
    source = f"import optree\nfrom optree._tracing.runtime import RUNTIME\nRUNTIME.problems.report({key + ' ' + HOSTILE!r})\n"
    source += "print(optree.health()['problems'])"
    ran = optree("run", "--", sys.executable, "-c", source)
    assert "optree: [REDACTED] \\x1b[8mhid" in ran.stderr
    assert [] == acting(ran.stderr)
    assert (0, 1) == (ran.stdout.count("ghp_"), ran.stdout.count("[REDACTED]"))
