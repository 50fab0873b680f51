"""Names of attributes, events and metrics that leave: the one table of them.

`CONVENTIONS` says which release it follows. Where readers still look for an older name, both are written.
Sources: opentelemetry-semantic-conventions 0.66b2 (incubating), openinference-semantic-conventions 0.1.42, and, for names that no
release has yet, `NEWER`. Names under ``optree.`` are ours and are listed here as well.
"""

from __future__ import annotations

from typing import Final

CONVENTIONS: Final = "gen_ai 2026-09"

# GenAI: https://github.com/open-telemetry/semantic-conventions-genai, docs/gen-ai
OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
CONVERSATION: Final = "gen_ai.conversation.id"
AGENT_NAME: Final = "gen_ai.agent.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_ID: Final = "gen_ai.response.id"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
CHOICES: Final = "gen_ai.request.choice.count"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_READ: Final = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE: Final = ("gen_ai.usage.cache_creation.input_tokens", "gen_ai.usage.cache_write.input_tokens")
"""The older name and the newer one."""
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105 - a name
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_DESCRIPTION: Final = "gen_ai.tool.description"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"
TOOL_DEFINITIONS: Final = "gen_ai.tool.definitions"
SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"

REQUEST: Final[dict[str, tuple[str, type]]] = {
    "temperature": ("gen_ai.request.temperature", float),
    "max_tokens": ("gen_ai.request.max_tokens", int),
    "max_completion_tokens": ("gen_ai.request.max_tokens", int),
    "max_output_tokens": ("gen_ai.request.max_tokens", int),
    "top_p": ("gen_ai.request.top_p", float),
    "top_k": ("gen_ai.request.top_k", float),
    "frequency_penalty": ("gen_ai.request.frequency_penalty", float),
    "presence_penalty": ("gen_ai.request.presence_penalty", float),
    "stop": ("gen_ai.request.stop_sequences", list),
    "stop_sequences": ("gen_ai.request.stop_sequences", list),
    "seed": ("gen_ai.request.seed", int),
    "stream": ("gen_ai.request.stream", bool),
    "n": (CHOICES, int),
    "reasoning_effort": ("gen_ai.request.reasoning.level", str),
    "previous_response_id": ("gen_ai.request.previous_response.id", str),
}
"""Parameters of a request, as providers call them: the attribute, and the type that it has."""

PROVIDERS: Final = {
    "azure": "azure.ai.openai",
    "azure-openai": "azure.ai.openai",
    "azure_openai": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "aws-bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "google": "gcp.gen_ai",
    "vertex": "gcp.vertex_ai",
    "vertexai": "gcp.vertex_ai",
    "vertex_ai": "gcp.vertex_ai",
    "mistral": "mistral_ai",
    "mistralai": "mistral_ai",
    "moonshot": "moonshot_ai",
    "xai": "x_ai",
    "watsonx": "ibm.watsonx.ai",
}
"""What programs call a provider, and what the conventions call it; others go as they are."""

# MCP and general
MCP_METHOD: Final = "mcp.method.name"
ERROR_TYPE: Final = "error.type"
OVERFLOW: Final = "otel.metric.overflow"
"""On the point of a metric that stands for all sets of attributes beyond the limit."""
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
TOKEN_USAGE: Final = "gen_ai.client.token.usage"  # noqa: S105 - a metric
OPERATION_DURATION: Final = "gen_ai.client.operation.duration"
TIME_TO_FIRST_CHUNK: Final = "gen_ai.client.operation.time_to_first_chunk"

NEWER: Final = {
    "gen_ai.usage.cache_write.input_tokens": "semantic-conventions-genai, pull request 440 (renamed from cache_creation)",
    "gen_ai.request.reasoning.level": "semantic-conventions-genai, docs/gen-ai/gen-ai-spans.md",
    "gen_ai.request.previous_response.id": "semantic-conventions-genai, docs/gen-ai/gen-ai-spans.md",
    "ip": "not of the conventions: Jaeger's older API takes a resource's host from it (model/adjuster/clockskew.go)",
    "otel.metric.overflow": "OpenTelemetry's metrics SDK specification, cardinality limits; the stock SDK writes it too",
    "optree": "names under optree. are ours",
}
"""Names that opentelemetry-semantic-conventions does not have, each with its source."""

