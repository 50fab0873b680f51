"""Usage in, in the convention of whoever sent it; parts that add up out. Each figure is worked out by hand."""

from http import HTTPStatus
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from optree._builder import SessionTreeBuilder, Stream
from optree._builder.figures import AccountFigures
from optree._nodes import Tokens
from optree._providers.usage import _COUNTS, _MONEY, Usage, plain_tokens, read
from optree._values import decode

PARTS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_write_input_tokens", "total_tokens", "reasoning_output_tokens")
MORE = "more than any call can"
SHAPES = {
    "OpenAI chat": (
        {"prompt_tokens": 1200, "completion_tokens": 64, "total_tokens": 1264}
        | {"prompt_tokens_details": {"cached_tokens": 1000, "audio_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 20}},
        (200, 64, 1000, 0, 1264, 20),
    ),
    "OpenAI responses": (
        {"input_tokens": 1200, "input_tokens_details": {"cached_tokens": 1000, "cache_write_tokens": 100}}
        | {"output_tokens": 64, "output_tokens_details": {"reasoning_tokens": 20}, "total_tokens": 1264},
        (100, 64, 1000, 100, 1264, 20),
    ),
    "Anthropic": (
        {"input_tokens": 3, "cache_creation_input_tokens": 200, "cache_read_input_tokens": 1000, "output_tokens": 50}
        | {"cache_creation": {"ephemeral_5m_input_tokens": 150, "ephemeral_1h_input_tokens": 50}},
        (3, 50, 1000, 200, 1253, 0),
    ),
    "Anthropic, cached less than sent": (
        {"input_tokens": 2000, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 1000, "output_tokens": 50},
        (2000, 50, 1000, 0, 3050, 0),
    ),
    "Gemini": (
        {"promptTokenCount": 1200, "cachedContentTokenCount": 1000, "candidatesTokenCount": 40, "thoughtsTokenCount": 24}
        | {"toolUsePromptTokenCount": 10, "totalTokenCount": 1274},
        (210, 64, 1000, 0, 1274, 24),
    ),
    "Gemini by OpenAI's API": ({"prompt_tokens": 758, "completion_tokens": 102, "total_tokens": 1725}, (758, 967, 0, 0, 1725, 0)),
    "xAI": (
        {"prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 341, "completion_tokens_details": {"reasoning_tokens": 300}},
        (32, 309, 0, 0, 341, 300),
    ),
    "Bedrock Converse": (
        {"inputTokens": 30, "outputTokens": 5, "cacheReadInputTokens": 1000, "cacheWriteInputTokens": 7, "totalTokens": 1042},
        (30, 5, 1000, 7, 1042, 0),
    ),
    "Ollama": (
        {"model": "m", "done": True, "prompt_eval_count": 26, "eval_count": 298, "message": {"content": "x"}},
        (26, 298, 0, 0, 324, 0),
    ),
    "DeepSeek": (
        {"prompt_tokens": 1200, "prompt_cache_hit_tokens": 1000, "prompt_cache_miss_tokens": 200, "completion_tokens": 5},
        (200, 5, 1000, 0, 1205, 0),
    ),
    "DeepSeek, without a sum": (
        {"prompt_cache_hit_tokens": 10, "prompt_cache_miss_tokens": 20, "completion_tokens": 5},
        (20, 5, 10, 0, 35, 0),
    ),
    "Anthropic, parts of what was written": (
        {"input_tokens": 3, "output_tokens": 5, "cache_creation": {"ephemeral_5m_input_tokens": 150, "ephemeral_1h_input_tokens": 50}},
        (3, 5, 0, 200, 208, 0),
    ),
    "OpenRouter": (
        {"prompt_tokens": 194, "completion_tokens": 2, "cost": 0.95, "cost_details": {"upstream_inference_cost": 0.9}}
        | {"prompt_tokens_details": {"cached_tokens": 100}},
        (94, 2, 100, 0, 196, 0),
    ),
    "Cohere": (
        {"usage": {"billed_units": {"input_tokens": 5, "output_tokens": 418}, "tokens": {"input_tokens": 71, "output_tokens": 418}}},
        (71, 418, 0, 0, 489, 0),
    ),
    "Cohere, cached": ({"tokens": {"input_tokens": 71, "output_tokens": 4}, "cached_tokens": 64}, (7, 4, 64, 0, 75, 0)),
    "Mistral": ({"prompt_tokens": 16, "completion_tokens": 34, "total_tokens": 50}, (16, 34, 0, 0, 50, 0)),
    "llama.cpp, chat": (
        {"prompt_tokens": 97, "completion_tokens": 10, "total_tokens": 107, "prompt_tokens_details": {"cached_tokens": 96}},
        (1, 10, 96, 0, 107, 0),
    ),
    "llama.cpp, without usage": ({"choices": [], "timings": {"cache_n": 96, "prompt_n": 1, "predicted_n": 10}}, (1, 10, 96, 0, 107, 0)),
    "LangChain": (
        {
            "input_tokens": 1200,
            "output_tokens": 5,
            "total_tokens": 1205,
            "input_token_details": {"cache_read": 1000, "cache_creation": 100},
        },
        (100, 5, 1000, 100, 1205, 0),
    ),
    "pydantic-ai": (
        {"input_tokens": 1200, "cache_read_tokens": 1000, "cache_write_tokens": 0, "output_tokens": 5},
        (200, 5, 1000, 0, 1205, 0),
    ),
    "an event of OpenAI responses": (
        {"type": "response.completed", "response": {"id": "r", "output": [], "usage": {"input_tokens": 12, "output_tokens": 3}}},
        (12, 3, 0, 0, 15, 0),
    ),
    "an event of Anthropic": (
        {"type": "message_start", "message": {"content": [], "usage": {"input_tokens": 12, "output_tokens": 1}}},
        (12, 1, 0, 0, 13, 0),
    ),
    "a line of a batch": (
        {
            "custom_id": "1",
            "response": {"status_code": 200, "body": {"usage": {"prompt_tokens": 12, "completion_tokens": 3}}},
            "error": None,
        },
        (12, 3, 0, 0, 15, 0),
    ),
    "a whole response": ({"id": "x", "choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 3}}, (12, 3, 0, 0, 15, 0)),
}


def parts(usage):
    """Return a usage's tokens as a tuple."""
    return tuple(getattr(usage.tokens, name) for name in PARTS)


def objects(value):
    """Return a dict as an object of a library, whose members are attributes."""
    return SimpleNamespace(**{key: objects(one) for key, one in value.items()}) if isinstance(value, dict) else value


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("provider", [None, "openai", "anthropic"])
def test_providers(shape, provider):
    """A provider's usage is read by its own convention, as dict and as object, whatever the op is called."""
    given, expected = SHAPES[shape]
    for form in (given, objects(given)):
        found = read(form, provider=provider)
        assert (expected, []) == (parts(found), found.flaws)


def camel(value):
    """Return a dict with its names in camel case, at all levels."""
    names = {name: first + "".join(map(str.title, rest)) for name in value for first, *rest in [name.split("_")]}
    return {names[name]: camel(one) if isinstance(one, dict) else one for name, one in value.items()}


SNAKE = {"Anthropic, parts of what was written", "llama.cpp, without usage"}
"""Those whose names nobody has in camel case."""


@pytest.mark.parametrize("shape", sorted(SHAPES.keys() - SNAKE))
def test_names_in_camel_case(shape):
    """Camel case means the same as snake case, at all levels."""
    given, expected = SHAPES[shape]
    assert expected == parts(read(camel(given)))


NAMES = {
    (7, 0, 0, 0, 7, 0): "input_tokens prompt_tokens prompt_token_count prompt_eval_count tokens_evaluated tool_use_prompt_token_count "
    "prompt_cache_miss_tokens",
    (0, 7, 0, 0, 7, 0): "output_tokens completion_tokens candidates_token_count response_token_count eval_count tokens_predicted",
    (0, 0, 7, 0, 7, 0): "cache_read_tokens cache_read_input_tokens cached_tokens cached_input_tokens cached_prompt_tokens "
    "cached_content_token_count prompt_cache_hit_tokens prompt_tokens_details.cached_tokens input_tokens_details.cache_read "
    "prompt_token_details.cache_read_tokens",
    (0, 0, 0, 7, 7, 0): "cache_write_tokens cache_write_input_tokens cache_creation_tokens cache_creation_input_tokens "
    "prompt_tokens_details.cache_write_tokens input_token_details.cache_write input_tokens_details.cache_creation "
    "prompt_tokens_details.cache_creation_tokens cache_creation.ephemeral_5m_input_tokens cache_creation.ephemeral_1h_input_tokens",
    (0, 7, 0, 0, 7, 7): "reasoning_tokens reasoning_output_tokens thoughts_token_count completion_tokens_details.reasoning_tokens "
    "output_tokens_details.reasoning output_token_details.reasoning_tokens",
}
"""What one figure alone comes to, under each of its names; one of a member that is an object stands behind a dot."""


@pytest.mark.parametrize(("expected", "name"), [(expected, name) for expected, names in NAMES.items() for name in names.split()])
def test_each_name(expected, name):
    """A count is read under each name that programs and providers have for it."""
    outer, _, inner = name.partition(".")
    found = read({outer: {inner: 7} if inner else 7})
    kept = {"cache_write_1h_tokens": 7} if inner == "ephemeral_1h_input_tokens" else {}  # which has a price of its own
    assert (expected, [], kept) == (parts(found), found.flaws, found.rest)


@pytest.mark.parametrize(
    ("cost", "upstream", "given"),
    [
        *((0.5, None, {name: 0.5}) for name in ("cost_usd", "cost", "total_cost", "total_cost_usd")),
        *((None, 0.5, {name: 0.5}) for name in ("upstream_inference_cost_usd", "upstream_inference_cost")),
    ],
)
def test_each_name_of_money(cost, upstream, given):
    """An amount is read under each name that programs and providers have for it."""
    found = read(given)
    assert (cost, upstream, []) == (found.cost_usd, found.upstream_cost_usd, found.flaws)


@pytest.mark.parametrize("holder", ["usage", "usage_metadata", "token_usage", "tokens", "billed_units", "meta", "response_metadata"])
def test_where_figures_are_held(holder):
    """The figures are found where a response holds them, at any level, and in what an envelope holds."""
    given = {holder: {"input_tokens": 3, "output_tokens": 4}}
    for one in (given, {"meta": given}, *({envelope: given} for envelope in ("response", "message", "body", "result"))):
        assert (3, 4, 0, 0, 7, 0) == parts(read(one))


@pytest.mark.parametrize(
    "member", ["id", "object", "model", "choices", "candidates", "content", "message", "messages", "output", "response", "done"]
)
def test_what_a_response_says_is_not_kept(member):
    """Beside a response's figures nothing of it is kept; of a usage what no name stands for is."""
    assert {"odd": 1} == read({"input_tokens": 3, "odd": 1}).rest
    assert {} == read({"input_tokens": 3, "odd": 1, member: "said"}).rest


WITHIN = [
    "openai", "google", "gemini", "deepseek", "openrouter", "xai", "groq", "mistral", "mistralai", "ollama", "cohere", "litellm",
    "together", "fireworks", "perplexity", "moonshot", "vllm", "llamacpp", "azure", "vertex", "vertexai", "gcp",
]  # fmt: skip


@pytest.mark.parametrize(
    ("beside", "provider", "model"),
    [
        *((False, f"x.{name}", "m") for name in WITHIN),
        *((True, name, None) for name in ("anthropic", "aws.bedrock", "Claude")),
        *((True, name, "Claude-4") for name in ("vertex", "vertexai", "azure")),
    ],
)
def test_each_provider(beside, provider, model):
    """Bare figures are counted as their provider does, whatever names the others have for them."""
    figures = {"input_tokens": 10, "cache_read_input_tokens": 4}
    expected = (10, 0, 4, 0, 14, 0) if beside else (6, 0, 4, 0, 10, 0)
    assert expected == parts(read(figures=figures, provider=provider, model=model))


@pytest.mark.parametrize(
    ("beside", "name", "value"),
    [
        *((False, name, 10) for name in ("prompt_tokens", "prompt_token_count")),
        *((False, name, 4) for name in ("cached_content_token_count", "cached_prompt_tokens", "prompt_cache_hit_tokens")),
        (False, "prompt_tokens_details", {"cached_tokens": 4}),
        (False, "input_tokens_details", {"cached_tokens": 4}),
        (False, "input_token_details", {"cached_tokens": 4}),
        (False, "prompt_token_details", {"cached_tokens": 4}),
        (True, "cache_read_input_tokens", 4),
        (True, "cache_creation_input_tokens", 0),
        (True, "cache_write_input_tokens", 0),
        (True, "cache_creation", {"ephemeral_5m_input_tokens": 0}),
    ],
)
def test_each_name_of_a_convention(beside, name, value):
    """Whose names the figures have tells how they are counted."""
    given = {"input_tokens": 10, "cache_read_tokens": 4, name: value}
    assert ((10, 0, 4, 0, 14, 0) if beside else (6, 0, 4, 0, 10, 0)) == parts(read(given))
    if not beside:
        assert (6, 0, 4, 0, 10, 0) == parts(read(figures=given, provider="anthropic"))


@pytest.mark.parametrize(
    ("expected", "total"), [((10, 5, 0, 0, 15, 3), 15), ((10, 8, 0, 0, 18, 3), 18), ((10, 5, 0, 0, 15, 3), 40), ((10, 5, 0, 0, 15, 3), 0)]
)
def test_reasoning_beside_the_output(expected, total):
    """A total that is the sum of input, output and reasoning shows that the output is without it."""
    assert expected == parts(read({"input_tokens": 10, "output_tokens": 5, "reasoning_tokens": 3, "total_tokens": total}))


@pytest.mark.parametrize(
    ("expected", "counts"),
    [
        ((6, 5, 3, 1, 15, 0), (10, 5, 3, 1, False)),
        ((10, 5, 3, 1, 19, 0), (10, 5, 3, 1, True)),
        ((0, 0, 3, 1, 4, 0), (4, None, 3, 1, False)),
        ((0, 0, 3, 0, 3, 0), (0, 0, 3, None, False)),
        ((10**12, 0, 0, 0, 10**12, 0), (10**12, None, None, None, False)),
        (None, (10**12, 1, 0, 0, False)),
        (None, (3, 0, 4, 0, False)),
        (None, (-1, 0, 0, 0, False)),
        (None, (True, 0, 0, 0, False)),
    ],
)
def test_plain_counts(expected, counts):
    """Four counts that are as they should be come to what they say; all others are for `read`, which says what is wrong."""
    found = plain_tokens(*counts[:4], beside=counts[4])
    assert expected == (None if found is None else parts(Usage(found)))


def test_what_is_given_without_a_figure_is_named():
    """A usage of which nothing is known is told by the names in it."""
    assert ["dict given as usage: no figure in it is known, of a, b"] == read({"a": 1, "b": "x"}).flaws
    assert ["dict given as usage: no figure in it is known"] == read({}).flaws


def test_costs_of_providers():
    """Money that a provider reports is taken: OpenRouter's, xAI's in ticks, Perplexity's in an object."""
    assert (0.95, 0.9) == (read(SHAPES["OpenRouter"][0]).cost_usd, read(SHAPES["OpenRouter"][0]).upstream_cost_usd)
    assert 0.0015 == read({"prompt_tokens": 1, "cost_in_usd_ticks": 15_000_000}).cost_usd
    assert 0.5 == read({"prompt_tokens": 4, "cost": {"total_cost": 0.5}}).cost_usd
    assert None is read({"prompt_tokens": 4}).cost_usd


@pytest.mark.parametrize(
    ("provider", "figures", "expected"),
    [
        (None, {"input_tokens": 1200, "cache_read_tokens": 1000}, (200, 0, 1000, 0, 1200, 0)),
        ("openai", {"input_tokens": 1200, "cache_read_tokens": 1000, "cache_write_tokens": 100}, (100, 0, 1000, 100, 1200, 0)),
        ("openai", {"input_tokens": 1200, "cache_read_input_tokens": 1000}, (200, 0, 1000, 0, 1200, 0)),
        ("anthropic", {"input_tokens": 1200, "cache_read_tokens": 1000}, (1200, 0, 1000, 0, 2200, 0)),
        ("aws.bedrock", {"input_tokens": 1200, "cache_read_tokens": 1000}, (1200, 0, 1000, 0, 2200, 0)),
        (None, {"input_tokens": 1200, "cache_creation_input_tokens": 1000}, (1200, 0, 0, 1000, 2200, 0)),
        ("anthropic", {"prompt_tokens": 1200, "cached_tokens": 1000}, (200, 0, 1000, 0, 1200, 0)),
        ("anthropic", {"input_tokens": 1200, "cache_read_tokens": 1000, "total_tokens": 1200}, (200, 0, 1000, 0, 1200, 0)),
        (None, {"input_tokens": 1200, "cache_read_tokens": 1000, "total_tokens": 2200}, (1200, 0, 1000, 0, 2200, 0)),
        (None, {"prompt_tokens": 812, "completion_tokens": 64}, (812, 64, 0, 0, 876, 0)),
        (None, {"output_tokens": 64, "reasoning_tokens": 20}, (0, 64, 0, 0, 64, 20)),
        (None, {"cache_write_tokens": 4000, "output_tokens": 10}, (0, 10, 0, 4000, 4010, 0)),
    ],
)
def test_figures_by_name(provider, figures, expected):
    """Bare figures follow the provider's convention where it is known, their total where there is one, else the GenAI conventions."""
    found = read(figures=figures, provider=provider)
    assert (expected, []) == (parts(found), found.flaws)


def test_a_convention_that_is_asked_for():
    """Who says whether input includes cached tokens is believed."""
    given = {"input_tokens": 1200, "cache_read_tokens": 1000}
    assert (1200, 0, 1000, 0, 2200, 0) == parts(read(figures=given, provider="openai", includes_cached=False))
    assert (200, 0, 1000, 0, 1200, 0) == parts(read(figures=given, provider="anthropic", includes_cached=True))


def test_contradictions():
    """What cannot be among something else is counted beside it, and said."""
    found = read(figures={"input_tokens": 200, "cache_read_tokens": 1000})
    assert (200, 0, 1000, 0, 1200, 0) == parts(found)
    assert ["1,000 tokens from and to the cache cannot be among 200 of input: they are counted beside them"] == found.flaws
    found = read(figures={"output_tokens": 5, "reasoning_tokens": 20})
    assert (0, 25, 0, 0, 25, 20) == parts(found)
    assert ["20 tokens of reasoning cannot be among 5 of output: they are counted beside them"] == found.flaws


@pytest.mark.parametrize(
    ("figures", "tokens", "cost", "flaw"),
    [
        ({"input_tokens": -4}, 0, None, "input_tokens=-4 is below 0, and counts as 0"),
        ({"input_tokens": True}, None, None, "input_tokens=True is no count, and is left out"),
        ({"input_tokens": float("nan")}, None, None, "input_tokens=nan is no count, and is left out"),
        ({"input_tokens": "many"}, None, None, "input_tokens='many' is no count, and is left out"),
        ({"cost_usd": float("inf")}, None, None, "cost_usd=inf is no amount of money: the cost is unknown"),
        ({"cost_usd": False}, None, None, "cost_usd=False is no amount of money: the cost is unknown"),
        ({"cost_usd": -0.5}, None, -0.5, None),
        ({"cost_usd": 0}, None, 0.0, None),
        ({"input_tokens": "12", "cost_usd": "0.5"}, 12, 0.5, None),
        ({"input_tokens": 10**12, "cost_usd": -1e9}, 10**12, -1e9, None),
        ({"input_tokens": 10**12 + 1}, None, None, f"input_tokens=1000000000001 is {MORE} come to (1e+12), and is left out"),
        (
            {"input_tokens": 10**12, "output_tokens": 1},
            None,
            None,
            f"1,000,000,000,001 tokens are {MORE} come to (1e+12), and are left out",
        ),
        ({"cost_usd": 1e308}, None, None, f"cost_usd=1e+308 is {MORE} cost (1e+09): the cost is unknown"),
        ({"cost_usd": -(10**20)}, None, None, f"cost_usd=-100000000000000000000 is {MORE} cost (1e+09): the cost is unknown"),
    ],
)
def test_what_is_no_figure(figures, tokens, cost, flaw):
    """A figure that is none is left out and said; a negative cost is a credit, and 0 is a cost."""
    found = read(figures=figures)
    assert (tokens, cost) == (found.tokens and found.tokens.input_tokens, found.cost_usd)
    assert [flaw] * (flaw is not None) == found.flaws


def test_named_figures_win():
    """Figures by name stand over those of the usage that is given with them, which keeps its own convention."""
    found = read({"prompt_tokens": 1200, "prompt_tokens_details": {"cached_tokens": 1000}}, {"output_tokens": 7, "cost_usd": 0.5})
    assert ((200, 7, 1000, 0, 1207, 0), 0.5) == (parts(found), found.cost_usd)


_counts = st.integers(0, 5000)


@given(_counts, _counts, _counts, _counts, _counts)
def test_one_call_in_all_conventions(fresh, read_, written, output, reasoning):
    """One and the same call, told in each provider's way, comes out the same; nothing is counted twice."""
    reasoning = min(reasoning, output)
    sent = fresh + read_ + written
    expected = (fresh, output, read_, written, sent + output, reasoning)
    told = {
        "responses": {
            "input_tokens": sent, "input_tokens_details": {"cached_tokens": read_, "cache_write_tokens": written},
            "output_tokens": output, "output_tokens_details": {"reasoning_tokens": reasoning}, "total_tokens": sent + output,
        },
        "chat": {
            "prompt_tokens": sent, "prompt_tokens_details": {"cached_tokens": read_, "cache_write_tokens": written},
            "completion_tokens": output, "completion_tokens_details": {"reasoning_tokens": reasoning},
        },
        "anthropic": {
            "input_tokens": fresh, "cache_read_input_tokens": read_, "cache_creation_input_tokens": written, "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": reasoning},
        },
    }  # fmt: skip
    named = {"input_tokens": sent, "cache_read_tokens": read_, "cache_write_tokens": written, "output_tokens": output}
    assert dict.fromkeys(told, (expected, [])) == {name: (parts(found), found.flaws) for name, one in told.items() if (found := read(one))}
    assert (expected, []) == (parts(found := read(figures=named | {"reasoning_tokens": reasoning})), found.flaws)


def test_account_takes_a_usage():
    """`account` takes a provider's usage by position or name, and keeps what it does not know of it."""
    builder = SessionTreeBuilder("a")
    op = builder.begin_op("llm", "openai:gpt-4o")
    op.account({"prompt_tokens": 812, "completion_tokens": 64, "service_tier": "flex"}, cost_usd=0.0031)
    op.account(usage=SimpleNamespace(input_tokens=1200, cache_read_input_tokens=1000, output_tokens=5))
    first, second = op.node.accounting
    assert (812, 64, 0.0031, b'{"service_tier":"flex"}') == (
        first.tokens.input_tokens,
        first.tokens.output_tokens,
        first.cost_usd,
        bytes(first.details),
    )
    assert (1200, 1000, None) == (second.tokens.input_tokens, second.tokens.cache_read_input_tokens, second.cost_usd)


OF_THE_CALL = {"status": "failed", "latency": 5.0, "input_includes_cached": True}
TEXTS = {"provider", "model", "actual_provider", "actual_model", "mcp_server", "command", "error"}


@pytest.mark.parametrize("name", sorted(AccountFigures.__annotations__))
def test_names_that_are_typed_are_understood(name):
    """Each name that a type checker lets `account` have is one that it understands: none is kept as unknown, nothing is said of it."""
    builder = SessionTreeBuilder("a")
    op = builder.begin_op("llm", "p:m")
    op.account(**{name: OF_THE_CALL.get(name, "x" if name in TEXTS else 3)})
    [entry] = op.node.accounting
    assert ([], UNSET) == ([log.message for log in op.node.logs], entry.details)


@pytest.mark.parametrize("name", sorted({*_COUNTS, *_MONEY}))
def test_names_that_are_understood_are_typed(name):
    """Each name of a figure that is understood at run time is one that a type checker accepts."""
    assert name in AccountFigures.__annotations__


def test_what_is_not_known_is_said_once():
    """A name that is none is kept under that name, with a warning in the op and a report, once; other names of figures are understood."""
    builder = SessionTreeBuilder("a")
    for number in range(3):
        op = builder.begin_op("llm", "openai:gpt-4o")
        op.account(prompt_tokens=812, cost=0.0031, tokens_imput=number)
        op.end()
        assert (812, 0.0031, f'{{"tokens_imput":{number}}}'.encode()) == (
            op.node.accounting[0].tokens.input_tokens,
            op.node.accounting[0].cost_usd,
            bytes(op.node.accounting[0].details),
        )
    said = "account(tokens_imput=…): no such figure is known; it is kept in the entry's details"
    assert [f"1.1: {said}"] == builder.core.stream.reports
    assert [[("WRN", said)], [], []] == [[(log.severity, log.message) for log in op.logs] for op in builder.node.turns[0].ops]
    assert 0 == builder.core.stream.failures


def test_contradictory_figures_are_said_once():
    """A thousand calls with the same contradiction are one report."""
    builder = SessionTreeBuilder("a", stream=Stream([]))
    for number in range(10):
        builder.begin_op("llm", "openai:m").account(input_tokens=number + 1, cache_read_tokens=1000 + number)
    assert 1 == len(builder.core.stream.reports)
    assert 55 + 10_045 == builder.node.totals.all_input_tokens


@pytest.mark.parametrize("given", [{"id": "x", "choices": []}, {}, {"type": "response.completed", "response": {"id": "r"}}, {"x": 1}])
def test_a_usage_without_figures_is_said_once(given):
    """Zero tokens are not taken for granted: what was given and has no figure is reported, once."""
    builder = SessionTreeBuilder("a")
    for _ in range(2):
        builder.begin_op("llm", "openai:m").account(given)
    [report] = builder.core.stream.reports
    assert report.startswith("1.1: dict given as usage: no figure in it is known")


@pytest.mark.parametrize("kind", ["llm", "tool"])
@pytest.mark.parametrize(("given", "kept"), [((1200, 64), {"usage": "1200", "others": [64]}), ((None, 64, "x"), {"others": [64, "x"]})])
def test_figures_without_names_are_kept_and_said(kind, given, kept):
    """Figures by position raise nothing: the entry is there, its details have them, and it is said once to name them."""
    builder = SessionTreeBuilder("a")
    for _ in range(2):
        op = builder.begin_op(kind, "openai:m")
        op.account(*given, cost_usd=0.25)
        assert (0.25, kept) == (op.node.accounting[0].cost_usd, decode(op.node.accounting[0].details))
    assert 1 == sum("account() takes figures by name, as input_tokens=812" in said for said in builder.core.stream.reports)


STATUSES = {
    "ok": ["ok", "OK", "success", "Success", "succeeded", "completed", None],
    "failed": ["failed", "Failed", "FAILED", "error", "Error", "failure", "cancelled", "timeout", HTTPStatus.OK, True, "", "no idea"],
}  # fmt: skip


@pytest.mark.parametrize(("expected", "given"), [(expected, given) for expected, all_ in STATUSES.items() for given in all_])
def test_how_an_attempt_went(expected, given):
    """Any word for success is ok, any for failure failed, in any case of letters; what is no such word is failed, never a success."""
    builder = SessionTreeBuilder("a")
    op = builder.begin_op("llm", "openai:m")
    op.account(input_tokens=1, output_tokens=1, status=given)
    assert (expected, int(expected == "failed")) == (op.node.accounting[0].status, builder.node.totals.llm_failed)


def test_a_status_that_is_none_is_said_once():
    """A word that is no status is reported once, with what it counts as; the words that are understood are not."""
    builder = SessionTreeBuilder("a")
    for status in ("no idea", "error", "no idea"):
        builder.begin_op("llm", "openai:m").account(status=status)
    assert ["1.1: account(status='no idea') is none of ok, failed: it counts as failed"] == builder.core.stream.reports


@pytest.mark.parametrize("figure", [{"cost_usd": 1e308}, {"upstream_inference_cost_usd": -1e308}, {"input_tokens": 1 << 60}])
def test_an_impossible_figure_is_in_no_sum(figure):
    """A figure that no call can come to is said once, in the plain way and in the compiled one, and all sums stay numbers."""
    builder = SessionTreeBuilder("a", stream=Stream([]))
    for _ in range(3):
        builder.begin_op("llm", "openai:m").account(**{"cost_usd": 0.25, "output_tokens": 2, **figure})
    totals = builder.node.totals
    assert (0, 0.0, 6) == (totals.input_tokens, totals.upstream_inference_cost_usd, totals.output_tokens)
    assert (0.0 if "cost_usd" in figure else 0.75) == totals.cost_usd
    assert 1 == len(builder.core.stream.reports)


class Unbound:
    """As werkzeug's LocalProxy outside of its context: whatever is asked of it raises, its class too."""

    @property
    def __class__(self):
        """Raise."""
        raise RuntimeError("working outside of application context")

    def __getattr__(self, name):
        """Raise."""
        raise RuntimeError(name)


class Untold:
    """A key whose text raises."""

    def __str__(self):
        """Raise."""
        raise RuntimeError("no")


UNBOUND = "stands for an `Unbound`, which pytest itself cannot look at"


@pytest.mark.parametrize(
    ("usage", "named", "expected"),
    [
        (UNBOUND, {"input_tokens": 812, "cost_usd": 0.5}, (812, 0, 0.5)),
        ({Untold(): 1, "prompt_tokens": 812, "completion_tokens": 4}, {"cost_usd": 0.5}, (812, 4, 0.5)),
        ({"prompt_tokens": 812, "prompt_tokens_details": UNBOUND, "x": UNBOUND}, {"output_tokens": 4, "cost_usd": 0.5}, (812, 4, 0.5)),
        (None, {"input_tokens": UNBOUND, "output_tokens": 4, "cost_usd": 0.5}, (0, 4, 0.5)),
        (None, {"input_tokens": 812, "output_tokens": 4, "cost_usd": 0.5, "cache_read_tokens": UNBOUND, "model": UNBOUND}, (812, 4, 0.5)),
        (None, {"input_tokens": 812, "output_tokens": 4, "cost_usd": 0.5, "latency": UNBOUND, "nothing_known": UNBOUND}, (812, 4, 0.5)),
    ],
)
@pytest.mark.parametrize("redacted", [False, True])
def test_one_figure_that_misbehaves(usage, named, expected, redacted):
    """What raises when it is looked at costs its own figure alone: the others are kept, it is said, and nothing is raised."""
    builder = SessionTreeBuilder("a")
    builder.core.redacted = redacted
    op = builder.begin_op("llm", "openai:m")
    given = {key: Unbound() if one is UNBOUND else one for key, one in usage.items()} if isinstance(usage, dict) else usage
    op.account(Unbound() if usage is UNBOUND else given, **{key: Unbound() if one is UNBOUND else one for key, one in named.items()})
    [entry] = op.node.accounting
    assert expected == (entry.tokens.input_tokens, entry.tokens.output_tokens, entry.cost_usd)
    assert builder.core.stream.reports or b"its text raises" in bytes(entry.details)
    assert 0 == builder.core.stream.failures


SECRET = "ghp_" + "0aB3" * 9


@pytest.mark.parametrize(
    ("figures", "piece"),
    [
        ({"input_tokens": "x" * 18 + " " + SECRET}, "ghp_"),
        ({"cost_usd": "password=hunter2hunter2 and more"}, "hunter2"),
        ({"usage": {"x" * 60 + " " + SECRET: 1}}, "ghp_"),
        ({"usage": "x" * 180 + " " + SECRET}, "ghp_"),
        ({"status": "x" * 70 + " " + SECRET}, "ghp_"),
    ],
)
def test_what_is_said_of_a_figure_has_no_piece_of_a_credential(figures, piece):
    """Credentials are redacted before what holds them is cut: neither reports nor the op's lines nor its details have a piece (S4-48)."""
    builder = SessionTreeBuilder("a")
    op = builder.begin_op("llm", "openai:m")
    op.account(**figures)
    assert builder.core.stream.reports
    assert piece not in repr((builder.core.stream.reports, op.node.logs))
    assert "usage" not in figures or piece not in bytes(op.node.accounting[0].details or b"").decode() or isinstance(figures["usage"], dict)


def test_objects_are_reported_once():
    """What differs in an object's address alone is the same."""
    builder = SessionTreeBuilder("a")
    kept = [object() for _ in range(20)]
    for one in kept:
        builder.begin_op("llm", "openai:m").account(input_tokens=one)
    assert 1 == len(builder.core.stream.reports)


class Hostile(dict):
    """A dict whose own code raises."""

    def __iter__(self):
        """Raise."""
        raise RuntimeError("no")

    __getitem__ = items = keys = __iter__


@pytest.mark.parametrize(
    ("given", "expected"),
    [(one, Tokens()) for one in ("text", 5, [1], object(), SimpleNamespace(usage=object()), float)] + [(Hostile(prompt_tokens=1), None)],
)
def test_what_is_no_usage(given, expected):
    """Anything may be given as a usage: the call is accounted for, nothing is raised, something is said; what cannot be read is unknown."""
    builder = SessionTreeBuilder("a")
    op = builder.begin_op("llm", "openai:m")
    op.account(given)
    assert [expected] == [entry.tokens for entry in op.node.accounting]
    assert builder.core.stream.reports or builder.core.stream.failures


class WithoutMemory:
    """Finds none when its figures are asked for."""

    __slots__ = ()

    def to_dict(self):
        """Raise."""
        raise MemoryError

    __float__ = to_dict


@pytest.mark.parametrize("place", ["_gather", "_members", "_take", "_complete", "_tokens"])
@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("a fault of ours")], ids=repr)
def test_a_fault_of_ours_while_it_is_read_is_counted(monkeypatch, place, error):
    """The call is accounted for with unknown tokens, and that they could not be read is counted once."""

    def raises(*_args, **_more):
        raise error

    builder = SessionTreeBuilder("a")
    op = builder.begin_op("llm", "openai:m")
    monkeypatch.setattr(f"optree._providers.usage.{place}", raises)
    op.account({"prompt_tokens": 812.0, "completion_tokens": 4.0})
    assert ([None], 1) == ([entry.tokens for entry in op.node.accounting], builder.core.stream.failures)


@pytest.mark.parametrize("usage", [WithoutMemory(), {"prompt_tokens": WithoutMemory()}, {"usage": WithoutMemory()}])
def test_no_memory_while_it_is_read_is_counted(usage):
    """Without memory a figure is not taken for one that cannot be so."""
    builder = SessionTreeBuilder("a")
    builder.begin_op("llm", "openai:m").account(usage)
    assert (1, 1) == (builder.core.stream.failures, len(builder.core.stream.reports))
    assert "MemoryError" in builder.core.stream.last_failure


def test_our_own_entries_are_usage():
    """An entry's tokens, and the entry itself, are read as what they are: parts that add up."""
    builder = SessionTreeBuilder("a")
    op = builder.begin_op("llm", "openai:m")
    op.account({"prompt_tokens": 1200, "prompt_tokens_details": {"cached_tokens": 1000}, "service_tier": "flex"})
    [entry] = op.node.accounting
    assert (200, 0, 1000, 0, 1200, 0) == parts(read(entry.tokens)) == parts(read(entry))


class WithoutHash(type):
    """A kind of class that cannot be hashed."""

    __hash__ = None

    def __eq__(cls, other):
        """Tell whether it is the same."""
        return cls is other


class Odd(metaclass=WithoutHash):
    """A value of such a class."""


def test_a_value_whose_class_cannot_be_hashed():
    """It is kept with the rest, and the figures beside it count."""
    found = read({"prompt_tokens": 8, "completion_tokens": 5, "odd": Odd()})
    assert (8, 5, ["odd"]) == (found.tokens.input_tokens, found.tokens.output_tokens, list(found.rest))


def test_what_a_request_ran_beside_its_answer():
    """A compaction's tokens, and an advisor's, are not among Anthropic's figures for the answer, and are added; its messages' are."""
    compacted = {
        "type": "compaction",
        "input_tokens": 100,
        "output_tokens": 20,
        "cache_read_input_tokens": 3,
        "cache_creation_input_tokens": 4,
    }
    advised = {"type": "advisor_message", "model": "m", "input_tokens": 1000, "output_tokens": 200}
    answered = {"type": "message", "input_tokens": 8, "output_tokens": 5}
    found = read({"input_tokens": 8, "output_tokens": 5, "iterations": [compacted, answered, advised, "odd", None]})
    assert (Tokens(1108, 225, 3, 4, 1340), []) == (found.tokens, found.flaws)
    assert [compacted, answered, advised, "odd", None] == found.rest["iterations"]


def test_what_was_written_for_an_hour_as_objects():
    """Entries of what was written to the cache may be objects."""
    entry = type("Entry", (), {})()
    entry.ttl, entry.inputTokens = "1h", 3
    given = {"inputTokens": 8, "outputTokens": 1, "cacheWriteInputTokens": 3, "cacheDetails": [entry]}
    assert 3 == read(given).rest["cache_write_1h_tokens"]
