import gzip
import json
import re
import subprocess
import sys
from base64 import b64decode, b64encode

import pytest

AGENT = """
import optree
with optree.session("asker") as session, optree.turn(system="be brief", user="why?"):
    session.message({"role": "user", "content": "why?"})
    with optree.llm("openai:gpt-4o") as op:
        op.request(
            system="be brief",
            messages=[
                {"role": "user", "content": [{"type": "text", "text": "why?\\n\\x1b[2Jnow"}, {"type": "image", "url": "u"}]},
                {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "function": {"name": "look", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "c1", "content": "key sk-abcdefghijklmnopqrstuvwxyz"},
                *({"role": "user", "content": f"padding {n} " + "x" * 90} for n in range(100)),
            ],
            temperature=0.5,
            api_key="s3cret",
        )
        op.think("hm, ")
        op.think("well")
        op.log("two\\nlines", severity="WRN", details={"token": "t0ken"})
        op.account(input_tokens=5, output_tokens=2, cost_usd=0.25)
        op.response({"role": "assistant", "content": "because"})
    try:
        with optree.tool("fetch"):
            raise ValueError("404")
    except ValueError:
        pass
    with optree.session("helper", handed_over_by="asker") as helper, optree.turn():
        helper.title("Helping")
"""


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    """Return a command line with one session that has a node of each kind."""
    from tests.cli.conftest import CommandLine

    found = CommandLine(tmp_path_factory.mktemp("show"))
    found("run", "--", sys.executable, "-c", AGENT)
    return found


def parts(said):
    """Return the headings and what is below each."""
    found = []
    for one in said.splitlines()[2:]:
        if one and not one.startswith(" "):
            found.append((one, []))
        elif one:
            found[-1][1].append(one.strip())
    return found


def test_transcript(line):
    """An LLM op is shown in full as a transcript: its messages with their roles, reasoning, response, logs, accounting (S4-113)."""
    said = line.read("show", "last", "1.1").stdout
    assert said.startswith("1.1 llm openai:gpt-4o of asker ✓ ")
    found = parts(said)
    roles = ["system", "user", "assistant", "tool", *["user"] * 100]
    assert ["request", *roles, "reasoning", "response", "logs", "accounting"] == [heading for heading, _ in found][: len(roles) + 5]
    assert ["temperature: 0.5", "api_key: [REDACTED]"] == found[0][1]
    assert ["be brief"] == found[1][1]
    assert ["why?", "\\x1b[2Jnow"] == found[2][1][:2]
    assert '"arguments":"{}"' in found[3][1][0]
    assert {"key [REDACTED]", "tool_call_id: c1"} == set(found[4][1])
    rest = dict(found[len(roles) + 1 :])
    assert ["hm, well"] == rest["reasoning"]
    assert '"content": "because"' in rest["response"]
    assert rest["logs"][0].endswith(" [WRN] → two")
    assert ["lines", '{"token":"[REDACTED]"}'] == rest["logs"][1:]
    assert ["llm openai:gpt-4o ok 5→2 tok $0.250000"] == rest["accounting"]


def test_nothing_secret_or_harmful_is_shown(line):
    """Neither credentials nor control characters of the traced program reach the terminal (S4-81)."""
    for command in (["show", "last", "1.1"], ["show", "last", "1.1", "--json"]):
        shown = line.read(*command, env={"FORCE_COLOR": "1"}).stdout
        assert (False, False, False, False) == tuple(word in shown for word in ("sk-abcdef", "s3cret", "t0ken", "\x1b[2J"))


def test_json(line):
    """--json gives the node as a saved file has it, with the messages in its request."""
    found = line.json("show", "last", "1.1")
    assert ["txn", "path", "type", "agentId", "node"] == list(found)
    assert ("1.1", "op", "asker", "llm") == (found["path"], found["type"], found["agentId"], found["node"]["kind"])
    assert 103 == len(found["node"]["request"]["payload"]["messages"])


@pytest.mark.parametrize(
    ("path", "head", "shown"),
    [
        ("1.2", "1.2 tool fetch of asker ✗ failed ", "\nerror\n  ValueError: 404\n"),
        ("1.3", "1.3 session helper of asker ✓ ", "\nsession helper\n  title: Helping\n"),
        ("1.3", "1.3 session helper of asker ✓ ", "\n  handed_over_by: asker\n"),
        ("1", "1 turn of asker ✓ ", "\nops\n  1.1 llm openai:gpt-4o\n  1.2 tool fetch\n  1.3 session helper\n"),
        ("", "(root) session asker ✓ ", "\nuser\n  why?\n"),
    ],
)
def test_nodes_of_each_kind(line, path, head, shown):
    """Tools, sub-agents, turns and the session itself are shown too, in JSON without what is below them."""
    said = line.read("show", "last", path).stdout
    assert said.startswith(head)
    assert shown in said
    node = line.json("show", "last", path)["node"]
    assert [] == [*node.get("turns", []), *node.get("ops", []), *node.get("childSession", {}).get("turns", [])]


