"""The HTTP interface: which address is answered by what, and its OpenAPI description."""

import json
from collections.abc import Sequence
from functools import partial
from importlib import resources

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router

from goen import __version__
from goen.data.images.data_urls import image_url
from goen.data.images.pixel_format import Pixels
from goen.gate import Prediction
from goen.gate.prediction import ScoreRow
from goen.gate.rates import Rates
from goen.io.manifest import JsonObject, JsonValue
from goen.scoring.flagged_copies import png_content
from goen.scoring.rows import all_columns, score_columns, unreadable_row
from goen.serve.guard import Guard
from goen.serve.inference_protocol import (
    HEADER_LENGTH,
    VERSION,
    fitted_image,
    gate_metadata,
    infer_outputs,
    infer_response,
    model_metadata,
    parse_infer,
)
from goen.serve.rejection import Rejected
from goen.serve.service import ServedGate, Service
from goen.serve.threads import PixelBudget
from goen.serve.uploads import Bodies, Upload, decode_upload, is_multipart, read_multipart


def make_app(service: Service) -> Guard:
    """The ASGI application of a service, which should be running."""
    return Guard(Router(_Endpoints(service).routes, redirect_slashes=False), service)


def _template(name: str, package: str = "goen.serve") -> bytes:
    return resources.files(package).joinpath("templates", name).read_bytes()


class _Endpoints:
    """Who answers; the docstrings are the summaries of the OpenAPI description."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.bodies = Bodies(service.settings.limits)
        self.assets = {
            "serve.html": (_template("serve.html"), "text/html"),
            "serve.css": (_template("serve.css"), "text/css"),
            "serve.js": (_template("serve.js"), "text/javascript"),
            "rates.js": (_template("rates.js", "goen.report"), "text/javascript"),
        }
        model = "/v2/models/{gate}"
        versions = f"{model}/versions/{{version}}"
        get, post = ["GET"], ["POST"]
        self.routes = [
            Route("/", self.page, methods=get, include_in_schema=False),
            Route("/static/{name}", self.asset, methods=get, include_in_schema=False),
            Route("/score", self.score, methods=post),
            Route("/score/{gate}", self.score, methods=post),
            Route("/gates", self.gates, methods=get),
            Route("/monitor/{gate}", self.monitor, methods=get),
            Route("/metrics", self.metrics, methods=get),
            Route("/openapi.json", self.openapi, methods=get),
            Route("/v2", self.server, methods=get),
            Route("/v2/health/live", self.live, methods=get),
            Route("/v2/health/ready", self.ready, methods=get),
            *(Route(at, self.model, methods=get) for at in (model, versions)),
            *(Route(f"{at}/ready", self.model_ready, methods=get) for at in (model, versions)),
            *(Route(f"{at}/infer", self.infer, methods=post) for at in (model, versions)),
        ]

    def _gate(self, request: Request) -> ServedGate:
        if request.path_params.get("version", VERSION) != VERSION:
            raise Rejected("not_found", f"There is one version of each gate, {VERSION}.")
        return self.service.find(request.path_params.get("gate"))

    # -- images ----------------------------------------------------------------------------

    async def score(self, request: Request) -> Response:
        """Score images; with the first gate if none is named."""
        served = self._gate(request)
        kind = request.headers.get("content-type", "")
        several = is_multipart(kind)
        limits, in_thread = self.service.settings.limits, self.service.threads.run
        form = served.gate.pixel_format
        budget = PixelBudget(limits.images_at_full_size * limits.pixels)
        async with self.bodies.read(request) as body:
            uploads = [Upload(body)]
            if several:
                uploads = await in_thread(partial(read_multipart, kind, body, limits))
            found = await served.queue.score(
                [
                    partial(decode_upload, upload, served.size, limits, form, budget)
                    for upload in uploads
                ]
            )
            if not several and isinstance(found[0], Rejected):
                raise found[0]
            seen = request.query_params.get("seen") == "true"
            work = partial(self._rows, served, uploads, found, seen)
            # To wait for a thread takes longer than to make a few rows.
            rows = await in_thread(work) if several or seen or self.service.kept else work()
        exchange = request.scope["exchange"]
        exchange.images = sum(row["label"] is not None for row in rows)
        exchange.flagged = sum(row["is_ood"] is True for row in rows)
        return JSONResponse(rows if several else rows[0])

    def _rows(
        self,
        served: ServedGate,
        uploads: Sequence[Upload],
        found: Sequence[tuple[Pixels, Prediction] | Rejected],
        seen: bool,
    ) -> list[ScoreRow]:
        """The rows that ``goen score`` would write for these images."""
        rows: list[ScoreRow] = []
        for upload, one in zip(uploads, found, strict=True):
            if isinstance(one, Rejected):
                rows.append({"path": upload.name, **unreadable_row(served.gate, str(one))})
                continue
            image, prediction = one
            row: ScoreRow = {"path": upload.name, **next(prediction.rows())}
            if seen:
                row["seen"] = image_url(image)
            if row["is_ood"] and self.service.kept is not None:
                self.service.kept.keep(upload.data)
            rows.append(row)
        return rows

    # -- tensors -----------------------------------------------------------------------------

    async def infer(self, request: Request) -> Response:
        """Open Inference Protocol: score images (UINT8, N×3×H×W)."""
        served = self._gate(request)
        gate = served.gate
        async with self.bodies.read(request) as body:
            length = request.headers.get(HEADER_LENGTH)
            limits, in_thread = self.service.settings.limits, self.service.threads.run
            asked = await in_thread(partial(parse_infer, body, length, gate, limits))
            makers = [partial(fitted_image, image, served.size) for image in asked.images]
            scored = []
            for one in await served.queue.score(makers):
                if isinstance(one, Rejected):
                    raise one
                scored.append(one[1])
            outputs = await in_thread(partial(infer_outputs, gate, scored, asked.threshold))
            if self.service.kept is not None:
                await in_thread(partial(self._keep, asked.images[outputs["is_ood"]]))
        exchange = request.scope["exchange"]
        exchange.images, exchange.flagged = len(scored), int(outputs["is_ood"].sum())
        return infer_response(served.name, asked, outputs)

    def _keep(self, flagged: Pixels) -> None:
        assert self.service.kept is not None
        for image in flagged:
            self.service.kept.keep(png_content(image))

    async def server(self, request: Request) -> Response:
        """Open Inference Protocol: the server."""
        extensions = ["binary_tensor_data"]
        return JSONResponse({"name": "goen", "version": __version__, "extensions": extensions})

    async def model(self, request: Request) -> Response:
        """Open Inference Protocol: inputs and outputs of a gate."""
        served = self._gate(request)
        return JSONResponse(model_metadata(served.name, served.gate))

    async def model_ready(self, request: Request) -> Response:
        """Open Inference Protocol: the gate can score."""
        self._gate(request)
        return await self.ready(request)

    # -- the page ----------------------------------------------------------------------------

    async def page(self, request: Request) -> Response:
        """For people."""
        content, kind = self.assets["serve.html"]
        return Response(content, media_type=kind)

    async def asset(self, request: Request) -> Response:
        """Style and scripts of the page, by their known names."""
        name = request.path_params["name"]
        if name not in self.assets:
            raise Rejected("not_found", "The page has no such file.")
        content, kind = self.assets[name]
        return Response(content, media_type=kind)

    # -- the service -------------------------------------------------------------------------

    async def live(self, request: Request) -> Response:
        """Open Inference Protocol: the process answers."""
        return JSONResponse({"live": True})

    async def ready(self, request: Request) -> Response:
        """Open Inference Protocol: the service takes requests."""
        if not self.service.ready.is_set():
            raise Rejected("busy", "The service is stopping.")
        return JSONResponse({"ready": True})

    async def gates(self, request: Request) -> Response:
        """The gates, their classes and cues, and the limits."""
        limits = self.service.settings.limits
        return JSONResponse(
            {
                "version": __version__,
                "limits": {"body": limits.body, "images": limits.images},
                "gates": [_about(served) for served in self.service.gates.values()],
            }
        )

    async def monitor(self, request: Request) -> Response:
        """Log e-values of the monitor, share flagged, latency."""
        served = self._gate(request)
        return JSONResponse(
            {
                "monitor": served.monitor and served.monitor.to_json(),
                "activity": list(self.service.metrics.activity.moments),
                "waiting": served.queue.held,
            }
        )

    async def metrics(self, request: Request) -> Response:
        """Counts in Prometheus' text format."""
        text = self.service.metrics.text()
        return Response(text, media_type="text/plain; version=1.0.0; charset=utf-8")

    async def openapi(self, request: Request) -> Response:
        """This description."""
        return JSONResponse(_described(self.routes, self.service))


