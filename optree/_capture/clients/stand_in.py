"""What a replay connects a program to in place of a model behind a websocket: a server of this process, for one connection.

It says the events of recorded answers, which the program's own side hands it: a request to a model never gets here. Nothing leaves the
machine.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from inspect import signature
from itertools import count
from threading import Event
from types import SimpleNamespace
from typing import Any, Final

from optree._capture.calls.bodies import loads
from optree._capture.clients.realtime import merged
from optree._interrupts import suppress
from optree._threads import BackgroundThread
from optree._values import encode, is_list, is_object

_GIVEN: Final = "optree.given"
"""The type of the event that hands over what is to be said."""
_MISSING: Final = "optree replay: what was recorded of a websocket is given by the package websockets, which is not installed"
_CANNOT_GO_ON: Final = 1011
_ACKNOWLEDGED: Final = {
    "conversation.item.delete": "conversation.item.deleted", "conversation.item.truncate": "conversation.item.truncated",
    "input_audio_buffer.clear": "input_audio_buffer.cleared", "input_audio_buffer.commit": "input_audio_buffer.committed",
}  # fmt: skip
"""What a realtime interface says to events that only change what it has."""
_OF_ITEM: Final = ("item_id", "content_index", "audio_end_ms")
_SECONDS: Final = 30.0
"""After which a program that has not connected is not waited for."""


def listen(session: dict[str, Any] | None) -> int:
    """Wait for one connection, aside, and return the port; *session* is that of a realtime interface. Raises `OSError`."""
    try:
        from websockets.server import ServerProtocol
        from websockets.sync.server import ServerConnection
    except ImportError:
        raise ConnectionError(_MISSING) from None
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(_SECONDS)
    BackgroundThread(_serve, "replay", listener, session, ServerConnection, ServerProtocol(max_size=None)).start()
    port: int = listener.getsockname()[1]
    return port


def hand_over(events: list[dict[str, Any]], *, closes: bool) -> bytes:
    """Return the message by which these events are said, and the connection is closed behind them if it *closes*."""
    return encode({"type": _GIVEN, "events": events, "closes": closes})


def _serve(listener: socket.socket, session: dict[str, Any] | None, kind: Any, protocol: Any) -> None:
    with suppress(Exception):  # whatever ends the connection
        with listener:
            connected, _ = listener.accept()
        here = SimpleNamespace(socket_closed=Event())
        server = {"server": here} if "server" in signature(kind).parameters else {}  # since websockets 17
        connection = kind(connected, protocol, **server, ping_interval=None)
        try:
            connection.handshake()
            if session is not None:
                connection.send(encode({"type": "session.created", "event_id": "event_0", "session": session}).decode())
            numbers = count(1)
            for message in connection:
                told = loads(message.encode() if isinstance(message, str) else message)
                for event in _said(told, session, numbers) if is_object(told) else ():
                    connection.send(encode(event).decode())
                if is_object(told) and told.get("type") == _GIVEN and told.get("closes"):
                    connection.close(_CANNOT_GO_ON)
        finally:
            connection.close()


def _said(event: dict[str, Any], session: dict[str, Any] | None, numbers: Iterator[int]) -> list[Any]:
    """Return what is said to an event: what it hands over, or what a realtime interface says to one that asks for no response."""
    kind, name = event.get("type"), f"event_{next(numbers)}"
    if kind == _GIVEN:
        events = event.get("events")
        return events if is_list(events) else []
    if session is None:
        return []
    if kind == "session.update" and is_object(new := event.get("session")):
        session |= merged(session, new)
        return [{"type": "session.updated", "event_id": name, "session": session}]
    if kind == "conversation.item.create" and is_object(item := event.get("item")):
        item = {"id": f"item_{name}", "object": "realtime.item", "status": "completed"} | item
        told = {"previous_item_id": event.get("previous_item_id"), "item": item}
        return [{"type": f"conversation.item.{what}", "event_id": f"{name}_{what}"} | told for what in ("added", "done")]
    if (said := _ACKNOWLEDGED.get(str(kind))) is not None:
        return [{"type": said, "event_id": name} | {what: event[what] for what in _OF_ITEM if what in event}]
    return []
