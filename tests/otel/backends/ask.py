"""Asks a backend over HTTP."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlencode

SECONDS = 60


def ask(address: str, path: str, **query: str | int) -> Any:
    """Return the JSON that a GET is answered with; None where there is nothing (404).

    Raises:
        RuntimeError: The backend answered with any status but 200 and 404.

    """
    body = get(address, path, **query)
    return None if body is None else json.loads(body)


def get(address: str, path: str, **query: str | int) -> bytes | None:
    """Return what a GET is answered with, as `ask` does."""
    connection = HTTPConnection(address, timeout=SECONDS)
    try:
        connection.request("GET", f"{path}?{urlencode(query)}" if query else path, headers={"Accept": "application/json"})
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status not in {200, 404}:
        raise RuntimeError(f"GET {path} at {address} was answered with {answer.status}: {body.decode(errors='replace')}")
    return body if answer.status == 200 else None