@pytest.mark.parametrize(("path", "code", "said"), [("9.9", 1, "no node 9.9 in session "), ("x", 2, "'x' is no path")])
def test_no_such_node(line, path, code, said):
    """A node that is not there gives exit code 1 and names some that are; what is no path is wrong usage."""
    found = line.read("show", "last", path, code=code)
    assert ("", 1) == (found.stdout, len(found.stderr.splitlines()))
    assert said in found.stderr


def kept(value):
    """Return a value as the original ai-agent keeps what its SDK was given and gave."""
    return {"format": "sdk", "encoding": "base64", "value": b64encode(json.dumps(value).encode()).decode()}


def original(folder, asked="Weather?", said="It rains."):
    """Return a file of the original's with one model call."""
    request = {"messages": 1, "bytes": 1200, "sdk": kept({"model": "m", "messages": [{"role": "user", "content": asked}]})}
    response = {"textPreview": "It r", "sdk": kept({"role": "assistant", "content": said})}
    op = {"opId": "o", "kind": "llm", "startedAt": 1, "endedAt": 2, "status": "ok", "attributes": {"provider": "p", "model": "m"}}
    op |= {"request": {"kind": "llm", "payload": request}, "response": {"payload": response}, "logs": [], "accounting": []}
    turn = {"id": "t", "index": 1, "startedAt": 1, "endedAt": 2, "ops": [op]}
    tree = {"id": "s", "agentId": "agent", "startedAt": 1, "endedAt": 2, "success": True, "turns": [turn]}
    path = folder / "original.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"version": 2, "reason": "final", "opTree": tree}).encode()))
    return path


def test_what_the_original_keeps_in_base64_is_read(optree):
    """Where the original keeps what its SDK sent and got in base64, that is what is shown, and hidden where it is secret."""
    path = original(optree.folder, asked="Weather? sk-abcdefghijklmnopqrstuvwxyz")
    shown = dict(parts(optree.read("show", path, "1.1").stdout))
    assert (["bytes: 1200", "model: m"], ["Weather? [REDACTED]"]) == (shown["request"], shown["user"])
    assert "It rains." == json.loads("".join(shown["response"]))["content"]
    traced = optree.read("logs", path, "--severity", "TRC").stdout
    assert ("Weather?" in traced, "It rains." in traced, "base64" in traced, "sk-abc" in traced) == (True, True, False, False)


def test_a_transcript_has_what_the_original_keeps_in_base64(optree):
    """What a transcript says of a file of the original's is decoded, and without credentials; so is what stays in base64 elsewhere."""
    secret = "sk-abcdefghijklmnopqrstuvwxyz"
    path = original(optree.folder, asked=f"Weather? {secret}", said=f"It rains. {secret}")
    [events, plain] = [optree("export", path, "--to", form, "-o", "-").stdout for form in ("transcript", "json")]
    ended = [json.loads(event)["payload"] for event in events.splitlines() if '"step.completed"' in event]
    assert ["It rains. [REDACTED]"] == [one["result"]["content"] for one in ended if "result" in one]
    assert "Weather? [REDACTED]" in events
    held = re.findall(r'"value": ?"([\w+/=]+)"', plain)
    assert 2 == len(held)
    assert [(True, False)] * 2 == [("[REDACTED]" in text, secret in text) for text in (b64decode(one).decode() for one in held)]


def test_a_log_for_people_has_what_the_original_keeps_in_base64(optree):
    """A Markdown log says what the original keeps in base64 in words, and gives it back as it was when it is imported."""
    path = original(optree.folder)
    said = optree("export", path, "--to", "markdown", "-o", "-").stdout
    assert (True, True, False) == ("Weather?" in said, "It rains." in said, "eyJ" in said)
    (optree.folder / "back.md").write_text(said)
    optree.read("import", optree.folder / "back.md")
    [was, now] = [optree.json("show", one, "1.1")["node"] for one in (path, "last")]
    assert [was[name]["payload"] for name in ("request", "response")] == [now[name]["payload"] for name in ("request", "response")]
    folder = optree.folder / "records"
    optree.read("export", path, "--to", "ai-agent-v3", "-o", folder)
    shown = dict(parts(optree.read("show", folder, "1.1").stdout))
    assert ["Weather?"] == shown["user"]


def test_members_that_are_empty_texts(optree):
    """A member, or an attribute, that is an empty text is shown as one."""
    agent = """
import optree
with optree.session("asker"), optree.turn(), optree.llm("openai:gpt-4o", tag="") as op:
    op.request(user="", messages=[{"role": "user", "content": "why?", "name": ""}])
    op.response({"id": "", "content": ""})
"""
    optree("run", "--", sys.executable, "-c", agent)
    shown = [line.strip() for line in optree.read("show", "last", "1.1").stdout.splitlines()]
    assert [1, 1, 1] == [shown.count(line) for line in ("user:", "name:", "tag:")]


