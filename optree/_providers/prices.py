"""What calls cost whose tokens are known and whose cost nobody gave: by prices in a file of the user's, else by those of genai-prices.

A price is used only where provider and model are found; else the cost stays unknown. The library is read once, where a program switches
prices on or as the first session begins: so each entry has its cost as it is made, or never, and nothing (no fork, bill or
exit) waits for it. A model's price is found in less than a millisecond, once; from then on it costs a look into a dict.
"""

from __future__ import annotations

import re
import sys
from _thread import get_ident
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

import msgspec
from msgspec import UNSET, Raw, Struct

from optree._ids import content_id
from optree._interrupts import pass_on
from optree._nodes import PARTIAL, AccountingEntry, Tokens
from optree._providers.amounts import MAX_DOLLARS, count
from optree._providers.usage import BILLED, SERVER_TOOLS, parts_of
from optree._syscalls import calls
from optree._values import encode, is_list, is_object, object_of
from optree.errors import SetupError

PRICE: Final = "optree.price"
"""The member of an entry's details that names its price there."""
MILLION: Final = 1e6
_RATES: Final = ("input", "cached", "written", "written_1h", "output", "reasoning")
_REQUEST: Final = "request"
_INSTEAD: Final = {"cached": "input", "written": "input", "written_1h": "written", "reasoning": "output"}
"""What is paid for tokens that have no price of their own."""
_KEYS: Final = {
    "input_mtok": "input", "cache_read_mtok": "cached", "cache_write_mtok": "written", "cache_write_1h_mtok": "written_1h",
    "output_mtok": "output", "output_reasoning_mtok": "reasoning",
}  # fmt: skip
"""What genai-prices calls them."""
_KINDS: Final = ("audio", "image", "video", "search", "citation", "document", "page", "message", "char", "hour")
"""What a provider may ask another price for than for text, by a part of its name there and in usages."""
_OWN_KINDS: Final = ("image", "video", "citation")
"""Those of them that a price of the user's is not for; see `_APART` too."""
_NAMES: Final = {
    "gemini": "google", "vertex": "google", "vertexai": "google", "vertex_ai": "google", "gcp.gemini": "google", "gcp.vertex_ai": "google",
    "gcp.gen_ai": "google", "google_genai": "google", "google-genai": "google", "google_vertexai": "google", "gcp": "google",
    "bedrock": "aws", "aws.bedrock": "aws", "aws_bedrock": "aws", "amazon_bedrock": "aws", "bedrock_converse": "aws",
    "azure_openai": "azure", "azure.ai.openai": "azure", "azure.ai.inference": "azure", "azure-openai": "azure",
    "xai": "x-ai", "x_ai": "x-ai", "mistral_ai": "mistral", "mistralai": "mistral", "moonshot": "moonshotai", "moonshot_ai": "moonshotai",
    "together_ai": "together", "fireworks_ai": "fireworks", "openai-responses": "openai",
}  # fmt: skip
"""Other names of providers: those of the GenAI conventions and of client libraries. A name that only resembles one is another's."""
_USUAL: Final = (None, "", "default", "standard", "auto", "on_demand", "STANDARD", "ON_DEMAND", "global", "not_available",
                 "TRAFFIC_TYPE_UNSPECIFIED")  # fmt: skip
_TIER: Final = rb'"(?:service_?[tT]ier|speed|inference_?[gG]eo|traffic_?[tT]ype)": ?"([^"]*)"'
_HOUR: Final = rb'"cache_write_1h_tokens": ?(\d+)'
_COUNTED: Final = rb'"(\w+)": ?(?:[1-9]|0\.)'
_MODALITY: Final = rb'"modality": ?"(\w+)"'
"""Patterns for an entry's details; compiled when they are first used."""
_APART: Final = (
    r"audio|(web|file)_?search|search(es|_?(requests|queries|units|calls?)$)|sources_used|server_side_tool|"
    r"code_(interpreter|execution)|image_generation"
)
"""What is billed beside the tokens of text everywhere, by a part of its name in usages; no price that is used here is for it."""
_SERVER_TOOLS: Final = b'"%b":' % SERVER_TOOLS.encode()
_BILLED: Final = b'"%b":{' % BILLED.encode()
_PARTIAL: Final = b'"%b":true' % PARTIAL.encode()
_FREE: Final = "tool_search"
"""How names of counts begin that cost their tokens, though they sound as if they were billed beside."""
_DIGITS: Final = 12
_DAY: Final = 86_400_000
Steps = list[tuple[int, float]]
"""Dollars per million tokens, by how many tokens of input a call must have more than."""


