"""The OpenAPI document of a server of ours: the errors of each operation, which FastAPI does not know of."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

TEXT_OR_NULL = {"type": ["string", "null"]}
API_ERROR = {
    "type": "object",
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": TEXT_OR_NULL,
                "code": TEXT_OR_NULL,
            },
            "required": ["message", "type", "param", "code"],
        },
    },
    "required": ["type", "error"],
}
"""The schema of `ratchet.core.http.openai.error_body`."""
PLAIN_ERROR = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
"""The schema of `plain_error_response`."""
EVENTS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}
"""For the `responses` of a route that answers with a stream where a request asks for one."""


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For the `responses` of a route: the errors of its own. `add_errors` adds those of every route."""
    return {status: {"description": HTTPStatus(status).phrase} for status in statuses}


def add_errors(
    document: dict[str, Any], schema: dict[str, Any], invalid: int, every: Iterable[int], posted: Iterable[int]
) -> None:
    """Add the errors of every operation and of those with a body, and the schema of all.

    `invalid`: the status of a request whose parameters or body do not fit, which FastAPI takes for 422.
    """
    for operations in document["paths"].values():
        for method, operation in operations.items():
            responses = operation["responses"]
            if responses.pop("422", None):
                responses.setdefault(str(invalid), *errors(invalid).values())
            for status, described in errors(*every, *(posted if method == "post" else ())).items():
                responses.setdefault(str(status), described)
            for status, described in responses.items():
                if int(status) >= 400:
                    described["content"] = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
            operation["responses"] = dict(sorted(responses.items()))
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas["Error"] = schema
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
