"""Prices: what calls cost by genai-prices, by a file of the user's, and what nobody knows."""

import random
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace

import genai_prices
import pytest
from genai_prices.data_snapshot import get_snapshot
from msgspec import UNSET, Raw

from optree._nodes import AccountingEntry
from optree._providers.prices import PriceFinder, billed, read_table
from optree._providers.usage import parts_of, read
from optree._values import decode, encode
from optree.errors import SetupError

NOW = 1_795_420_000_000.0  # epoch ms: 2026-11-23


def finder(*, wanted=True):
    """Return what finds prices, with those of a file first."""
    found = PriceFinder()
    found.use(wanted)
    return found


def entry(provider, model, *, answered=None, details=None, at=NOW):
    """Return an entry of a call."""
    return AccountingEntry(
        "t:1.1#1", at, "llm", provider=provider, model=model, actual_model=answered, details=Raw(encode(details)) if details else UNSET
    )


def cost(prices, one, tokens):
    """Return what an entry with these tokens costs."""
    price, hour = prices.find(one)
    return None if price is None else price.cost(billed(one, tokens), hour)


def test_all_models_cost_what_the_library_says():
    """Each model of each provider costs what genai-prices calculates, to a trillionth, for calls of every size, or is unknown."""
    made, prices, compared = random.Random(7), finder(), 0
    for provider in get_snapshot().providers:
        for model in provider.models:
            sizes = [made.randrange(limit) for limit in (500, 90_000, 300_000, 900_000)]
            for size in sizes:
                read_tokens, written, output = made.randrange(size + 1), made.randrange(size + 1), made.randrange(9000)
                tokens = parts_of(size, output, read_tokens, written)
                found = cost(prices, entry(provider.id, model.id), tokens)
                if found is None:
                    continue
                sent = size + read_tokens + written
                usage = genai_prices.Usage(
                    input_tokens=sent, cache_read_tokens=read_tokens, cache_write_tokens=written, output_tokens=output
                )
                at = datetime.fromtimestamp(NOW / 1e3, UTC)
                try:
                    expected = genai_prices.calc_price(usage, model.id, provider_id=provider.id, genai_request_timestamp=at).total_price
                except LookupError:
                    continue
                assert (provider.id, model.id, pytest.approx(float(expected), abs=2e-12)) == (provider.id, model.id, found)
                compared += 1
    assert compared > 4000


