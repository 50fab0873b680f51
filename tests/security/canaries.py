"""Invented credentials of every kind, each unique, and a session that has one in each of its fields.

As a program, records such a session: ``python -m tests.security.canaries SEED KINDS FILE``, and writes what it planted to FILE.
"""

import json
import os
import random
import re
import signal
import string
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import optree

PIECE = 12
"""Characters of a secret that no output may have, wherever in it they stand."""
_ALPHABETS = {
    "an": string.ascii_letters + string.digits,
    "up": string.ascii_uppercase + string.digits,
    "lo": string.ascii_lowercase + string.digits,
    "hex": "0123456789abcdef",
    "num": string.digits,
    "b64-": string.ascii_letters + string.digits + "+/",
}
_PLACE = re.compile(r"\{(an|up|lo|hex|num|b64-)(\d+)\}")
FORMS = {
    "openai": "sk-{an48}", "openai project": "sk-proj-{an40}", "anthropic": "sk-ant-api03-{an60}", "openrouter": "sk-or-v1-{hex64}",
    "groq": "gsk_{an52}", "xai": "xai-{an80}", "replicate": "r8_{an37}", "hugging face": "hf_{an34}", "perplexity": "pplx-{an48}",
    "github": "ghp_{an36}", "github oauth": "gho_{an36}", "github app": "ghs_{an36}", "github fine-grained": "github_pat_{an22}_{an59}",
    "gitlab": "glpat-{an20}", "npm": "npm_{an36}", "pypi": "pypi-AgEIcHlwaS5vcmc{an60}", "docker": "dckr_pat_{an27}",
    "slack bot": "xoxb-{num12}-{num12}-{an24}", "slack app": "xapp-1-A{up10}-{num13}-{hex64}",
    "slack webhook": "https://hooks.slack.com/services/T{up8}/B{up8}/{an24}",
    "telegram": "{num10}:AA{an33}", "sendgrid": "SG.{an22}.{an43}", "stripe": "sk_live_{an24}", "stripe restricted": "rk_live_{an24}",
    "google": "AIza{an35}", "google oauth": "ya29.{an60}", "aws": "AKIA{up16}",
    "aws pair": "AKIA{up16},{b64-40}",
    "aws secret": "aws_secret_access_key={b64-40}",
    "azure storage": "AccountName=store;AccountKey={b64-86}==;EndpointSuffix=core.windows.net",
    "digitalocean": "dop_v1_{hex64}", "vault": "hvs.{an90}", "grafana": "glsa_{an32}_{hex8}", "notion": "ntn_{an46}",
    "linear": "lin_api_{an40}",
    "langsmith": "lsv2_pt_{hex32}_{hex10}", "new relic": "NRAK-{up27}", "atlassian": "ATATT3xFfGF0{an40}", "shopify": "shpat_{hex32}",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJ{an40}.{an43}", "url password": "postgres://app:{an24}@db.internal:5432/main",
    "url token": "https://api.example.com/v1/items?page=2&access_token={an40}&limit=5", "bearer": "Authorization: Bearer {an40}",
    "basic": "Authorization: Basic {an38}==", "token header": "Authorization: Token {an40}", "api key header": "x-api-key: {an40}",
    "cookie header": "Cookie: session={an40}; theme=dark", "client secret": "client_secret={an32}", "password": 'password = "{an20}"',
    "environment": "export DB_PWD={an24}", "passphrase": "passphrase: {an24}", "flag": "deploy --api-key {an32} --verbose",
    "private key": "-----BEGIN RSA PRIVATE KEY-----\n{b64-64}\n{b64-64}\n{b64-64}\n-----END RSA PRIVATE KEY-----",
}  # fmt: skip
NAMES = (
    "DB_PWD", "credentials", "passphrase", "jwt", "auth", "apiToken", "accessKey", "password", "client_secret", "refresh_token",
    "x-api-key",    "Authorization", "cookie", "OPENAI_API_KEY",
)  # fmt: skip
KINDS = (*FORMS, *(f"named {name}" for name in NAMES))


class Canary(NamedTuple):
    """One planted credential: *secret* are the parts of *text* that nobody may see."""

    kind: str
    field: str
    text: str
    secret: tuple[str, ...]


def canary(seed: str, kind: str, field: str) -> Canary:
    """Make a credential; the same for the same arguments."""
    chance = random.Random(f"{seed}/{kind}/{field}")
    parts: list[str] = []

    def made(found: re.Match[str]) -> str:
        parts.append(_mixed(chance, _ALPHABETS[found[1]], int(found[2])))
        return parts[-1]

    name = kind.removeprefix("named ")
    form = FORMS[kind] if kind in FORMS else json.dumps({name: "{an32}"})
    text = _PLACE.sub(made, form)
    return Canary(kind, field, text, tuple(part for part in parts if len(part) >= PIECE))


