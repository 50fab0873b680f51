"""Transcripts that agents of others keep become sessions: Claude Code's, Codex's, logs of Inspect, traces of the OpenAI Agents SDK.

In come files, out come trees, made by a `SessionTreeBuilder` with the files' times; what is read stays as it is, and nothing is written.
"""

from optree_formats.agents.claude_code import CLAUDE_CODE
from optree_formats.agents.codex import CODEX
from optree_formats.agents.inspect_log import INSPECT
from optree_formats.agents.openai_agents import OPENAI_AGENTS

__all__ = ["CLAUDE_CODE", "CODEX", "INSPECT", "OPENAI_AGENTS"]
