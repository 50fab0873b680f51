"""Hooks for the libraries of a program that does not name optree: `optree run --auto`, or OPTREE_AUTO=1 where optree is installed.

Run at the start of each Python of that environment, of any version. It imports nothing of optree before a library comes that is hooked.
"""

import os
import sys

LIBRARIES = (
    "httpx", "httpx2", "openai", "anthropic", "aiohttp", "botocore", "mcp", "agents", "pydantic_ai", "langchain_core", "langgraph",
    "google.genai", "google.adk", "claude_agent_sdk", "crewai", "agno", "dspy", "llama_index_instrumentation", "llama_index.core",
    "smolagents", "strands", "websockets",
)  # fmt: skip


class Finder:
    """Waits for the first import of a library that is hooked."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        """Have the hooks put in, and find the library with them; nothing for another module."""
        if name not in LIBRARIES:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        try:
            from optree._capture import FINDER, instrument

            instrument()
            return FINDER.find_spec(name, path, target)
        except Exception as error:  # noqa: BLE001 - the program goes on without
            sys.stderr.write("optree: calls of models are not recorded: %s: %s\n" % (type(error).__name__, error))  # noqa: UP031 - any Python
            return None


def _is_on(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true", "yes", "on")


def start() -> None:
    """Wait for the libraries, if the environment asks for it and does not switch optree off; a second call does nothing."""
    # read as `optree._tracing.config` reads it, of which nothing is imported here
    if _is_on("OPTREE_DISABLED"):
        return
    if _is_on("OPTREE_AUTO") and not any(type(one).__name__ == "Finder" for one in sys.meta_path):
        sys.meta_path.insert(0, Finder())


start()
