"""What is known of why a call failed."""

from __future__ import annotations

from typing import Final

_NOT_SENT: Final = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "ClientConnectorError", "EndpointConnectionError"})
"""Names of clients' exceptions (httpx, aiohttp, botocore) that are raised before a request is sent."""


def was_not_sent(error: BaseException | None) -> bool:
    """Tell whether an exception says that the request reached nobody."""
    return error is not None and any(kind.__name__ in _NOT_SENT for kind in type(error).__mro__)
