"""What a user adds to redaction, and takes away."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
from msgspec import Struct

from optree._interrupts import pass_on
from optree.errors import SetupError
from optree.redaction._forms import FORMS, NAMES

STATED = "stated-secret"
KINDS = ("form", "name", "personal")
PERSONAL = ("email", "ip")


def detectors() -> tuple[str, ...]:
    """Return the ids of all detectors, of forms before those of names; each can be switched off."""
    return (*(form.id for form in FORMS), *(name.id for name in NAMES), STATED)


class Redaction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is replaced in all that is shown, exported or saved redacted, beside the credentials that are known.

    ```python
    import optree

    optree.configure(redact=optree.Redaction(patterns=("ACME-[0-9]{8}",), names=("customer_id",), mask=("email",)))
    ```

    Raises:
        SetupError: A member cannot have its value.
    """

    patterns: tuple[str, ...] = ()
    """Regular expressions: what matches is replaced, or only its group called ``secret`` where it has one."""
    names: tuple[str, ...] = ()
    """Names (of headers, variables, members of objects) whose values are replaced, in any spelling: ``customer_id`` is ``customerId``."""
    disable: tuple[str, ...] = ()
    """Detectors to switch off: by id (``jwt``, ``cookie``, ``stated-secret``…), or all of a kind (``form``, ``name``, ``personal``)."""
    mask: tuple[str, ...] = ()
    """Personal data that is replaced as well: ``email``, ``ip``."""
    callback: Callable[[str], str] | None = None
    """Called last with each text; returns the text to show. Where it raises, the whole text is replaced, and it is counted."""

    def __post_init__(self) -> None:
        for member in ("patterns", "names", "disable", "mask"):
            values: Any = getattr(self, member)
            if not isinstance(values, (tuple, list)) or not all(map(_is_text, cast("list[object]", values))):
                raise SetupError(f"redact: {member}={values!r} is not possible; give texts, as in {member}=({_EXAMPLES[member]!r},)")
            msgspec.structs.force_setattr(self, member, tuple(cast("list[str]", values)))
        for pattern in self.patterns:
            _check(pattern)
        if self.callback is not None and not callable(self.callback):
            raise SetupError(f"redact: callback={self.callback!r} is not possible; give a function that takes and returns a text")
        _choices("mask", self.mask, PERSONAL)
        _choices("disable", self.disable, (*KINDS, *detectors()))

    @classmethod
    def of(cls, value: object) -> Redaction:
        """Return settings given as such, as a mapping of their members, or as JSON. Raises `SetupError` for settings that are not valid."""
        if isinstance(value, Redaction):
            return value
        try:
            members: Any = msgspec.json.decode(value) if isinstance(value, (str, bytes)) else value
            if isinstance(members, Mapping):
                return cls(**cast("Mapping[str, Any]", members))
        except (msgspec.DecodeError, TypeError) as error:
            pass_on(error)
            raise SetupError(f"redact={value!r} is not possible ({error}); its members are {_MEMBERS}") from error
        raise SetupError(f"redact={value!r} is not possible; give optree.Redaction(…), or a mapping of its members: {_MEMBERS}")

    def to_json(self) -> str:
        """Return the settings as JSON, for another process: all but the callback."""
        members = {name: getattr(self, name) for name in self.__struct_fields__ if name != "callback"}
        return msgspec.json.encode({name: value for name, value in members.items() if value}).decode()


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


_EXAMPLES = {"patterns": r"ACME-\d{8}", "names": "customer_id", "disable": "jwt", "mask": "email"}
_MEMBERS = ", ".join(Redaction.__struct_fields__)


def _choices(member: str, values: tuple[str, ...], choices: tuple[str, ...]) -> None:
    for value in values:
        if value not in choices:
            raise SetupError(f"redact: {member}={value!r} is not possible; choose of {', '.join(choices)}")


def _check(pattern: str) -> None:
    try:
        empty = re.compile(pattern).match("")
    except re.error as error:
        raise SetupError(f"redact: the pattern {pattern!r} is none: {error}") from error
    if empty is not None:
        raise SetupError(f"redact: the pattern {pattern!r} matches a text of no length; give one that needs a character")
