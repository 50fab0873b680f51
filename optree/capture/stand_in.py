"""What a replay connects a program to in place of a model behind a websocket: a server of this process, for one connection.

It says the events of recorded answers, which the program's own side hands it: a request to a model never gets here. Nothing leaves the
machine.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from itertools import count
from typing import Any, Final

from optree.capture.bodies import loads
from optree.interrupts import suppress
from optree.values import encode, is_list, is_object

_GIVEN: Final = "optree.given"
"""The type of the event that hands over what is to be said."""
_MISSING: Final = "optree replay: what was recorded of a websocket is given by the package websockets, which is not installed"
_SECONDS: Final = 30.0
"""After which a program that has not connected is not waited for."""


def listening(session: dict[str, Any] | None) -> int:
    """Wait for one connection, aside, and return the port; *session* is that of a realtime interface. Raises `OSError`."""
    try:
        from websockets.server import ServerProtocol
        from websockets.sync.server import ServerConnection
    except ImportError:
        raise ConnectionError(_MISSING) from None
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(_SECONDS)
    served = (listener, session, ServerConnection, ServerProtocol(max_size=None))
    threading.Thread(target=_serve, args=served, name="optree-replay", daemon=True).start()
    port: int = listener.getsockname()[1]
    return port


def handing(events: list[dict[str, Any]]) -> bytes:
    """Return the message that has these events said."""
    return encode({"type": _GIVEN, "events": events})


def _serve(listener: socket.socket, session: dict[str, Any] | None, kind: Any, protocol: Any) -> None:
    with suppress(Exception):  # whatever ends the connection
        with listener:
            connected, _ = listener.accept()
        connection = kind(connected, protocol, ping_interval=None)
        try:
            connection.handshake()
            for event in _beginning(session):
                connection.send(encode(event).decode())
            numbers = count(1)
            for message in connection:
                for event in _said(loads(message.encode() if isinstance(message, str) else message), session, numbers):
                    connection.send(encode(event).decode())
        finally:
            connection.close()


def _beginning(session: dict[str, Any] | None) -> list[dict[str, Any]]:
    return [] if session is None else [{"type": "session.created", "event_id": "event_0", "session": session}]


def _said(event: Any, session: dict[str, Any] | None, numbers: Iterator[int]) -> list[Any]:
    """Return what is said to an event: what it hands over, or what a realtime interface says to one that asks for no response."""
    if not is_object(event):
        return []
    kind, number = event.get("type"), next(numbers)
    if kind == _GIVEN:
        events = event.get("events")
        return events if is_list(events) else []
    if session is not None and kind == "session.update" and is_object(new := event.get("session")):
        session |= new
        return [{"type": "session.updated", "event_id": f"event_{number}", "session": session}]
    if session is not None and kind == "conversation.item.create" and is_object(item := event.get("item")):
        item = {"id": f"item_{number}", "object": "realtime.item", "status": "completed"} | item
        told = {"previous_item_id": event.get("previous_item_id"), "item": item}
        return [{"type": f"conversation.item.{name}", "event_id": f"event_{number}_{name}"} | told for name in ("added", "done")]
    return []
