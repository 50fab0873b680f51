"""Events between a program and a model over one websocket, recorded: OpenAI's Realtime API, and its Responses API in WebSocket mode.

A `ModelSocket` is told each event as it passes, as JSON. Each response is an `Exchange`, and so one llm op, whether the program asked for
it or the server began it itself. Of the conversation it is known what passed by here; audio is recorded as its size and format.
"""

from __future__ import annotations

import functools
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from optree._capture.calls.begin import begin_asked, begin_unasked, is_wanted
from optree._capture.calls.exchange import Exchange
from optree._capture.calls.requests import Asked, messages_of, provider_of_host
from optree._capture.clients.refused_events import SentBeside
from optree._capture.replay import HANDSHAKE, OVER_WEBSOCKET, PROTOCOL
from optree._interrupts import new_rlock
from optree._tracing.faults import guarded
from optree._values import encode, is_list, is_object, object_of, objects_of

_OPENING: Final = ("session.", "conversation.", "response.created")
"""Beginnings of the types of events that a model's server sends first."""
_MODEL: Final = ("session.update", "conversation.item.", "response.create", "input_audio_buffer.")
"""Beginnings of the types of events that a program sends to a model."""
_LAST: Final = frozenset({"response.done", "response.completed", "response.failed", "response.incomplete", "response.cancelled"})
_LINES: Final = ((b"content-type", b"application/x-ndjson"),)
_JSON: Final = ((b"content-type", b"application/json"),)
_NO_LINE_ENDS: Final = bytes.maketrans(b"\r\n", b"  ")
"""JSON has these between values alone."""
_ANSWERED: Final = 200
_STATUS: Final = {
    "invalid_request_error": 400, "authentication_error": 401, "permission_error": 403, "not_found_error": 404, "rate_limit_error": 429,
    "rate_limit_exceeded": 429, "insufficient_quota": 429, "tokens": 429, "requests": 429, "server_error": 500,
}  # fmt: skip
"""HTTP statuses by an error's type or code, where it has none."""
_ELSEWHERE: Final = ("session", "item", "audio", "input_audio_buffer", "event_id")
"""Beginnings of an error's parameter, or code, that are not of a request for a response."""
_BUSY: Final = "conversation_already_has_active_response"
_OF_SESSION: Final = frozenset({"id", "object", "model", "expires_at", "client_secret"})
"""Members of a session that are not parameters of its responses."""
_OF_ITEM: Final = frozenset({"id", "object", "status"})
"""Members of an item that its server adds."""
_MOST_ITEMS: Final = 10_000
_MOST_SIZES: Final = 1000


class ModelResponse:
    """A response that was asked for, or is under way."""

    __slots__ = ("asked", "audio", "event", "exchange", "has_begun", "is_of_conversation", "is_whole", "lane", "metadata")

    def __init__(self, exchange: Exchange, event: dict[str, Any], asked: Asked, *, is_whole: bool) -> None:
        self.exchange, self.asked, self.is_whole = exchange, asked, is_whole
        """The last is False if the program had not read what its session is when it asked."""
        exchange.op.builder.set_op(exchange.op, **{PROTOCOL: OVER_WEBSOCKET})
        self.has_begun = self.is_of_conversation = False
        self.event = event.get("event_id")
        self.lane = event.get("stream_id")
        """Of several sequences of responses on one connection the one that it is in."""
        self.metadata = object_of(event.get("response")).get("metadata") or None
        self.audio: dict[tuple[Any, Any], int] = {}
        """Bytes of audio that came, by item and part of its content."""


class _Item:
    """An item of the conversation, without its audio."""

    __slots__ = ("id", "is_sent", "value")

    def __init__(self, name: Any, value: dict[str, Any], *, is_sent: bool) -> None:
        self.id, self.value, self.is_sent = name, value, is_sent


