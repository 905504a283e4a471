"""The OpenAPI page of a server: its endpoints, and the fields that the current version reads."""

from __future__ import annotations

from typing import Any

from paddlebox.config import Config, Format, Slot, Slots, SlotType
from paddlebox.serving.users import MOST_NAME

_FLOAT = {"type": "number", "minimum": -3.4e38, "maximum": 3.4e38}
_FEASIGN: dict[str, Any] = {
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": (1 << 64) - 1},
        {"type": "string", "pattern": "^[0-9]{1,19}$"},
    ]
}
# An id, or an id with its weight. Of a hashed slot, any text may be.
_WEIGHTED: dict[str, Any] = {
    "anyOf": [
        _FEASIGN["anyOf"][0],
        {"type": "string", "pattern": r"^[0-9]{1,19}(:\+?[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?)?$"},
    ]
}
_TEXT: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "pattern": "^[^\\u0000\\n\\r\\u001e\\u001f]*$"},
        {"type": "number"},
    ]
}
_TIME = {"type": "integer", "minimum": 0, "maximum": (1 << 63) - 1}
# For criteo_tsv. A token may not be sent as an integer: its decimal digits would be read as
# hexadecimal ones.
_CRITEO_INTEGER = {"type": "integer", "minimum": -(1 << 63), "maximum": (1 << 63) - 1}
_CRITEO_TOKEN = {"type": "string", "pattern": "^[0-9a-f]{0,16}$"}


def _field(slot: Slot, criteo: bool) -> dict[str, Any]:
    """The JSON schema of a slot's field."""
    if criteo:
        integer = (slot.column or slot.name)[0] == "I"
        return {"anyOf": [_CRITEO_INTEGER if integer else _CRITEO_TOKEN, {"type": "null"}]}
    if slot.type is SlotType.SPARSE:
        one = _TEXT if slot.hash else _WEIGHTED if slot.weighted else _FEASIGN
        return {"anyOf": [*one["anyOf"], {"type": "array", "items": one}, {"type": "null"}]}
    vector = {"type": "array", "items": _FLOAT, "minItems": slot.dim, "maxItems": slot.dim}
    forms: list[dict[str, Any]] = [vector]
    if slot.dim == 1:
        forms.append(_FLOAT)
    if slot.default is not None:
        forms.append({"type": "null"})
    return {"anyOf": forms}


def _of_user(kind: str, config: Config, slots: Slots) -> dict[str, Any]:
    """The JSON schema of an event of a history, or of a candidate."""
    made = _instance(config, slots)
    made["properties"][config.data.sequences.time] = _TIME
    made["required"].append(config.data.sequences.time)
    if kind == "Event":
        label = slots.label.column or slots.label.name
        made["properties"][label] = _FLOAT
        made["required"].append(label)
    return made


def _instance(config: Config, slots: Slots) -> dict[str, Any]:
    criteo = config.data.format is Format.CRITEO_TSV
    fields: dict[str, list[dict[str, Any]]] = {}
    required = []
    for slot in slots.slots:
        if slot.made or slot.type is SlotType.LABEL or slot in slots.beside:
            continue
        name = slot.column or slot.name
        fields.setdefault(name, []).append(_field(slot, criteo))
        if slot.type is SlotType.DENSE and slot.default is None and not criteo:
            required.append(name)
    return {
        "type": "object",
        "properties": {
            name: forms[0] if len(forms) == 1 else {"allOf": forms}
            for name, forms in fields.items()
        },
        "required": sorted(set(required)),
        "additionalProperties": False,
    }


def _prediction(slots: Slots) -> dict[str, Any]:
    one = {"type": "number", "minimum": 0, "maximum": 1}
    return one if len(slots.tasks) == 1 else _object(**dict.fromkeys(slots.tasks, one))


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _json(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _refusals(*statuses: int) -> dict[str, Any]:
    return {str(status): _json(_REFUSALS[status], _ERROR_REFERENCE) for status in statuses}


_ERROR_REFERENCE = {"$ref": "#/components/schemas/Error"}
_VERSION = {"type": "integer", "minimum": 0}
_NAME = {"type": "string"}
_REFUSALS = {
    400: "The body is not JSON, or is incomplete.",
    408: "The body did not arrive in time.",
    409: "The first `after` events of the user are not kept: send the whole history.",
    413: "The body is too large.",
    415: "The body is not application/json, or is compressed.",
    422: "The body is JSON, but not a request, or a slot cannot read the value of a field.",
    500: "The server failed; its log says how.",
    503: "Too many requests are waiting, or the server is ending: try again after Retry-After.",
    504: "The prediction took too long.",
}


def page(config: Config, slots: Slots, max_instances: int, package_version: str) -> dict[str, Any]:
    """The page, in OpenAPI 3.1.

    Args:
        max_instances: the most instances in a request.
        package_version: the version of paddlebox.
    """
    users = config.model.reads_sequences
    kinds = {"history": "Event", "candidates": "Candidate"} if users else {"instances": "Instance"}
    request = _object(
        **{
            member: {
                "type": "array",
                "maxItems": max_instances,
                "items": {"$ref": f"#/components/schemas/{kind}"},
            }
            for member, kind in kinds.items()
        }
    )
    if users:
        request["properties"] |= {
            "user": {"anyOf": [{"type": "string", "maxLength": MOST_NAME}, {"type": "integer"}]},
            "after": {"type": "integer", "minimum": 0},
        }
    answer = _object(
        predictions={
            "type": "array",
            "items": _prediction(slots),
        },
        version=_VERSION,
        model=_NAME,
    )
    health = _object(
        status={"type": "string", "enum": ["ready", "stale"]}, version=_VERSION, model=_NAME
    )
    health["properties"]["reason"] = _NAME  # of a stale one
    text = {"description": "text", "content": {"text/plain": {"schema": {"type": "string"}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Predictions of {config.name}", "version": package_version},
        "paths": {
            "/predict": {
                "post": {
                    "requestBody": {
                        "required": True,
                        "content": {"application/json": {"schema": request}},
                    },
                    "responses": {
                        "200": _json("A prediction for each instance, in order.", answer),
                        **_refusals(400, 408, *([409] if users else []), 413, 415, 422),
                        **_refusals(500, 503, 504),
                    },
                }
            },
            "/healthz": {
                "get": {"responses": {"200": _json("Ready.", health), **_refusals(500, 503)}}
            },
            "/metrics": {"get": {"responses": {"200": text, **_refusals(500)}}},
            "/openapi.json": {
                "get": {
                    "responses": {
                        "200": _json("This page.", {"type": "object"}),
                        **_refusals(500),
                    }
                }
            },
        },
        "components": {
            "schemas": {
                **{
                    kind: _of_user(kind, config, slots) if users else _instance(config, slots)
                    for kind in kinds.values()
                },
                "Error": _object(error=_object(code=_NAME, message=_NAME, where=_NAME)),
            }
        },
    }