def _about(served: ServedGate) -> JsonValue:
    gate, cues = served.gate, served.gate.detector.cue_names
    return {
        "name": served.name,
        **gate_metadata(gate),
        "cue_columns": [f"p_{cue}" for cue in cues] if gate.has_cue_p_values else [],
        "per_class": gate.per_class,
        "columns": all_columns(gate),
        "rates": Rates(gate.false_alarm_rate, gate.num_held_out, {}).to_json(),
        "monitored": served.monitor is not None,
    }


def _described(routes: Sequence[Route], service: Service) -> JsonObject:
    """What every address takes and returns; a summary is the docstring of who answers there."""
    found = json.loads(_template("openapi.json"))
    found["info"]["version"] = __version__
    operations, components = found.pop("operations"), found["components"]
    errors = {"4XX": _component("responses/refused"), "503": _component("responses/busy")}
    for route in filter(lambda route: route.include_in_schema, routes):
        known = operations.get(route.name, operations["other"])
        in_path = [_component(f"parameters/{name}") for name in route.param_convertors]
        (method,) = (route.methods or set()) - {"HEAD"}
        found["paths"][route.path] = {
            method.lower(): {
                **known,
                "summary": (route.endpoint.__doc__ or "").rstrip("."),
                "parameters": [*in_path, *known.get("parameters", [])],
                "responses": {**known["responses"], **errors},
            }
        }
    components["parameters"]["gate"]["schema"]["enum"] = list(service.gates)
    row = components["schemas"]["Row"]["properties"]
    for served in service.gates.values():
        for column in score_columns(served.gate):
            kind = "boolean" if column == "accepted" else "number"
            row.setdefault(column, {"type": kind, "nullable": True})
    if service.settings.token is not None:
        found["security"] = [{"token": []}]
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return found  # type: ignore[no-any-return]


def _component(name: str) -> JsonObject:
    return {"$ref": f"#/components/{name}"}