class Price(Struct, frozen=True):
    """What a model's tokens cost."""

    name: str
    """Its name in a session's `pricingSnapshot`; another price of the same model has another name."""
    snapshot: Raw
    """The price as it stands in the `pricingSnapshot`: JSON of an object with this one member."""
    details: Raw
    """Details of an entry that has no others, as JSON."""
    rates: dict[str, Steps]
    usual: tuple[float, ...] | None
    """Dollars per million of each of `_RATES`, where these do not depend on a call's size and are known."""
    request: float = 0.0
    """Dollars a call."""
    kinds: tuple[str, ...] = ()
    """What else has a price of its own: the cost of a call that used it is unknown."""
    since: float = float("-inf")
    until: float = float("inf")
    """Before when, and from when on, it may be another one, in epoch ms."""

    def cost(self, tokens: Tokens, hour: int = 0) -> float | None:
        """Return what tokens cost, in US dollars; None if that is not known. *hour*: those written to the cache for an hour."""
        if (rates := self.usual or self._of_size(tokens)) is None:
            return None
        sent, cached, written, written_1h, output, reasoning = rates
        total = tokens.input_tokens * sent + tokens.cache_read_input_tokens * cached + tokens.cache_write_input_tokens * written
        total += tokens.output_tokens * output
        if hour or tokens.reasoning_output_tokens:
            hour = min(hour, tokens.cache_write_input_tokens)
            total += tokens.reasoning_output_tokens * (reasoning - output) + hour * (written_1h - written)
        return round(total / MILLION + self.request, _DIGITS)

    def _of_size(self, tokens: Tokens) -> tuple[float, ...] | None:
        """Return dollars per million for a call with these tokens; None if there is no price for some of them."""
        sent, output = tokens.all_input_tokens, tokens.output_tokens
        if (sent and "input" not in self.rates) or (output and "output" not in self.rates):
            return None
        return tuple(_at(self.rates.get(name), sent) for name in _RATES)


def _at(steps: Steps | None, sent: int) -> float:
    return next((price for start, price in reversed(steps or []) if sent > start or not start), 0.0)


def price_of(
    provider: str, model: str, rates: Mapping[str, Steps], source: str, *, request: float = 0.0, tier: str = "", **more: Any
) -> Price:
    """Return a price, with what is paid for tokens that it does not name."""
    shown: dict[str, Any] = {name: steps[0][1] if len(steps) == 1 else steps for name, steps in rates.items()}
    terms = {"provider": provider, "model": model, **({"tier": tier} if tier else {}), **shown}
    data = encode({**terms, **({_REQUEST: request} if request else {}), "source": source})
    name = f"{provider}:{model}@{content_id(data)[:8]}"
    whole = dict(rates)
    for missing, substitute in _INSTEAD.items():
        if missing not in whole and substitute in whole:
            whole[missing] = whole[substitute]
    flat = all(kind in whole and len(whole[kind]) == 1 for kind in _RATES)
    usual = tuple(whole[kind][0][1] for kind in _RATES) if flat else None
    return Price(name, Raw(b"{%b:%b}" % (encode(name), data)), Raw(encode({PRICE: name})), whole, usual, request, **more)


