"""HTTP requests that call a model, told by their body and path, whoever the host is."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from optree._capture.calls.bodies import object_in
from optree._values import is_list, is_object

_HOSTS: Final = {
    "api.openai.com": "openai",
    "openai.azure.com": "azure",
    "cognitiveservices.azure.com": "azure",
    "services.ai.azure.com": "azure",
    "api.anthropic.com": "anthropic",
    "generativelanguage.googleapis.com": "google",
    "openrouter.ai": "openrouter",
    "api.deepseek.com": "deepseek",
    "api.x.ai": "xai",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral",
    "api.cohere.com": "cohere",
    "api.cohere.ai": "cohere",
    "api.perplexity.ai": "perplexity",
    "api.together.xyz": "together",
    "api.fireworks.ai": "fireworks",
    "api.moonshot.ai": "moonshot",
}
"""Providers by the end of their host's name. Of another host (a proxy, vLLM, llama.cpp) it is known only whose interface it has."""
_ENDS: Final = (
    ("/chat/completions", "openai", "messages"),
    ("/completions", "openai", "prompt"),
    ("/responses", "openai", "input"),
    ("/responses/compact", "openai", "input"),
    ("/messages", "anthropic", "messages"),
    (":generatecontent", "google", "contents"),
    (":streamgeneratecontent", "google", "contents"),
    (":rawpredict", "anthropic", "messages"),
    (":streamrawpredict", "anthropic", "messages"),
    ("/api/chat", "ollama", "messages"),
    ("/api/generate", "ollama", "prompt"),
    ("/v2/chat", "cohere", "messages"),
)
"""Ends of paths, whose interface it is, and the member of the body that has what is sent."""
_OTHERS: Final = ("/count_tokens", "/batches", "/count-tokens:rawpredict")
"""Ends of paths of requests that have a model's messages, and ask for no answer."""
_BESIDE: Final = (
    *_OTHERS, "/embeddings", "/moderations", "/rerank", "/api/embed", ":embedcontent", ":batchembedcontents", ":counttokens"
)  # fmt: skip
"""Ends of paths of requests to providers that ask no model for an answer."""
_VERTEX: Final = re.compile(r"(^|[.-])aiplatform(\.\w+\.rep)?\.googleapis\.com$")
"""Hosts of Vertex's regions."""
_BEDROCK: Final = re.compile(r"/model/(.+)/(?:invoke|invoke-with-response-stream|converse|converse-stream)$")
"""The ends of paths of Bedrock's, with the model."""
_SERVED: Final = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")
"""Ends of the names of hosts that bill as Bedrock does."""
_SENT: Final = ("messages", "message", "prompt", "inputText")
"""Members of the requests of Bedrock's models that have what is sent. Amazon's models for embeddings take the last too."""
_BLANKS: Final = 64
_MOST_BYTES: Final = 256 << 20


class Asked(NamedTuple):
    """What a request asks of a model."""

    provider: str
    """Who is asked, as OpenTelemetry's `gen_ai.provider.name` has it where optree has no shorter word."""
    model: str | None
    messages: list[Any] | None
    parameters: dict[str, Any]
    """All else that the body has."""
    host: str
    size: int = 0
    """Bytes of the body; 0 where they are not known."""


def read(host: str, path: str, body: bytes) -> Asked | None:
    """Return what a POST request asks of a model; None for one that asks none. Never raises for what others send."""
    if not body[:_BLANKS].lstrip().startswith(b"{") or len(body) > _MOST_BYTES:
        return None
    if (bedrock := _BEDROCK.search(path)) is not None:
        return bedrock_asked(host, bedrock[1], object_in(body))
    found = _known(path)
    if path.lower().rstrip("/").endswith(_OTHERS) or (found is None and (b'"messages"' not in body or b'"model"' not in body)):
        return None
    interface, member = found or ("openai", "messages")
    told = object_in(body)
    if told is None or not (member in told or (member == "input" and "prompt" in told)):
        return None
    sent = told.pop(member, None)
    model = told.pop("model", None)
    if interface == "google" or (model is None and path.lower().rstrip("/").endswith("rawpredict")):
        model = unquote(path.rpartition("/")[2].partition(":")[0])
    if (member == "messages" and not is_list(sent)) or not (isinstance(model, str) or _is_named(path, member, told)):
        return None
    return Asked(provider_of_host(host, interface), model if isinstance(model, str) else None, messages_of(sent), told, host, len(body))


def _is_named(path: str, member: str, told: dict[str, Any]) -> bool:
    """Tell whether the model is named elsewhere: by a deployment, or by a prompt that the provider keeps."""
    prompt = told.get("prompt")
    return "/deployments/" in path.lower() or (member == "input" and is_object(prompt) and isinstance(prompt.get("id"), str))


def bedrock_asked(host: str, model: str, told: dict[str, Any] | None) -> Asked | None:
    """Return what a request to Bedrock asks of a model, by an id or an ARN, with these members; None for one that asks none."""
    named = model.rpartition("/")[2] if model.startswith("arn:") else model
    member = next((name for name in _SENT if told is not None and name in told), None)
    if told is None or member is None or "embed" in named.lower():
        return None
    sent = told.pop(member)
    provider = "bedrock" if host.lower().endswith(_SERVED) else "bedrock-compatible"
    return Asked(provider, named, messages_of(sent), told, host)


@lru_cache(256)
def is_beside(path: str) -> bool:
    """Tell whether a request is one of those that clients of models make beside their calls: for an embedding, or a count of tokens."""
    return path.lower().rstrip("/").endswith(_BESIDE)


def messages_of(sent: Any) -> list[Any] | None:
    """Return the messages that a model is sent: a list of them, or what the user says."""
    return sent if is_list(sent) else None if sent is None else [{"role": "user", "content": sent}]


@lru_cache(256)
def _known(path: str) -> tuple[str, str] | None:
    """Return whose interface a path is of, and the member of the body that has what is sent; None of one that is not known."""
    low = path.lower().rstrip("/")
    return next(((interface, member) for end, interface, member in _ENDS if low.endswith(end)), None)


@lru_cache(256)
def provider_of_host(host: str, interface: str) -> str:
    """Return who is asked at a host by that interface."""
    low = host.lower()
    if _VERTEX.search(low):
        return "vertex"
    if "bedrock" in low and low.endswith(_SERVED):
        return "bedrock"
    parts = low.split(".")
    compatible = interface if interface == "ollama" else f"{interface}-compatible"  # whose prices need not be those of *interface*
    return next((_HOSTS[name] for at in range(len(parts)) if (name := ".".join(parts[at:])) in _HOSTS), compatible)