CLAUDE = {"input_tokens": 100, "cache_read_input_tokens": 2000, "cache_creation_input_tokens": 500, "output_tokens": 10}
TOKENS = {"input_tokens": 10, "output_tokens": 1}
HOUR = {**CLAUDE, "cache_creation": {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 400}}
COHERE = {"billed_units": {"input_tokens": 5.0, "output_tokens": 418.0}, "tokens": {"input_tokens": 71, "output_tokens": 418}}
TOLD = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
KNOWN = [
    ("anthropic", "claude-sonnet-4-5", CLAUDE, 100 * 3 + 2000 * 0.3 + 500 * 3.75 + 10 * 15),  # Anthropic counts cached tokens beside
    ("anthropic", "claude-sonnet-4-5", HOUR, 100 * 3 + 2000 * 0.3 + 100 * 3.75 + 400 * 6 + 10 * 15),
    ("openai", "gpt-4o", {"prompt_tokens": 10, "completion_tokens": 1, "service_tier": "default"}, 10 * 2.5 + 10),
    ("openai", "gpt-5", {"prompt_tokens": 10, "completion_tokens": 1, "service_tier": "flex"}, 10 * 0.625 + 5),
    ("openai", "gpt-5", {"service_tier": "flex", "model": "gpt-5", "usage": {"prompt_tokens": 10, "completion_tokens": 1}}, 10 * 0.625 + 5),
    ("openai", "gpt-5", {"prompt_tokens": 10, "completion_tokens": 1, "service_tier": "scale"}, None),  # a tier without a price
    ("openai", "gpt-4o", {"prompt_tokens": 10, "completion_tokens": 1, "web_search_requests": 2}, None),  # what costs beside tokens
    ("gcp.gemini", "gemini-2.5-pro", {"prompt_token_count": 300_000, "candidates_token_count": 1}, 300_000 * 2.5 + 15),  # a long call
    ("gemini", "gemini-2.5-flash", {"prompt_token_count": 9, "promptTokensDetails": [{"modality": "AUDIO", "tokenCount": 9}]}, None),
    ("anthropic", "claude-opus-4-8", {**TOKENS, "service_tier": "standard", "speed": "fast"}, 10 * 10 + 50),
    ("anthropic", "claude-opus-4-8", {**TOKENS, "service_tier": "standard", "speed": "standard"}, 10 * 5 + 25),
    ("anthropic", "claude-sonnet-4-5", {**TOKENS, "speed": "fast"}, None),
    ("anthropic", "claude-opus-4-8", {**TOKENS, "inference_geo": "global"}, 10 * 5 + 25),
    ("anthropic", "claude-opus-4-8", {**TOKENS, "inference_geo": "us"}, None),  # which is asked more for
    (
        "anthropic",
        "claude-opus-4-8",
        {**TOKENS, "iterations": [{"type": "compaction", **CLAUDE}]},
        110 * 5 + 1000 + 3125 + 11 * 25,
    ),
    ("anthropic", "claude-opus-4-8", {**TOKENS, "iterations": [{"type": "compaction", **HOUR}]}, 110 * 5 + 1000 + 625 + 4000 + 11 * 25),
    ("anthropic", "claude-opus-4-8", {**TOKENS, "iterations": [{"type": "message", **TOKENS}]}, 10 * 5 + 25),
    ("anthropic", "claude-opus-4-8", {**TOKENS, "iterations": [{"type": "advisor_message", "model": "claude-fable-5-1", **TOKENS}]}, None),
    ("anthropic", "claude-opus-4-8", {**TOKENS, "partial": True}, None),  # of a stream that broke off
    ("openai", "gpt-4o-audio-preview", {"prompt_tokens": 60, "prompt_tokens_details": {"audio_tokens": 50}}, None),  # no price of audio
    ("openai", "gpt-4o-audio-preview", {"prompt_tokens": 60, "prompt_tokens_details": {"audio_tokens": 0}}, 60 * 2.5),
    ("xai", "grok-4", {"prompt_tokens": 10, "completion_tokens": 1, "num_sources_used": 3}, None),
    ("mistral", "mistral-large-latest", {"prompt_tokens": 10, "connectors": {"code_interpreter": 1}}, None),
    ("cohere", "command-a", COHERE, 5 * 2.5 + 418 * 10),  # what Cohere adds to a prompt is not billed
    ("cohere", "command-a", {**COHERE, "billed_units": {"search_units": 1}}, None),
    ("cohere", "command-a", {**COHERE, "billed_units": {"input_tokens": None}}, 71 * 2.5 + 418 * 10),  # it does not say how many are
    ("cohere", "command-a", {**TOLD, "proxied": {"billed_units": {}}}, 10 * 2.5 + 10),  # nor of this usage
    ("groq", "llama-3.3-70b-versatile", {"choices": [], "x_groq": {"id": "r", "usage": TOLD}}, 10 * 0.59 + 0.79),
    ("bedrock", "amazon.nova-lite-v1:0", {"inputTokens": 1000, "performanceConfig": {}}, 1000 * 0.06),  # no latency is the usual one
    ("bedrock", "no.such-model", {"inputTokens": 10, "outputTokens": 1}, None),
    ("localhost", "gpt-4o", {"prompt_tokens": 10}, None),
    ("ollama", "llama3.2", {"prompt_eval_count": 10, "eval_count": 2}, None),  # runs here for nothing that anybody knows
    ("my-openai-proxy", "gpt-4o", {"prompt_tokens": 10}, None),  # which only resembles a provider
    ("openai", "my-gpt", {"prompt_tokens": 10}, None),
]


TOOLS = {
    "openai": [*({"type": f"{tool}_call", "id": "c"} for tool in ("web_search", "file_search", "code_interpreter", "image_generation"))],
    "anthropic": [{"type": "server_tool_use", "name": name} for name in ("code_execution", "bash_code_execution", "advisor")],
}
"""What providers run themselves, and bill beside the tokens: as their answers have it."""
FREE = {
    "openai": [{"type": "function_call", "name": "f"}, {"type": "mcp_call"}, {"type": "reasoning"}, {"type": "message", "content": []}],
    "anthropic": [{"type": "server_tool_use", "name": name} for name in ("web_fetch", "tool_search_tool_regex")],
}


def response(*output, **more):
    """Return an answer of OpenAI's responses."""
    return {"object": "response", "model": "gpt-4o", "output": list(output), "usage": TOKENS, **more}


def message(*content, **usage):
    """Return an answer of Anthropic's messages."""
    return {"type": "message", "role": "assistant", "content": list(content), "usage": {**TOKENS, **usage}}


def gemini(**more):
    """Return an answer of Gemini's."""
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 1}
    return {"candidates": [{"content": {"parts": [{"text": "hi"}]}, **more}], "usageMetadata": usage}