class ModelSocket:
    """One websocket to a model."""

    def __init__(self, host: str, path: str) -> None:
        self._host, self._lock = host, new_rlock()
        parts = urlsplit(path)
        self._is_realtime = parts.path.rstrip("/").endswith("/realtime")
        named = parse_qs(parts.query)
        self._model: str | None = next((named[name][0] for name in ("model", "deployment") if name in named), None)
        self._session: dict[str, Any] = {}
        self._updates: list[dict[str, Any]] = []
        """What the program has sent to change it, until the server says how it is then."""
        self._is_session_known = False
        self._items: list[_Item] = []
        self._sizes: dict[Any, int] = {}
        """Bytes of audio that the program sent, by the item that they became."""
        self._buffered = 0
        self._waiting: list[ModelResponse] = []
        self._under_way: dict[Any, ModelResponse] = {}
        self._beside = SentBeside()
        self._steering: list[Any] = []
        """What the program sent for the response that the server begins next."""
        self.is_stand_in = False
        """True where what is recorded is given in place of a model's events."""
        self.is_receiving = False
        """True while the program waits for an event, where that is noted."""

    def stands_in(self, session: dict[str, Any] | None) -> None:
        """Take that it is a stand-in, with that session, if it is of a realtime interface."""
        self.is_stand_in = True
        if session is not None:
            self._is_session_known, self._session = True, session

    @property
    def session(self) -> dict[str, Any] | None:
        """The session of a realtime interface; None of another."""
        return dict(self._session) if self._is_realtime else None

    @property
    def is_realtime(self) -> bool:
        """True for one of the Realtime API."""
        return self._is_realtime

    @staticmethod
    def is_told(kind: str, *, sent: bool) -> bool:
        """Tell whether an event of that type shows that a websocket is a model's."""
        return kind.startswith(_MODEL if sent else _OPENING)

    def sends(self, event: dict[str, Any]) -> ModelResponse | None:
        """Take an event that is about to be sent; returns the response that it asks for. Raises `BudgetExceeded` if that is not allowed."""
        with self._lock:
            asked = self._sent(event)
            if asked is None or not is_wanted():
                return None
            exchange = begin_asked(asked)
            if exchange is None:
                return None
            response = ModelResponse(exchange, event, asked, is_whole=not self._is_realtime or self._is_session_known)
            self._waiting.append(response)
            return response

    def refused(self) -> Exchange | None:
        """Return the call that a handshake is which is refused; None if it is not recorded."""
        interface = "realtime" if self._is_realtime else "responses"
        asked = Asked(self._provider, self._model, None, {HANDSHAKE: interface}, self._host)
        return begin_unasked(asked) if is_wanted() else None

    def not_sent(self, response: ModelResponse) -> None:
        """Take that a request for a response was not sent."""
        with self._lock:
            if response in self._waiting:
                self._waiting.remove(response)

    @guarded
    def came(self, event: dict[str, Any], data: bytes) -> None:
        """Take an event that the program gets, and its JSON."""
        kind = event["type"]
        with self._lock:
            if kind in ("error", "response.error"):
                self._failed(event, data)
            elif kind == "response.created":
                self._begins(event, data)
            elif kind.startswith("response."):
                if (response := self._of(event)) is not None:
                    self._goes_on(response, kind, event, data)
            elif kind in ("session.created", "session.updated"):
                self._is_realtime = self._is_session_known = True
                self._session = object_of(event.get("session"))
                if kind == "session.updated":
                    del self._updates[:1]
                    self._beside.updated()
                self._name(self._session)
            elif kind.startswith(("conversation.item.", "input_audio_buffer.")):
                self._item_event(kind, event)

    @guarded
    def ended(self, error: BaseException) -> None:
        """Take that no more comes: `GeneratorExit` if the program has closed the connection."""
        with self._lock:
            waiting, under_way = self._waiting, list(self._under_way.values())
            self._waiting, self._under_way = [], {}
        for response in waiting:
            response.exchange.raised(error)
        for response in under_way:
            response.exchange.ended(error)

    def _sent(self, event: dict[str, Any]) -> Asked | None:
        """Return what an event asks of the model; None of one that asks for no response."""
        kind = event["type"]
        if kind == "response.create":
            return self._asked(event)
        if kind != "input_audio_buffer.append":
            self._beside.sent(event)
        if kind == "session.update":
            self._updates.append(object_of(event.get("session")))
            self._name(self._updates[-1])
        elif kind == "conversation.item.create":
            self._put(event.get("item"), event.get("previous_item_id"), is_sent=True)
        elif kind == "conversation.item.delete":
            self._items = [one for one in self._items if one.id != event.get("item_id")]
        elif kind == "input_audio_buffer.append":
            self._buffered += _size(event.get("audio"))
        elif kind == "input_audio_buffer.clear":
            self._buffered = 0
        elif kind == "response.steer":
            self._steering += messages_of(event.get("input")) or []
        return None

    def _asked(self, event: dict[str, Any]) -> Asked:
        told = event.get("response")
        if not is_object(told) and not event.keys().isdisjoint(("model", "input", "prompt", "previous_response_id")):
            told = {name: value for name, value in event.items() if name not in ("type", "event_id")}
            sent, model = told.pop("input", None), told.pop("model", None)
            return Asked(self._provider, model if isinstance(model, str) else self._model, messages_of(sent), told, self._host)
        self._is_realtime = True
        return self._of_conversation(object_of(told))

    def _of_conversation(self, told: dict[str, Any]) -> Asked:
        """Return what a response is made from: the session's parameters but for those *told*, and the conversation, or what is told."""
        parameters = self._parameters | {name: value for name, value in told.items() if value is not None}
        sent = parameters.pop("input", None)
        items = [one.value for one in self._items if one.value.get("status") != "in_progress"]
        if is_list(sent):
            known = {one.id: one.value for one in self._items}
            items = [self._clean(known.get(item.get("id"), item)) for item in sent if is_object(item)]
        messages = [{name: value for name, value in item.items() if name not in _OF_ITEM} for item in items]
        return Asked(self._provider, self._model, messages, parameters, self._host)

    @property
    def _parameters(self) -> dict[str, Any]:
        told = functools.reduce(merged, [self._session, *self._updates])
        return {name: value for name, value in told.items() if value is not None and name not in _OF_SESSION}

    @property
    def _provider(self) -> str:
        return provider_of_host(self._host, "openai")

    def _name(self, session: dict[str, Any]) -> None:
        if isinstance(model := session.get("model"), str):
            self._model = model

    def _begins(self, event: dict[str, Any], data: bytes) -> None:
        """Take that the server begins a response."""
        told = object_of(event.get("response"))
        waiting = [one for one in self._waiting if one.lane == event.get("stream_id")]
        if self._is_realtime and "metadata" in told:  # which tells it from one that the server begins itself
            waiting = [one for one in waiting if one.metadata == (told["metadata"] or None)]
        if waiting:
            response = waiting[0]
            self._waiting.remove(response)
        elif is_wanted() and (exchange := begin_unasked(asked := self._unasked(told))) is not None:
            response = ModelResponse(exchange, event, asked, is_whole=True)
        else:
            return
        if not response.is_whole:
            asked = response.asked
            parameters = merged(self._parameters, asked.parameters)
            response.exchange.asks(asked._replace(model=asked.model or self._model, parameters=parameters))
        response.exchange.responded(_ANSWERED, _LINES, None)
        response.is_of_conversation = told.get("conversation_id") is not None
        self._under_way[told.get("id")] = response
        _note(response, data)

    def _unasked(self, told: dict[str, Any]) -> Asked:
        if self._is_realtime:
            return self._of_conversation({})
        steering, self._steering = self._steering, []
        names = ("instructions", "tools", "previous_response_id", "reasoning", "temperature")
        parameters = {name: told[name] for name in names if told.get(name) is not None}
        model = told.get("model")
        return Asked(self._provider, model if isinstance(model, str) else self._model, steering or None, parameters, self._host)

    def _of(self, event: dict[str, Any]) -> ModelResponse | None:
        """Return the response that an event is of."""
        name = event.get("response_id") or object_of(event.get("response")).get("id")
        if name is not None:
            return self._under_way.get(name)
        return next((one for one in self._under_way.values() if one.lane == event.get("stream_id")), None)

    def _goes_on(self, response: ModelResponse, kind: str, event: dict[str, Any], data: bytes) -> None:
        if not response.has_begun and kind.endswith(".delta"):
            response.has_begun = True
            response.exchange.answers()
        if kind.endswith("audio.delta"):
            place = (event.get("item_id"), event.get("content_index"))
            response.audio[place] = response.audio.get(place, 0) + _size(event.get("delta"))
        elif kind in _LAST:
            self._ends(response, kind, event, data)
        elif kind != "response.output_item.done" or not self._is_realtime:
            _note(response, data)
        elif is_object(made := event.get("item")):
            if response.is_of_conversation:
                self._put(made, None)
            _note(response, encode(event | {"item": self._clean(made)}))

    def _ends(self, response: ModelResponse, kind: str, event: dict[str, Any], data: bytes) -> None:
        told = object_of(event.get("response"))
        self._under_way = {name: one for name, one in self._under_way.items() if one is not response}
        if self._is_realtime:
            data = encode(event | {"response": self._answer(response, told)})
            if response.is_of_conversation:
                for item in objects_of(told.get("output")):
                    self._put(item, None)
        _note(response, data)
        is_cancelled = told.get("status") == "cancelled" or kind == "response.cancelled"
        if is_cancelled and isinstance(why := object_of(told.get("status_details")).get("reason"), str):
            response.exchange.log(f"the response was cancelled: {why}")
        response.exchange.ended(GeneratorExit() if is_cancelled else None)

    def _answer(self, response: ModelResponse, told: dict[str, Any]) -> dict[str, Any]:
        """Return a response with the size and format of its audio in place of it."""
        audio = object_of(object_of(told.get("audio") or self._session.get("audio")).get("output"))
        spoken = audio.get("format") or told.get("output_audio_format") or self._session.get("output_audio_format")
        output: list[dict[str, Any]] = []
        for item in objects_of(told.get("output")):
            clean = self._clean(item)
            if is_list(content := clean.get("content")):
                for place, part in enumerate(list(content)):
                    if (size := response.audio.get((item.get("id"), place))) and is_object(part):
                        content[place] = part | {"audio": _reference(size, spoken)}
            output.append(clean)
        return told | {"output": output}

    def _failed(self, event: dict[str, Any], data: bytes) -> None:
        """Take an error: of a request for a response, or of a response under way; others are of what the program sent beside these."""
        error: dict[str, Any] = object_of(event.get("error")) or event
        lane = event.get("stream_id")
        waiting = [one for one in self._waiting if one.lane == lane]
        named = error.get("event_id")
        if isinstance(named, str) and error is not event:
            waiting = [one for one in waiting if one.event == named]
        elif error.get("code") == _BUSY:
            waiting = waiting[-1:]
        elif self._is_realtime and any(str(error.get(name) or "").startswith(_ELSEWHERE) for name in ("param", "code")):
            waiting = []
        under_way = [] if self._is_realtime else [(name, one) for name, one in self._under_way.items() if one.lane == lane]
        if under_way:
            failed, response = under_way[0]
            del self._under_way[failed]
            _note(response, data)
            response.exchange.ended(None)
        elif waiting:
            self._waiting.remove(waiting[0])
            status = event.get("status")
            if type(status) is not int:
                status = next((_STATUS[word] for word in (str(error.get("code")), str(error.get("type"))) if word in _STATUS), 400)
            waiting[0].exchange.responded(status, _JSON, data)
        else:
            latest = next(reversed([*self._waiting, *self._under_way.values()]), None)
            self._was_refused(self._beside.refused(event, self._provider, None if latest is None else latest.exchange))

    def _was_refused(self, event: dict[str, Any]) -> None:
        """Take back what an event would have changed."""
        if event.get("type") == "session.update":
            self._updates = [one for one in self._updates if one is not event.get("session")]
        elif event.get("type") == "conversation.item.create" and is_object(item := event.get("item")):
            value = self._clean(item)
            place = next((at for at, one in reversed([*enumerate(self._items)]) if one.is_sent and one.value == value), None)
            if place is not None:
                del self._items[place]

    def _item_event(self, kind: str, event: dict[str, Any]) -> None:
        name = event.get("item_id")
        if kind == "input_audio_buffer.committed":
            self._sizes[name], self._buffered = self._buffered, 0
            if len(self._sizes) > _MOST_SIZES:
                del self._sizes[next(iter(self._sizes))]
        elif kind == "input_audio_buffer.cleared":
            self._buffered = 0
        elif is_object(item := event.get("item")):
            self._is_realtime = True
            self._put(item, event.get("previous_item_id"))
        elif kind == "conversation.item.deleted":
            self._items = [one for one in self._items if one.id != name]
        elif kind == "conversation.item.input_audio_transcription.completed":
            self._change(name, event.get("content_index"), {"transcript": event.get("transcript")})
        elif kind == "conversation.item.truncated":
            self._change(name, event.get("content_index"), {"transcript": None, "audio_end_ms": event.get("audio_end_ms")})

    def _put(self, item: Any, previous: Any, *, is_sent: bool = False) -> None:
        """Take an item of the conversation, new or as it is now."""
        if not is_object(item):
            return
        name = item.get("id")
        known = next((one for one in self._items if name is not None and one.id == name), None)
        if known is None and not is_sent:
            known = next((one for one in self._items if one.is_sent and one.id is None and _is_same(one.value, item)), None)
        if known is not None:
            known.id = name
            if not known.is_sent and (item.get("content") or "content" not in item):
                known.value = self._clean(item)
            return
        place = next((at + 1 for at, one in enumerate(self._items) if previous is not None and one.id == previous), len(self._items))
        self._items.insert(0 if previous == "root" else place, _Item(name, self._clean(item), is_sent=is_sent))
        del self._items[:-_MOST_ITEMS]

    def _change(self, name: Any, place: Any, members: dict[str, Any]) -> None:
        """Change a part of an item's content."""
        for one in self._items:
            content = one.value.get("content")
            if one.id == name and is_list(content) and type(place) is int and 0 <= place < len(content) and is_object(content[place]):
                part = {key: value for key, value in (content[place] | members).items() if value is not None}
                one.value = one.value | {"content": [*content[:place], part, *content[place + 1 :]]}

    def _clean(self, item: dict[str, Any]) -> dict[str, Any]:
        """Return an item with the size and format of its audio in place of it."""
        if not is_list(content := item.get("content")):
            return item
        heard = object_of(object_of(self._session.get("audio")).get("input")).get("format") or self._session.get("input_audio_format")
        parts: list[Any] = []
        for part in content:
            found = part
            if is_object(part):
                found = {name: value for name, value in part.items() if value is not None}
                size = _size(found.get("audio"))
                if not size and found.get("type") == "input_audio" and "audio" not in found:
                    size = self._sizes.get(item.get("id"), 0)
                if size:
                    found["audio"] = _reference(size, heard)
            parts.append(found)
        return item | {"content": parts}


def merged(session: dict[str, Any], update: dict[str, Any]) -> dict[str, Any]:
    """Return a session as it is after an update: an object in it keeps the members that the update does not name."""
    told = {name: merged(session[name], new) if is_object(new) and is_object(session.get(name)) else new for name, new in update.items()}
    return session | told


def _note(response: ModelResponse, data: bytes) -> None:
    response.exchange.note(data.translate(_NO_LINE_ENDS) + b"\n")


def _is_same(sent: dict[str, Any], item: dict[str, Any]) -> bool:
    """Tell whether an item that the program sent may be the one that its server tells of."""
    return all(sent.get(name) == item.get(name) for name in ("type", "role", "call_id"))


def _reference(size: int, audio_format: Any) -> dict[str, Any]:
    return {"bytes": size} if audio_format is None else {"bytes": size, "format": audio_format}


def _size(audio: Any) -> int:
    """Return how many bytes a text in base64 stands for; 0 for another value."""
    return len(audio) * 3 // 4 - audio.count("=", -2) if isinstance(audio, str) else 0
