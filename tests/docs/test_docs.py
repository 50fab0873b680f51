import importlib
import inspect
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.capture.provider import Provider, Reply
from tests.otel.receiver import receiver

PUBLIC = ("optree", "optree.conversation", "optree.testing", "optree.exporting")
ROOT = Path(__file__).resolve().parents[2]
COLLECTOR = "http://localhost:4318"
CHECK = "assert optree.flush('export') and optree.health()['ok'], optree.health()\n"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"^```python\n(.*?)^```\n+```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

ANSWER = {
    "id": "r-1", "object": "response", "created_at": 1, "model": "gpt-5", "status": "completed", "parallel_tool_calls": True,
    "tool_choice": "auto", "tools": [], "usage": {"input_tokens": 812, "output_tokens": 24, "total_tokens": 836,
    "input_tokens_details": {"cached_tokens": 512}, "output_tokens_details": {"reasoning_tokens": 0}},
}  # fmt: skip
"""What OpenAI's Responses API says, but for the output."""

FOR_ITSELF = {
    "google.adk": {},
    "crewai": {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false", "XDG_DATA_HOME": "{folder}"},
    "agno": {"AGNO_TELEMETRY": "false"},
    "dspy": {"DSPY_CACHEDIR": "{folder}"},
    "llama_index": {},
    "smolagents": {},
    "strands": {},
}
"""Packages that are tried in environments of their own, with what has them send nothing and keep their files aside."""


def public():
    """Yield each public name with what it stands for, and each public member of a class."""
    for package in PUBLIC:
        module = importlib.import_module(package)
        yield package, module
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, type):
                members = [(member, getattr(value, member)) for member in dir(value) if not member.startswith("_")]
                yield from ((f"{package}.{name}.{member}", found) for member, found in members)
            if inspect.isroutine(value) or isinstance(value, type):
                yield f"{package}.{name}", value


DOCSTRINGS = {name: inspect.getdoc(value) or "" for name, value in public()}
TEXTS = {str(page.relative_to(ROOT)): page.read_text() for page in PAGES} | DOCSTRINGS
NAMED = {found[1]: code for text in TEXTS.values() for code in BLOCK.findall(text) if (found := re.match(r"# (\w+)\.py\n", code))}
BLOCKS = [
    pytest.param(code, id=f"{name}:{number}")
    for name, text in TEXTS.items()
    for number, code in enumerate(BLOCK.findall(text), 1)
    if not code.startswith("# agent.py\n")  # which calls a provider: `test_readme_captured` runs it
]
PRINTS = {code: shown for name, text in TEXTS.items() if name != "README.md" for code, shown in PRINTED.findall(text)}
"""What a page shows right behind a piece of Python. The README's has stderr too: `test_readme_output` compares that."""
CAPTURED, DECORATED = BLOCK.findall(TEXTS["README.md"])[:2]
SHOWN = re.findall(r"^```text\n(.*?)^```", TEXTS["README.md"], re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS)
def test_code_runs(code, tmp_path, monkeypatch):
    """Each piece of Python in documents and public docstrings runs as it stands, and prints what is shown behind it, without a problem."""
    if "langchain" in code and sys.version_info >= (3, 15):
        pytest.skip("what LangChain needs (orjson) has no wheel for it")
    if "claude_agent_sdk" in code:
        pytest.importorskip("claude_agent_sdk", reason="the Claude Agent SDK is not there: make .venv/has-claude")
    for package, quiet in FOR_ITSELF.items():
        if re.search(rf"^(from|import) {re.escape(package)}\b", code, re.MULTILINE):
            if find_spec(package) is None:
                pytest.skip(f"{package} is tried in an environment of its own: make test-frameworks")
            for name, value in quiet.items():
                monkeypatch.setenv(name, value.format(folder=tmp_path))
    for name in re.findall(r"^from (\w+) import ", code, re.MULTILINE):
        if name in NAMED:
            (tmp_path / f"{name}.py").write_text(NAMED[name])
    checked = f"{code}\n{CHECK}" if "import optree" in code else code
    with receiver("http/protobuf") as collector:
        run = run_code(checked.replace(COLLECTOR, collector.endpoint), tmp_path)
    assert (0, "") == (run.returncode, "" if run.returncode == 0 else run.stderr)
    assert (COLLECTOR in code) == bool(collector.spans())
    assert code not in PRINTS or priceless(PRINTS[code]) == priceless(run.stdout)