def chat(**more):
    """Return an answer of OpenAI's chat."""
    said = {"role": "assistant", "content": "hi", **more}
    return {"object": "chat.completion", "choices": [{"message": said}], "usage": {"prompt_tokens": 10, "completion_tokens": 1}}


GROUNDED = {"webSearchQueries": ["x"], "groundingChunks": [{"web": {"uri": "u"}}]}
OPENAI, CLAUDE_4_5, GEMINI = ("openai", "gpt-4o"), ("anthropic", "claude-sonnet-4-5"), ("google", "gemini-2.5-pro")
ANSWERS = [
    *((OPENAI, response(item), None) for item in TOOLS["openai"]),
    *((CLAUDE_4_5, message({"type": "text", "text": "hi"}, item), None) for item in TOOLS["anthropic"]),
    (OPENAI, {"type": "response.completed", "response": response(TOOLS["openai"][0])}, None),
    (OPENAI, response(SimpleNamespace(type="web_search_call")), None),
    (OPENAI, response({"type": "shell_call", "environment": {"type": "container_reference"}}), None),
    (OPENAI, chat(annotations=[{"type": "url_citation"}]), None),
    (("groq", "llama-3.3-70b-versatile"), chat(executed_tools=[{"type": "search"}]), None),
    (OPENAI, {"type": "ai", "content": [TOOLS["openai"][0]], "usage_metadata": TOKENS}, None),  # LangChain's
    (OPENAI, {"type": "ai", "content": "", "additional_kwargs": {"tool_outputs": TOOLS["openai"]}, "usage_metadata": TOKENS}, None),
    (GEMINI, {"type": "ai", "content": "", "response_metadata": {"grounding_metadata": GROUNDED}, "usage_metadata": TOKENS}, None),
    (GEMINI, gemini(groundingMetadata=GROUNDED), None),
    (GEMINI, gemini(grounding_metadata=GROUNDED), None),
    (CLAUDE_4_5, message(server_tool_use={"web_search_requests": 1}), None),
    (OPENAI, response(*FREE["openai"]), 10 * 2.5 + 10),
    (OPENAI, response({"type": "shell_call", "environment": {"type": "local"}}), 10 * 2.5 + 10),
    (OPENAI, chat(annotations=[]), 10 * 2.5 + 10),
    (CLAUDE_4_5, message(*FREE["anthropic"], server_tool_use={"web_search_requests": 0, "web_fetch_requests": 1}), 10 * 3 + 15),
    (CLAUDE_4_5, message(server_tool_use={"tool_search_requests": 2}), 10 * 3 + 15),
    (GEMINI, gemini(groundingMetadata={}), 10 * 1.25 + 10),
]


@pytest.mark.parametrize(("called", "answer", "expected"), ANSWERS)
@pytest.mark.parametrize("own", [False, True])
def test_what_a_provider_runs_itself_is_billed_beside_the_tokens(called, answer, expected, own, tmp_path):
    """A call whose answer has a search, or code that the provider ran, costs what nobody knows; other tools cost their tokens (S4-44)."""
    path = tmp_path / "prices.json"
    path.write_bytes(encode({called[0]: {called[1]: {"input": 1, "output": 2}}}))
    found = read(answer, provider=called[0], model=called[1])
    said = cost(finder(wanted=path if own else True), entry(*called, details=found.rest), found.tokens)
    known = expected if expected is None or not own else 10 * 1 + 2
    assert (11, None if known is None else pytest.approx(known / 1e6)) == (found.tokens.total_tokens, said)


@pytest.mark.parametrize(("provider", "model", "usage", "expected"), KNOWN)
def test_a_usage_costs_what_its_provider_asks(provider, model, usage, expected):
    """Cached tokens, those written for an hour, tiers and sizes have their prices; what nobody knows stays unknown, never 0 (S4-44)."""
    found = read(usage, provider=provider, model=model)
    said = cost(finder(), entry(provider, model, details=found.rest), found.tokens)
    assert (None if expected is None else pytest.approx(expected / 1e6)) == said


def test_a_region_has_prices_of_its_own():
    """A model of Bedrock's costs what the id says that was asked for: its own name, by which it answers, leaves out the region."""
    name, prices, tokens = "anthropic.claude-sonnet-4-5-20250929-v1:0", finder(), parts_of(1000, 0)
    for asked, expected in ((f"us.{name}", 0.0033), (f"global.{name}", 0.003), ("an-inference-profile", None)):
        assert expected == cost(prices, entry("bedrock", asked, answered="claude-sonnet-4-5-20250929"), tokens)