def _mixed(chance: random.Random, alphabet: str, size: int) -> str:
    """Return characters of which one at least is a digit, as in all that is issued."""
    found = chance.choices(alphabet, k=size)
    found[size // 2] = chance.choice(string.digits)
    return "".join(found)


def pieces(secret: str) -> Iterator[str]:
    """Yield what no output may have of a secret."""
    return (secret[at : at + PIECE] for at in range(len(secret) - PIECE + 1))


class Planter:
    """Hands out credentials of one kind for the fields of nodes, and notes them."""

    def __init__(self, seed: str, kind: str) -> None:
        self.seed, self.kind = seed, kind
        self.planted: list[Canary] = []

    def bare(self, field: str) -> str:
        """Return a credential alone, as in a name."""
        found = canary(self.seed, self.kind, field)
        self.planted.append(found)
        return found.text

    def text(self, field: str) -> str:
        """Return a text with one in its midst."""
        chance = random.Random(f"{self.seed}/{self.kind}/{field}/text")
        return chance.choice(("{}", "it said {} and went on", "first line\n{}\nlast line", "x" * 60 + " {}", "({})", "before:\t{}")).format(
            self.bare(field)
        )

    def value(self, field: str) -> dict[str, Any]:
        """Return an object that holds one: under its name, or in a text some levels down."""
        if self.kind in FORMS:
            return {"query": "weather", "options": [{"note": self.text(field)}]}
        return {"query": "weather", "options": [json.loads(self.bare(field))]}

    def json(self, field: str) -> str:
        """Return the same as JSON in a text."""
        return json.dumps(self.value(field))

    def key(self, field: str) -> str:
        """Return a key that is a credential; none where it is known by its name alone."""
        return self.bare(field) if self.kind in FORMS and "\n" not in FORMS[self.kind] else f"plain {field}"

    def chunks(self, field: str) -> list[str]:
        """Return a text with one, cut into pieces where nothing can be told from either."""
        text = f"I see {self.bare(field)} here.\n"
        third = len(text) // 3
        return [text[:third], text[third : 2 * third], text[2 * third :]]


def record(seed: str, kinds: list[str], then: Callable[[list[Canary]], None] = lambda _planted: None) -> list[Canary]:
    """Record one session with a turn for each kind; returns what was planted, and hands it to *then* before the session ends."""
    planters = [Planter(seed, kind) for kind in kinds]
    first = planters[0]
    with optree.session(f"lead {first.bare('root agent')}", tenant=first.value("root attributes")) as root:
        root.title(first.text("root title"))
        root.status(first.text("root status"))
        for planter in planters:
            with _survived():
                _turn(planter, root)
        planted = [one for planter in planters for one in planter.planted]
        optree.flush()
        then(planted)
    return planted


def _turn(it: Planter, root: Any) -> None:
    with optree.turn(
        user=it.text("turn user"), system=it.text("turn system"), label=it.text("turn label"), more=it.value("turn attributes")
    ):
        root.message({"role": "user", "content": it.text("message text")})
        root.message(it.text("message plain"))
        for shape, message in _messages(it, "message").items():
            root.message(message, message_id=f"{it.kind} {shape}")
        with optree.llm(it.text("llm name"), **it.value("llm attributes"), **{it.key("attribute key"): it.text("attribute value")}) as op:
            _call(it, op)
        with optree.llm(provider=it.bare("provider"), model="m"):
            pass
        with optree.llm(provider="p", model=it.bare("model")) as op:
            op.request([{"role": "user", "content": "short"}], url=f"https://api.example.com/v1?note={it.bare('url')}")
            for chunk in it.chunks("chunks"):
                op.think(chunk)
            for chunk in it.chunks("answer chunks"):
                op.chunk(chunk)
        with optree.llm("echo") as op:
            op.response(it.text("response text"))
        _tool(it)
        with _survived(), optree.session(f"helper {it.bare('child agent')}", **it.value("child attributes")) as child:
            _child(it, child)
        raise RuntimeError(it.text("turn error"))


def _call(it: Planter, op: Any) -> None:
    op.request(
        list(_messages(it, "request").values()),
        headers={"Accept": "text/plain", it.key("header name"): it.text("header value")},
        extra_headers=[["x-api-key", it.bare("header pair")], ["accept", "text/plain"]],
        tools=[{"type": "function", "function": {"name": "look", "description": it.text("tool description"), "parameters": {}}}],
        metadata=it.value("request member"),
        **{it.key("request key"): 1},
    )
    for chunk in it.chunks("reasoning"):
        op.think(chunk)
        op.log("between")
    op.log(it.text("log message"), severity="WRN", details=it.value("log details"))
    op.log(it.text("log error"), severity="ERR", details={it.key("detail key"): it.json("log json")})
    op.log(it.text("log trace"), severity="TRC", direction="response")
    op.account(provider=it.bare("bill provider"), model=it.bare("bill model"), input_tokens=3, output_tokens=1, cost_usd=0.25,
               error=it.text("bill error"), status="failed", deal=it.text("bill detail"))  # fmt: skip
    op.response({"role": "assistant", "content": it.text("answer"), "tool_calls": [_openai_call(it, "answer call")]})


def _tool(it: Planter) -> None:
    with _survived(), optree.tool(f"look {it.bare('tool name')}", provider=it.bare("tool provider")) as op:
        op.request(arguments=it.value("tool arguments"), raw=it.json("tool json"), doubly=json.dumps({"inner": it.json("tool doubly")}))
        op.account(command=it.bare("command"), characters_in=3, characters_out=5)
        op.response({"rows": [it.value("tool result"), it.json("tool result json")]})
        raise ValueError(it.text("tool error"))


def _child(it: Planter, child: Any) -> None:
    child.title(it.text("child title"))
    child.builder.set_final_report(it.value("final report"))
    with optree.turn(user=it.text("child user")) as turn:
        child.message({"role": "assistant", "content": it.text("child message")})
        turn.assistant(it.text("assistant"))
        with optree.tool("inner") as op:
            op.response(it.text("child result"))
    raise KeyError(it.text("child error"))


def _messages(it: Planter, where: str) -> dict[str, dict[str, Any]]:
    """Return messages in the shapes of all providers."""
    return {
        "text": {"role": "user", "content": it.text(f"{where} openai")},
        "call": {"role": "assistant", "content": None, "tool_calls": [_openai_call(it, f"{where} openai call")]},
        "result": {"role": "tool", "tool_call_id": "call_1", "content": it.json(f"{where} openai result")},
        "blocks": {"role": "assistant", "content": [
            {"type": "thinking", "thinking": it.text(f"{where} anthropic thinking"), "signature": "s"},
            {"type": "text", "text": it.text(f"{where} anthropic")},
            {"type": "tool_use", "id": "toolu_1", "name": "look", "input": it.value(f"{where} anthropic call")},
        ]},
        "block result": {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": it.text(f"{where} anthropic result")}]},
        ]},
        "gemini": {"role": "model", "parts": [
            {"text": it.text(f"{where} gemini")},
            {"functionCall": {"name": "look", "args": it.value(f"{where} gemini call")}},
            {"functionResponse": {"name": "look", "response": it.value(f"{where} gemini result")}},
        ]},
        "responses": {"type": "function_call", "call_id": "fc_1", "name": "look", "arguments": it.json(f"{where} responses call")},
    }  # fmt: skip


