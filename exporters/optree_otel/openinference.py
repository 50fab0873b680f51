"""OpenInference's names beside those of the conventions, for backends that read them (Phoenix)."""

from __future__ import annotations

from typing import Any

from optree.exporting import dumps
from optree_otel import names
from optree_otel.wire import Attribute

_PARAMETERS = {name: key for key, (name, _) in reversed(names.REQUEST.items())}
_INPUT = (names.INPUT_MESSAGES, names.TOOL_ARGUMENTS)
_OUTPUT = (names.OUTPUT_MESSAGES, names.TOOL_RESULT)


def beside(attributes: list[Attribute]) -> list[Attribute]:
    """Return what OpenInference says where *attributes* say it by the conventions."""
    known = dict(attributes)
    told: dict[str, Any] = {names.OPENINFERENCE[key]: value for key, value in attributes if key in names.OPENINFERENCE}
    told[names.OI_KIND] = names.OI_KINDS.get(str(known.get(names.KIND)), "CHAIN")
    if names.INPUT_TOKENS in known:
        told[names.OI_TOTAL_TOKENS] = known[names.INPUT_TOKENS] + known.get(names.OUTPUT_TOKENS, 0)
    parameters = {_PARAMETERS[key]: value for key, value in attributes if key in _PARAMETERS}
    if parameters:
        told[names.OI_PARAMETERS] = dumps(parameters).decode()
    for found, (value_name, type_name) in ((_INPUT, names.OI_INPUT), (_OUTPUT, names.OI_OUTPUT)):
        value = next((known[key] for key in found if key in known), None)
        if value is not None:
            told |= {value_name: value, type_name: "application/json"}
    return [(key, value) for key, value in told.items() if key not in known]