def test_the_model_that_answered_is_asked_first():
    """A dated name has its own price; where that is not found, it is that of the model that was asked for."""
    tokens, prices = parts_of(1000, 0), finder()
    assert 0.0025 == cost(prices, entry("openai", "gpt-4o"), tokens)
    assert 0.005 == cost(prices, entry("openai", "gpt-4o", answered="gpt-4o-2024-05-13"), tokens)
    assert 0.0025 == cost(prices, entry("openai", "gpt-4o", answered="nobody-knows-2026-11-01"), tokens)


def test_a_price_that_changes_is_asked_for_again():
    """A price with a date is as of the day of the call, also when the model's price is remembered."""
    prices, tokens = finder(), parts_of(1_000_000, 0)
    known = [model for model in get_snapshot().find_provider(None, "openai", None).models if isinstance(model.prices, list)]
    flat = [model for model in known if all(isinstance(one.prices.input_mtok, Decimal) for one in model.prices)]
    dated = next(model for model in flat if len({one.prices.input_mtok for one in model.prices}) == len(model.prices) == 2)
    day = datetime.combine(dated.prices[-1].constraint.start_date, datetime.min.time(), UTC).timestamp() * 1e3
    before, after = float(dated.prices[0].prices.input_mtok), float(dated.prices[-1].prices.input_mtok)
    asked = [cost(prices, entry("openai", dated.id, at=at), tokens) for at in (day - 1, day, day + 1)]
    assert [before, after, after] == asked


def test_a_price_that_goes_by_the_hour():
    """A call costs what is asked at its hour, also where one of another hour came before; between two changes nothing is looked for."""
    prices, tokens, looked = finder(), parts_of(1_000_000, 0), []
    library, prices._in_library = prices._in_library, lambda *asked: (looked.append(asked), library(*asked))[1]
    model = get_snapshot().find_provider(None, "deepseek", None).find_model("deepseek-chat")
    day = datetime(2025, 6, 2, tzinfo=UTC).timestamp() * 1e3  # as prices were then
    at = [day + minutes * 60_000 for minutes in (0, 29, 30, 600, 989, 990, 1439, 1440, 31, 29)]
    asked = [model.get_prices(datetime.fromtimestamp(one / 1e3, UTC)).input_mtok for one in at]
    assert 2 == len(set(asked))
    assert [float(one) for one in asked] == [cost(prices, entry("deepseek", "deepseek-chat", at=one), tokens) for one in at]
    assert 6 == len(looked)


TABLES = {
    "prices.json": """{"acme": {"roadrunner": {"input": 2, "cached": 0.5, "output": 8, "request": 0.01}},
                       "openai": {"gpt-4o": {"input": 1}}}""",
    "prices.toml": "[acme.roadrunner]\ninput = 2\ncached = 0.5\noutput = 8\nrequest = 0.01\n[openai.gpt-4o]\ninput = 1\n",
}


@pytest.mark.parametrize("name", TABLES)
def test_own_prices_come_first(name, tmp_path):
    """A file's prices win over the library's; tokens without a price there leave the cost unknown."""
    path = tmp_path / name
    path.write_text(TABLES[name])
    prices = finder(wanted=path)
    assert 0.0112 == cost(prices, entry("Acme", "RoadRunner"), parts_of(100, 100, 400))
    assert 0.0001 == cost(prices, entry("openai", "gpt-4o"), parts_of(50, 0, 50))  # cached as input
    assert cost(prices, entry("openai", "gpt-4o"), parts_of(100, 1)) is None
    assert 0.0003 == cost(prices, entry("openai", "gpt-4o-mini", answered="gpt-4o-mini-2024-07-18"), parts_of(2000, 0))


BESIDE = [
    {"service_tier": "priority"},
    {"service_tier": "batch"},
    {"prompt_tokens_details": {"audio_tokens": 500}},
    {"promptTokensDetails": [{"modality": "IMAGE", "tokenCount": 9}]},
    {"citation_tokens": 9},
    {"web_search_requests": 3},
]


@pytest.mark.parametrize("details", BESIDE)
def test_own_prices_bill_nothing_that_they_do_not_name(details, tmp_path):
    """A call of another tier, or with more than text, is unknown where one's own price is for plain tokens; the library is not asked."""
    path = tmp_path / "prices.json"
    path.write_text('{"openai": {"gpt-4o": {"input": 1, "output": 1}}}')
    prices, tokens = finder(wanted=path), parts_of(1000, 100)
    for answered in (None, "gpt-4o-2024-08-06"):
        assert cost(prices, entry("openai", "gpt-4o", answered=answered, details=details), tokens) is None
    assert 0.0011 == cost(prices, entry("openai", "gpt-4o", details={"service_tier": "default", "messages": 3}), tokens)


