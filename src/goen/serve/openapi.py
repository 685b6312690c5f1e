"""The OpenAPI description of a service: its routes, and the components in a template."""

import json
from collections.abc import Sequence
from importlib import resources

from starlette.routing import Route

from goen import __version__
from goen.io.manifest import JsonObject, JsonValue
from goen.scoring.rows import score_columns
from goen.serve.service import Service


def describe(routes: Sequence[Route], service: Service) -> JsonObject:
    """What every address takes and returns; a summary is the docstring of who answers there."""
    template = resources.files("goen.serve").joinpath("templates", "openapi.json")
    found = json.loads(template.read_text("utf-8"))
    components = found["components"]
    found["info"]["version"] = __version__
    for route in filter(lambda route: route.include_in_schema, routes):
        name, (method,) = route.name, (route.methods or set()) - {"HEAD"}
        answer = name if name in components["responses"] else "answer"
        operation: dict[str, JsonValue] = {
            "summary": (route.endpoint.__doc__ or "").strip().rstrip("."),
            "responses": {
                "200": _component("responses", answer),
                "4XX": _component("responses", "refused"),
                "503": _component("responses", "busy"),
            },
        }
        parameters = [*route.param_convertors, *(["seen"] if name == "score" else [])]
        if parameters:
            operation["parameters"] = [_component("parameters", p) for p in parameters]
        if name in components["requestBodies"]:
            operation["requestBody"] = _component("requestBodies", name)
        found["paths"][route.path] = {method.lower(): operation}
    components["parameters"]["gate"]["schema"]["enum"] = list(service.gates)
    row = components["schemas"]["Row"]["properties"]
    for served in service.gates.values():
        for column in score_columns(served.gate):
            row.setdefault(column, {"type": "number", "nullable": True})
    if service.settings.token is not None:
        found["security"] = [{"token": []}]
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return found  # type: ignore[no-any-return]


def _component(kind: str, name: str) -> JsonObject:
    return {"$ref": f"#/components/{kind}/{name}"}