def read_table(path: str | Path) -> dict[tuple[str, str], Price]:
    """Return the prices in a file, by provider and model. Raises `SetupError`."""
    try:
        data = Path(path).expanduser().read_bytes()
        if str(path).lower().endswith(".toml"):
            import tomllib

            document: Any = tomllib.loads(data.decode())
        else:
            document = msgspec.json.decode(data)
    except (OSError, ValueError, RecursionError, msgspec.DecodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise SetupError(f"prices={str(path)!r} cannot be read: {why}") from None
    flaw = f"prices={str(path)!r}: "
    if not is_object(document) or not all(is_object(models) for models in document.values()):
        raise SetupError(f'{flaw}it holds providers with their models, as {{"openai": {{"gpt-5": {{"input": 1.25, "output": 10}}}}}}')
    table: dict[tuple[str, str], Price] = {}
    for provider, models in document.items():
        for model, prices in models.items():
            rates, request = _checked(prices, f"{flaw}{provider} {model}: ")
            own = price_of(provider, model, rates, Path(path).name, request=request, kinds=_OWN_KINDS)
            table[_named(provider), model.lower()] = own
    return table


def _checked(prices: Any, flaw: str) -> tuple[dict[str, Steps], float]:
    """Return dollars per million tokens, and per call, out of a file. Raises `SetupError`."""
    known = (*_RATES, _REQUEST)
    if not is_object(prices) or not prices or any(name not in known for name in prices):
        raise SetupError(f"{flaw}a price has members of {', '.join(known)}, in dollars per million tokens (request: dollars a call)")
    rates: dict[str, Steps] = {}
    for name, value in prices.items():
        steps = _read_steps(value, by_size=name != _REQUEST)
        if steps is None:
            raise SetupError(f"{flaw}{name}={value!r} is no price: give dollars, or [[0, dollars], [200000, dollars]] by tokens of input")
        rates[name] = steps
    request = rates.pop(_REQUEST, [(0, 0.0)])
    return rates, request[0][1]


def _read_steps(value: object, *, by_size: bool) -> Steps | None:
    """Return a price in dollars out of a file; None for a value that is not a price."""
    try:
        converted = msgspec.convert(value, float | Steps if by_size else float)
    except msgspec.ValidationError:
        return None
    steps: Steps = sorted(converted) if isinstance(converted, list) else [(0, float(converted))]
    return steps if steps and steps[0][0] == 0 and all(0 <= price <= MAX_DOLLARS for _, price in steps) else None


def _named(provider: str) -> str:
    name = provider.lower().strip()
    return _NAMES.get(name, name)


class PriceKey(Struct, frozen=True):
    """What a price depends on beside the time."""

    provider: str
    model: str
    answered: str | None = None
    tier: str | None = None


class PriceFinder:
    """Finds prices, and remembers those that it has found: one for a process."""

    def __init__(self) -> None:
        self.on = False
        """Whether costs are to be found at all."""
        self.wanted: bool | None = None
        """What the program or the environment says, if it does."""
        self._captures = False
        self._table: dict[tuple[str, str], Price] = {}
        self._library: Any = None
        self._looked = False
        self._reader = 0
        """The number of the thread that reads the library."""
        self._known: dict[Any, Price | None] = {}
        """By provider and model, or by `PriceKey` where the price depends on more; None if no price was found."""
        self.report: Callable[[str], object] = str

    def use(self, wanted: bool | str | Path | None) -> None:
        """Use prices, those of a file first if *wanted* is its path; False: use none; None: use them while calls are captured.

        Raises `SetupError`.
        """
        self._table = read_table(wanted) if isinstance(wanted, (str, Path)) else {}
        self.wanted = None if wanted is None else bool(wanted)
        self._looked, self._known = False, {}
        self.captures(on=self._captures)

    def captures(self, *, on: bool) -> None:
        """Note whether calls of models are captured from now on."""
        self._captures = on
        self.on = on if self.wanted is None else self.wanted

    def begin(self, wanted: bool | str | Path | None, report: Callable[[str], object]) -> list[str]:
        """Use prices as the environment says; returns why not, a sentence, where that cannot be."""
        self.report = report
        try:
            self.use(wanted)
        except SetupError as error:
            return [f"OPTREE_PRICES is passed over: {error}"]
        return []

    def load(self) -> None:
        """Read the library, if prices are used and it is there: once, a quarter of a second. What is wrong is reported, not raised."""
        if not self.on or self._looked:
            return
        library: Any = None
        self._reader = get_ident()
        try:
            import_module("logging")  # for which a fork does not wait, as it does for what comes now (`optree._interrupts`)
            from genai_prices import data_snapshot

            data_snapshot.get_snapshot()
            library = sys.modules["genai_prices"]
        except (RecursionError, MemoryError):
            return  # the next one may have room for it
        except ModuleNotFoundError as error:
            pass_on(error)
            if self.wanted and not self._table:
                self.report(f"costs that nobody gives stay unknown: {error.msg}; pip install 'optree-tracing[prices]', or give a file")
        except Exception as error:  # noqa: BLE001 - other people's code; without it there are no prices but the user's
            pass_on(error)
            if self.wanted:
                self.report(f"genai-prices cannot be used, and costs that nobody gives stay unknown: {type(error).__name__}: {error}")
        finally:
            self._reader = 0
        self._library, self._looked, self._known = library, True, {}

    def find(self, entry: AccountingEntry) -> tuple[Price | None, int]:
        """Return the price of an entry, None if it is unknown, and the tokens written to the cache for an hour."""
        if not self.on or entry.provider is None or entry.model is None:
            return None, 0
        plain = entry.details is UNSET and entry.actual_model is None
        key, hour = ((entry.provider, entry.model), 0) if plain else _asked(entry)
        price = self._known.get(key, _NEW)
        if price is not None and not price.since <= entry.timestamp < price.until:
            price = self._price(key if type(key) is PriceKey else PriceKey(*key), entry.timestamp)
            if len(self._known) >= _MOST:
                self._known = {}
            self._known[key] = price
        return None if price is None or _uses_more(entry, price) else price, hour

    def after_fork(self) -> None:
        """In a forked child: do without a library that another thread was reading. It did not come along, and its imports stay locked."""
        if self._reader not in (0, get_ident()):
            self._library, self._looked, self._reader = None, True, 0

    def _price(self, asked: PriceKey, at: float) -> Price | None:
        provider = _named(asked.provider)
        model = asked.model
        if provider == "litellm" and "/" in model:
            provider, _, model = model.partition("/")
            provider = _named(provider)
        names = [name for name in (asked.answered, model) if name]
        for name in names:
            if (price := self._table.get((provider, name.lower()))) is not None:
                return price if asked.tier is None else None  # what another tier costs, only the user knows
        self.load()
        named = [model] if provider == "aws" else names  # a model's own name says nothing of the region, which has a price of its own
        prices = (self._of_library(provider, name, asked.tier, at) for name in named)
        return None if self._library is None else next((price for price in prices if price is not None), None)

    def _of_library(self, provider: str, name: str, tier: str | None, at: float) -> Price | None:
        try:
            return self._in_library(provider, name, tier, at)
        except LookupError as error:
            pass_on(error)
        except (RecursionError, MemoryError):
            raise  # which says nothing about the price
        except Exception as error:  # noqa: BLE001 - other people's code
            pass_on(error)
            self.report(f"genai-prices has no price of {provider} {name} that can be read: {type(error).__name__}: {error}")
        return None

    def _in_library(self, provider: str, name: str, tier: str | None, at: float) -> Price | None:
        """Return the library's price at a time; None if it has none for all of it. Raises `LookupError`."""
        from datetime import UTC, datetime

        snapshot = self._library.data_snapshot.get_snapshot()
        owner = next((candidate for candidate in snapshot.providers if candidate.id == provider), None)
        if owner is None:
            return None
        _, model = snapshot.find_provider_model(name, owner, None, None)
        context, variants = None, cast("list[Any]", model.price_variants or [])
        every: Any = model.prices
        dated: list[Any] = every if is_list(every) else []
        constraints: list[Any] = [variant.constraint for variant in [*dated, *variants]]
        if tier is not None:
            asked = [{name: tier} for name in ("service_tier", "processing", "speed")]
            context = next((variant.when for variant in variants if variant.when in asked), None)
            if context is None:
                return None
        fields = cast("dict[str, Any]", vars(model.get_prices(datetime.fromtimestamp(at / 1e3, UTC), context)))
        prices = {key: value for key, value in fields.items() if value is not None and not key.startswith("_")}
        rates = {mine: _steps(prices[key]) for key, mine in _KEYS.items() if key in prices}
        request = float(prices["requests_kcount"]) / 1e3 if "requests_kcount" in prices else 0.0
        kinds = tuple(kind for kind in _KINDS if any(kind in key for key in prices if key not in _KEYS))
        source = f"genai-prices {self._library.__version__}"
        since, until = _between(constraints, at)
        return price_of(
            provider, model.id, rates, source, request=request, tier=tier or "", kinds=kinds, since=since, until=until
        )  # fmt: skip


def _steps(value: Any) -> Steps:
    tiers = getattr(value, "tiers", None)
    if tiers is None:
        return [(0, float(value))]
    return [(0, float(value.base)), *((int(tier.start), float(tier.price)) for tier in tiers)]


def _between(constraints: list[Any], at: float) -> tuple[float, float]:
    """Return since when and until when a price that was found for a time is surely the same: between two hours at which prices change."""
    if all(constraint is None for constraint in constraints):
        return float("-inf"), float("inf")
    midnight = at - at % _DAY
    hours = [getattr(constraint, name, None) for constraint in constraints for name in ("start_time", "end_time")]
    changes = [midnight, midnight + _DAY, *(midnight + _since_midnight(hour) for hour in hours if hour is not None)]
    return max(change for change in changes if change <= at), min(change for change in changes if change > at)


def _since_midnight(hour: Any) -> float:
    """Return the milliseconds from midnight to a time of the day, in UTC."""
    ahead = hour.utcoffset()
    seconds: float = hour.hour * 3600 + hour.minute * 60 + hour.second - (ahead.total_seconds() if ahead is not None else 0)
    return (seconds * 1e3) % _DAY


def _asked(entry: AccountingEntry) -> tuple[Any, int]:
    """Return what an entry's price depends on, and how many tokens were written to the cache for an hour."""
    details, tier, hour = entry.details, None, 0
    if details is not UNSET:
        hours = re.search(_HOUR, details)
        tiers = [name.decode(errors="replace") for name in re.findall(_TIER, details)]
        tier = next((name for name in tiers if name not in _USUAL), None)
        hour = int(hours[1]) if hours else 0
    if entry.actual_model is None and tier is None:
        return (entry.provider, entry.model), hour
    return PriceKey(entry.provider or "", entry.model or "", entry.actual_model, tier), hour


def billed(entry: AccountingEntry, tokens: Tokens) -> Tokens:
    """Return the tokens that are billed of those that an entry has: all, unless its usage says how many."""
    details = entry.details
    if details is UNSET or _BILLED not in bytes(details):
        return tokens
    told = object_of(object_of(msgspec.json.decode(details)).get(BILLED))
    sent, received = (count(told.get(name), name, []) for name in ("input_tokens", "output_tokens"))
    return tokens if sent is None or received is None else parts_of(sent, received)


def _uses_more(entry: AccountingEntry, price: Price) -> bool:
    """Tell whether an entry's usage has counts of what is billed beside the tokens of text, or has a price of its own, or is not all."""
    details = entry.details
    if details is UNSET:
        return False
    if _SERVER_TOOLS in bytes(details) or _PARTIAL in bytes(details):
        return True
    names = [name.decode().lower() for name in (*re.findall(_COUNTED, details), *re.findall(_MODALITY, details))]
    paid = [name for name in names if not name.startswith(_FREE)]
    return any(re.search(_APART, name) or any(kind in name for kind in price.kinds) for name in paid)


_MOST: Final = 4096
"""Models that are remembered."""
_NEW: Final = Price("", Raw(b"{}"), Raw(b"{}"), {}, None, since=float("inf"))
"""Stands for a price that was not looked for yet."""
PRICES = PriceFinder()
calls.register_at_fork(after_in_child=PRICES.after_fork)
