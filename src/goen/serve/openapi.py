"""The OpenAPI description of a service."""

from goen import __version__
from goen.io.manifest import JsonObject, JsonValue
from goen.scoring.rows import score_columns
from goen.serve.service import Service

_TEXT: JsonObject = {"type": "string"}
_FLAG: JsonObject = {"type": "boolean"}
_NUMBER: JsonObject = {"type": "number", "nullable": True}


def describe(service: Service) -> JsonObject:
    """What every address takes and returns."""
    gate: JsonObject = {
        "name": "gate",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "enum": list(service.gates)},
    }
    version: JsonObject = {**gate, "name": "version", "schema": {"type": "string", "enum": ["1"]}}
    paths: dict[str, JsonValue] = {
        "/score": {"post": _score("Score images with the default gate", [])},
        "/score/{gate}": {"post": _score("Score images", [gate])},
        "/gates": _get("The gates, their classes and cues, and the limits"),
        "/monitor/{gate}": _get("Log e-values of the monitor, share flagged, latency", [gate]),
        "/metrics": _get("Counts in Prometheus' text format", kind="text/plain"),
        "/openapi.json": _get("This description"),
        "/v2": _get("Open Inference Protocol: the server"),
        "/v2/health/live": _get("Open Inference Protocol: the process answers"),
        "/v2/health/ready": _get("Open Inference Protocol: the service takes requests"),
    }
    for at, named in (("", [gate]), ("/versions/{version}", [gate, version])):
        model = f"/v2/models/{{gate}}{at}"
        paths[model] = _get("Open Inference Protocol: inputs and outputs of a gate", named)
        paths[f"{model}/ready"] = _get("Open Inference Protocol: the gate can score", named)
        paths[f"{model}/infer"] = {"post": _infer(named)}
    found: dict[str, JsonValue] = {
        "openapi": "3.0.3",
        "info": {"title": "goen serve", "version": __version__},
        "paths": paths,
        "components": {"schemas": _schemas(service)},
    }
    if service.settings.token is not None:
        found["security"] = [{"token": []}]
        found["components"] = {
            "schemas": _schemas(service),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        }
    return found


def _get(
    summary: str, parameters: JsonValue = (), kind: str = "application/json"
) -> dict[str, JsonValue]:
    described: dict[str, JsonValue] = {
        "summary": summary,
        "responses": {"200": {"description": "the answer", "content": {kind: {}}}, **_errors()},
    }
    if parameters:
        described["parameters"] = parameters
    return {"get": described}


def _errors() -> dict[str, JsonValue]:
    schema = {"schema": {"$ref": "#/components/schemas/Error"}}
    content: JsonObject = {"application/json": schema}
    full: JsonObject = {"schema": {"type": "integer"}, "description": "seconds until another try"}
    return {
        "4XX": {"description": "what is wrong with the request", "content": content},
        "503": {
            "description": "the queue is full",
            "headers": {"Retry-After": full},
            "content": content,
        },
    }


def _score(summary: str, parameters: list[JsonValue]) -> dict[str, JsonValue]:
    row: JsonObject = {"$ref": "#/components/schemas/Row"}
    rows: JsonObject = {"type": "array", "items": row}
    binary: JsonObject = {"type": "string", "format": "binary"}
    seen: JsonObject = {
        "name": "seen",
        "in": "query",
        "description": "true: add what the network saw, as a data URL",
        "schema": _TEXT,
    }
    files: JsonObject = {
        "type": "object",
        "additionalProperties": {"type": "array", "items": binary},
    }
    return {
        "summary": summary,
        "description": "The body is an image (JPEG, PNG, WebP, GIF, BMP, TIFF), answered with a "
        "row; or multipart/form-data with several, answered with a list of rows.",
        "parameters": [*parameters, seen],
        "requestBody": {
            "required": True,
            "content": {
                "application/octet-stream": {"schema": binary},
                "multipart/form-data": {"schema": files},
            },
        },
        "responses": {
            "200": {
                "description": "the row of goen score, or a list of them",
                "content": {"application/json": {"schema": {"oneOf": [row, rows]}}},
            },
            **_errors(),
        },
    }


def _infer(parameters: JsonValue) -> dict[str, JsonValue]:
    json_object = {"schema": {"type": "object"}}
    binary = {"schema": {"type": "string", "format": "binary"}}
    both: JsonObject = {"application/json": json_object, "application/octet-stream": binary}
    return {
        "summary": "Open Inference Protocol: score images (UINT8, N×3×H×W)",
        "parameters": parameters,
        "requestBody": {"required": True, "content": both},
        "responses": {"200": {"description": "the outputs", "content": both}, **_errors()},
    }


def _schemas(service: Service) -> dict[str, JsonValue]:
    fixed = {"path": {**_TEXT, "nullable": True}, "label": {**_TEXT, "nullable": True}}
    numbers = {
        column: _NUMBER
        for served in service.gates.values()
        for column in score_columns(served.gate)
    }
    decided = {"is_ood": {**_FLAG, "nullable": True}, "error": {**_TEXT, "nullable": True}}
    return {
        "Row": {"type": "object", "properties": {**fixed, **numbers, **fixed, **decided}},
        "Error": {"type": "object", "properties": {"error": _TEXT}, "required": ["error"]},
    }