SIZED = [
    ({"input": [[0, 1], [200, 5]]}, parts_of(200, 0), 0, 200 * 1),  # not more than 200
    ({"input": [[0, 1], [200, 5]]}, parts_of(201, 0), 0, 201 * 5),
    ({"input": [[0, 1], [200, 5]]}, parts_of(1, 0, 150, 50), 0, 201 * 5),
    ({"input": 1, "written": 3, "output": 1}, parts_of(0, 0, 0, 100), 60, 100 * 3),  # those for an hour as written
    ({"input": 1, "output": 1}, parts_of(0, 0, 0, 100), 60, 100 * 1),
    ({"input": 1, "written": 3, "written_1h": 7, "output": 1}, parts_of(0, 0, 0, 100), 60, 40 * 3 + 60 * 7),
    ({"input": 1, "written": 3, "written_1h": 7, "output": 1}, parts_of(0, 0, 0, 100), 400, 100 * 7),  # no more than were written
    ({"input": 1, "output": 2}, parts_of(0, 100, 0, 0, 40), 0, 100 * 2),
    ({"input": 1, "output": 2, "reasoning": 5}, parts_of(0, 100, 0, 0, 40), 0, 60 * 2 + 40 * 5),
]


@pytest.mark.parametrize(("rates", "tokens", "hour", "expected"), SIZED)
def test_what_is_paid_for_each_token(rates, tokens, hour, expected, tmp_path):
    """A step holds for more tokens than it names; what has no price has that of what it is a part of; none is billed that was not sent."""
    path = tmp_path / "prices.json"
    path.write_bytes(encode({"acme": {"roadrunner": rates}}))
    one = entry("acme", "roadrunner", details={"cache_write_1h_tokens": hour} if hour else None)
    assert pytest.approx(expected / 1e6) == cost(finder(wanted=path), one, tokens)


def test_a_library_that_had_no_room_is_read_again(monkeypatch):
    """Memory that ran out while the library was read says nothing about prices: the next call has its cost, and no problem is reported."""
    prices, said = finder(), []
    prices.report = said.append

    def no_room():
        raise MemoryError

    with monkeypatch.context() as full:
        full.setattr(genai_prices.data_snapshot, "get_snapshot", no_room)
        prices.load()
    assert (0.0025, []) == (cost(prices, entry("openai", "gpt-4o"), parts_of(1000, 0)), said)


def test_a_snapshot_is_a_table(tmp_path):
    """What a session says of the prices by which it was billed is enough to bill it again, without the library (S4-12)."""
    tokens = parts_of(250_000, 100, 1000, 500)
    price, _ = finder().find(entry("gemini", "gemini-2.5-pro"))
    [(name, told)] = decode(price.snapshot).items()
    assert {"optree.price": name} == decode(price.details)
    path = tmp_path / "prices.json"
    rates = {key: value for key, value in told.items() if key not in ("provider", "model", "source")}
    path.write_bytes(encode({told["provider"]: {told["model"]: rates}}))
    again = finder(wanted=path)
    assert f"genai-prices {genai_prices.__version__}" == told["source"]
    assert price.cost(tokens) == cost(again, entry("google", "gemini-2.5-pro"), tokens)


BROKEN = {
    "": "cannot be read",
    "[]": "providers with their models",
    '{"openai": 1}': "providers with their models",
    '{"openai": {"gpt-4o": 1}}': "a price has members",
    '{"openai": {"gpt-4o": {}}}': "a price has members",
    '{"openai": {"gpt-4o": {"inputs": 1}}}': "a price has members",
    '{"openai": {"gpt-4o": {"input": -1}}}': "is no price",
    '{"openai": {"gpt-4o": {"input": true}}}': "is no price",
    '{"openai": {"gpt-4o": {"input": [[200, 1]]}}}': "is no price",
    '{"openai": {"gpt-4o": {"request": [[0, 1]]}}}': "is no price",
}


@pytest.mark.parametrize("text", BROKEN)
def test_a_table_that_is_wrong_says_why(text, tmp_path):
    """A file that holds no prices is refused with what to do."""
    path = tmp_path / "prices.json"
    path.write_text(text)
    with pytest.raises(SetupError, match=BROKEN[text]):
        read_table(path)
    with pytest.raises(SetupError, match="cannot be read"):
        read_table(tmp_path / "none.json")