def test_readme_captured(tmp_path):
    """The README's first example, run as it stands by `optree run --auto`, saves the tree that the README shows, with its cost."""
    (tmp_path / "agent.py").write_text(CAPTURED)
    called = {"type": "function_call", "id": "f", "call_id": "c", "name": "weather", "arguments": '{"city": "Athens"}'}
    text = {"type": "output_text", "text": "Yes: it rains in Athens.", "annotations": []}
    provider = Provider()
    provider.says(*(Reply(ANSWER | {"output": [item]}) for item in (called, {"type": "message", "role": "assistant", "content": [text]})))
    quiet = {"OPENAI_API_KEY": "none", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    to_provider = {"OPENAI_BASE_URL": "http://api.openai.com/v1", "http_proxy": provider.url, "no_proxy": ""}
    command(tmp_path, 0, "run", "--auto", "--", sys.executable, str(tmp_path / "agent.py"), **quiet, **to_provider)
    provider.close()
    assert varying(SHOWN[0]) == varying(command(tmp_path, 0, "tree", "last"))


def test_readme_output(tmp_path):
    """The README's decorated example prints the lines that the README shows, and saves the tree that it shows."""
    run = run_code(DECORATED, tmp_path)
    tree = run_code("import optree; print(optree.format_tree(optree.load('last').session))", tmp_path)
    assert varying(SHOWN[1]) == varying(run.stdout + run.stderr)
    assert varying(SHOWN[2]) == varying(tree.stdout)


def test_a_decorated_agent_that_is_resumed(tmp_path):
    """The how-to's decorated agent does what is left of its work when it is resumed, and nothing twice."""
    code = next(
        code for code in BLOCK.findall((ROOT / "docs" / "howto" / "README.md").read_text()) if '@optree.session(agent="clerk' in code
    )
    begun = code.replace('["one", "two"]', '["one"]')
    assert "ONE\n" == run_code(begun, tmp_path).stdout
    (tmp_path / "program.py").write_text(code)
    assert "TWO\n" == command(tmp_path, 0, "load", "last", "--", sys.executable, str(tmp_path / "program.py"))


def test_ledger_output(tmp_path):
    """It is shown what `optree ledger` and `--check` print after the decorated example of the README, of a sound bill and a changed one."""
    page = (ROOT / "docs" / "reference" / "cli.md").read_text()
    section = page.partition("## `optree ledger")[2].partition("\n## ")[0]
    shown = re.findall(r"^```text\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    run_code(DECORATED, tmp_path)
    printed = [command(tmp_path, 0, "ledger"), command(tmp_path, 0, "ledger", "--check")]
    ledger = tmp_path / "accounting.jsonl"
    ledger.write_text(re.sub(r',"c":"[0-9a-f]{8}"', "", ledger.read_text().replace('"costUsd":0.0031', '"costUsd":0.0062')))
    printed.append(command(tmp_path, 1, "ledger", "--check"))
    assert list(map(varying, shown)) == list(map(varying, printed))
    assert ["ledger", "ledger --check"] == re.findall(r"^\$ optree (.*)$", section, re.MULTILINE)


def test_links_lead_somewhere():
    """Every relative link in the documents names a file that exists."""
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in PAGES
        for link in LINK.findall(page.read_text())
        if not (page.parent / link).exists()
    ]
    assert [] == broken


def run_code(code, base):
    """Run code, as a program in a file, in a new interpreter that keeps its sessions under *base*."""
    program = base / "program.py"
    program.write_text(code)
    environment = {**os.environ, "OPTREE_BASE_DIR": str(base), "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, timeout=60, check=False)


def command(base, code, *words, **variables):
    """Run the command line on the sessions under *base*; returns what it prints."""
    environment = {**os.environ, "OPTREE_BASE_DIR": str(base), "PYTHONPATH": str(ROOT), **variables}
    run = subprocess.run([sys.executable, "-m", "optree", *words], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert code == run.returncode, run.stderr
    return run.stdout


def priceless(text):
    """Return a tree without its costs too: they depend on whether, and which, prices are installed."""
    return re.sub(r"cost unknown|\$0\.\d+", "cost", varying(text))


def varying(text):
    """Return a text with what differs from run to run (txn, days, times) replaced."""
    named = re.sub(r"\b[0-9a-z]{8}-[0-9a-z]{8}\b", "T", re.sub(r"txn:[\w-]+", "txn:T", text))
    return re.sub(r"\d+\.\d+ (ms|s)\b", "0 ms", re.sub(r"\d{4}-\d\d-\d\d", "D", named)).strip()