# Ours
KIND: Final = "optree.kind"
TXN: Final = "optree.txn"
PATH: Final = "optree.path"
STATUS: Final = "optree.status"
ERROR: Final = "optree.error"
ROUND: Final = "optree.round"
NAME: Final = "optree.name"
"""The name of an op, on spans of a live trace that have another."""
PHASE: Final = "optree.phase"
"""On the spans of a live trace: open (an anchor), close (its summary), whole (a short op), heartbeat."""
TURN_INDEX: Final = "optree.turn.index"
CALL_PATH: Final = "optree.call_path"
TITLE: Final = "optree.session.title"
LATEST_STATUS: Final = "optree.session.latest_status"
FINAL_REPORT: Final = "optree.session.final_report"
FINAL_REPORT_SIZE: Final = "optree.session.final_report.size"
TURNS: Final = "optree.session.turns"
INGRESS: Final = "optree.ingress.source"
RESUMED: Final = "optree.resumed"
CYCLE: Final = "optree.cycle"
COST: Final = "optree.cost_usd"
"""What the attempts cost that say it; absent where none does."""
UNKNOWN_COSTS: Final = "optree.unknown_costs"
"""How many attempts do not say what they cost, beside those that do."""
UPSTREAM_COST: Final = "optree.upstream_inference_cost_usd"
ATTEMPTS: Final = "optree.attempts"
ACTUAL_PROVIDER: Final = "optree.actual_provider"
MCP_SERVER: Final = "optree.mcp.server"
TOOL_PROVIDER: Final = "optree.tool.provider"
CHARACTERS_IN: Final = "optree.characters_in"
CHARACTERS_OUT: Final = "optree.characters_out"
REQUEST_SIZE: Final = "optree.request.size"
RESPONSE_SIZE: Final = "optree.response.size"
RESPONSE_PARTIAL: Final = "optree.response.partial"
REASONING: Final = "optree.reasoning"
REASONING_TEXT: Final = "optree.reasoning.text"
REASONING_CHUNKS: Final = "optree.reasoning.chunks"
REASONING_CHARACTERS: Final = "optree.reasoning.characters"
LOG: Final = "optree.log"
LOG_SEVERITY: Final = "optree.log.severity"
LOG_MESSAGE: Final = "optree.log.message"
LOG_DIRECTION: Final = "optree.log.direction"
LOG_DETAILS: Final = "optree.log.details"
HEARTBEAT: Final = "optree.heartbeat"
CURRENT_OP: Final = "optree.current_op"
TOTAL: Final = "optree.total."
"""Prefix of sums over a container and all in it; input tokens as in gen_ai.usage: cached ones included."""
ATTRIBUTE: Final = "optree.attr."
"""Prefix of a program's own attributes whose names have no dot; those with one go as they are."""
DROPPED_EVENTS: Final = "optree.dropped.events"
DROPPED_ATTRIBUTES: Final = "optree.dropped.attributes"
CUT_VALUES: Final = "optree.cut.values"
INVALID: Final = "optree.invalid."
"""Prefix of what was wrong with a span that was made fit: trace_id, span_id, parent_id, name, time."""
UNENCODABLE: Final = "optree.unencodable"
CONTENT_ERROR: Final = "optree.content_error"
"""Why a node's content could not be told."""
VERSION: Final = "optree.version"
SERVICE: Final = "optree.service"
SPAN_KIND: Final = "optree.span_kind"
LINKS: Final = "optree.links"

TOTALS: Final = {
    "input_tokens": TOTAL + "input_tokens",
    "output_tokens": TOTAL + "output_tokens",
    "cache_read_input_tokens": TOTAL + "cache_read_input_tokens",
    "cache_write_input_tokens": TOTAL + "cache_write_input_tokens",
    "cost_usd": TOTAL + "cost_usd",
    "upstream_inference_cost_usd": TOTAL + "upstream_inference_cost_usd",
    "llm_requests": TOTAL + "llm_requests",
    "llm_failed": TOTAL + "llm_failed",
    "tools_run": TOTAL + "tools_run",
    "tools_failed": TOTAL + "tools_failed",
    "characters_in": TOTAL + "characters_in",
    "characters_out": TOTAL + "characters_out",
    "reasoning_output_tokens": TOTAL + "reasoning_output_tokens",
    "unknown_costs": TOTAL + "unknown_costs",
}
"""Fields of `nodes.Totals` and the attributes that hold them."""

OPENINFERENCE: Final = {
    CONVERSATION: "session.id",
    AGENT_NAME: "agent.name",
    REQUEST_MODEL: "llm.model_name",
    PROVIDER: "llm.provider",
    INPUT_TOKENS: "llm.token_count.prompt",
    OUTPUT_TOKENS: "llm.token_count.completion",
    CACHE_READ: "llm.token_count.prompt_details.cache_read",
    CACHE_WRITE[0]: "llm.token_count.prompt_details.cache_write",
    REASONING_TOKENS: "llm.token_count.completion_details.reasoning",
    COST: "llm.cost.total",
    TOOL_NAME: "tool.name",
    TOOL_DESCRIPTION: "tool.description",
    TOOL_ARGUMENTS: "tool.parameters",
    TOOL_CALL_ID: "tool.id",
}
"""Names of OpenInference for what the conventions name otherwise (https://github.com/Arize-ai/openinference, spec)."""
OI_KIND: Final = "openinference.span.kind"
OI_KINDS: Final = {"session": "AGENT", "session_op": "AGENT", "turn": "CHAIN", "llm": "LLM", "tool": "TOOL", "system": "CHAIN"}
OI_TOTAL_TOKENS: Final = "llm.token_count.total"
OI_PARAMETERS: Final = "llm.invocation_parameters"
OI_INPUT: Final = ("input.value", "input.mime_type")
OI_OUTPUT: Final = ("output.value", "output.mime_type")
OI_PROJECT: Final = "openinference.project.name"