def _openai_call(it: Planter, field: str) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": it.json(field)}}


def _survived() -> suppress:
    """Go on after an error that was raised to be recorded."""
    return suppress(ValueError, KeyError, RuntimeError)


class Finder:
    """Finds pieces of planted credentials in what was put out."""

    def __init__(self, planted: list[Canary]) -> None:
        self.planted = planted
        self._pieces = {piece: one for one in planted for secret in one.secret for piece in pieces(secret)}

    def leaks(self, output: str) -> dict[tuple[str, str], str]:
        """Return what an output tells, by kind and field: the piece that stands in it."""
        found: dict[tuple[str, str], str] = {}
        known = self._pieces
        for at in range(len(output) - PIECE + 1):
            piece = output[at : at + PIECE]
            if piece in known:
                found.setdefault(known[piece][:2], piece)
        return found


def load(path: Path) -> list[Canary]:
    """Read what a program planted."""
    return [Canary(kind, field, text, tuple(secret)) for kind, field, text, secret in json.loads(path.read_text())]


if __name__ == "__main__":

    def note(planted: list[Canary]) -> None:
        """Write down what was planted, and go without an end if that is asked for."""
        Path(sys.argv[3]).write_text(json.dumps(planted))
        if sys.argv[4:] == ["kill"]:
            os.kill(os.getpid(), signal.SIGKILL)

    record(sys.argv[1], sys.argv[2].split(","), note)
    sys.stdout.write(json.dumps(optree.health(), default=str))