def test_members_that_look_like_references(optree):
    """A request whose own members look like references is shown as it is."""
    source = 'import optree\nwith optree.session("a"), optree.turn(), optree.tool("x") as op: op.request(query={"$history": [1]})'
    optree("run", "--", sys.executable, "-c", source)
    assert {"query": {"$history": [1]}} == optree.json("show", "last", "1.1")["node"]["request"]["payload"]
    shown = json.loads(optree.read("logs", "--severity", "TRC", "--json").stdout)["line"]
    assert '{"query":{"$history":[1]}}' in shown


ANSWERS = {
    "chat": {
        "id": "x",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Paris\nis it"}}],
        "usage": {"prompt_tokens": 3},
    },
    "responses": {
        "output": [
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Paris\nis it", "annotations": [], "logprobs": []}],
            }
        ]
    },
    "messages": {"role": "assistant", "content": [{"type": "text", "text": "Paris\nis it", "citations": None}]},
}


def answered(optree, answer):
    """Record a session with one model call that had this answer."""
    source = f"import optree\nwith optree.session('a'), optree.turn(), optree.llm(model='m') as op:\n    op.response({answer!r})"
    subprocess.run([sys.executable, "-c", source], env=optree.env, check=True)


@pytest.mark.parametrize("form", ANSWERS)
def test_the_answer_of_a_provider_is_shown_as_text(optree, form):
    """A provider's response that was recorded as a dict shows what its messages say."""
    answered(optree, ANSWERS[form])
    shown = optree.read("show", "last", "1.1").stdout
    assert "  Paris\n  is it\n" in shown
    assert "choices" not in shown


def test_what_stands_beside_a_text_is_shown(optree):
    """The sources of an answer stand below its text, which stays one."""
    cited = {"type": "output_text", "text": "Paris\nis it", "annotations": [{"type": "url_citation", "url": "https://a.example"}]}
    answered(optree, {"output": [{"type": "message", "role": "assistant", "content": [cited]}]})
    shown = optree.read("show", "last", "1.1").stdout
    assert '  Paris\n  is it\n  annotations: [{"type":"url_citation","url":"https://a.example"}]\n' in shown


def test_the_tool_calls_of_a_provider_are_shown(optree):
    """A call in a provider's response is shown with its message."""
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
    answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": None, "tool_calls": [call]}}]}
    answered(optree, answer)
    assert 'tool_calls: [{"id":"c1","type":"function"' in optree.read("show", "last", "1.1").stdout


def test_what_an_answer_is_made_of_is_told_apart(optree):
    """An empty line stands between the reasoning, the text and the calls of one answer."""
    thought = {"type": "reasoning", "id": "r", "summary": []}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look", "annotations": []}]}
    call = {"type": "function_call", "id": "f", "call_id": "c", "name": "search", "arguments": "{}"}
    answered(optree, {"output": [thought, said, call]})
    shown = optree.read("show", "last", "1.1").stdout
    assert "\nresponse\n  type: reasoning\n  id: r\n  summary: []\n\n  I look\n" in shown
    assert "\n\n  type: function_call\n" in shown


def choice(finish):
    """Return an answer of OpenAI's chat that ended for a reason."""
    return {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Paris"}, "finish_reason": finish}]}


SAID = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Paris"}], "status": "completed"}]
CUT = {"object": "response", "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": SAID}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (choice("length"), ["finish reason: length"]),
        (choice("content_filter"), ["finish reason: content_filter"]),
        (CUT, ["finish reason: incomplete: max_output_tokens"]),
        ({"content": [{"type": "text", "text": "Paris"}], "role": "assistant", "stop_reason": "max_tokens"}, ["finish reason: max_tokens"]),
        (choice("stop"), []),
        (choice("TOOL_CALL"), []),
        (CUT | {"status": "completed", "incomplete_details": None}, []),
    ],
)
def test_an_answer_that_was_cut_off(optree, answer, expected):
    """Why an answer ended is shown, unless it is whole."""
    answered(optree, answer)
    shown = [line.strip() for line in optree.read("show", "last", "1.1").stdout.splitlines()]
    assert expected == [line for line in shown if line.startswith("finish reason")]


READERS = [
    *("show last 1", "tree", "logs", "messages", "cost", "diff-context", "diff last last", "export last --to events -o -"),
    *("replay last -- true", "fork last --at 1.2 -- true"),
]


@pytest.mark.parametrize("command", READERS)
def test_damage_is_said_by_each_reader(optree, command):
    """What could not be read of a session is said on stderr, whichever command shows or writes it, in the same words ."""
    txn = optree.record("kill", code=-9)
    journal = optree.sessions / f"{txn}.live" / "j-0000-000001.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[-2] = lines[-2].replace(b'"t":', b'"T":')
    journal.write_bytes(b"".join(lines))
    said = optree(*command.split(), code=1 if command.endswith("true") else 0).stderr
    assert f"optree: session {txn} is not whole: j-0000-000001.jsonl: " in said
