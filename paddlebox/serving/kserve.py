"""The Open Inference Protocol, version 2, of KServe and Triton, with its binary tensors.

A tensor holds one field of all instances: a value of each in the shape (N), or a list of K values
of each in (N, K); N = instances. Values are read as those of /predict. An empty string is no value.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Callable, Container
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import numpy as np
from aiohttp import web
from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError

from paddlebox import __version__
from paddlebox.config import Config, Format, Slots, SlotType
from paddlebox.config.check import dotted
from paddlebox.data.expressions import slots_of_expressions
from paddlebox.serving import openapi
from paddlebox.serving.request import Refused, parse_json

if TYPE_CHECKING:
    from paddlebox.serving.generation import OpenGeneration
    from paddlebox.serving.http import Server

OUTPUT = "probability"  # of one task; outputs of several have the names of the tasks
_HEADER = "Inference-Header-Content-Length"
_FORM = '{"inputs": [{"name": …, "shape": [N], "datatype": …, "data": […]}, …]}'
_KINDS = ("application/json", "application/octet-stream")  # the latter if a request has no type
_MODEL = "/v2/models/{model}"
_MODELS = (_MODEL, f"{_MODEL}/versions/{{version}}")


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class InferParameters(BaseModel):
    """Parameters that change the form of a message. Others, such as a priority, are ignored."""

    model_config = ConfigDict(strict=True)
    binary_data_output: bool = False
    binary_data: bool | None = None
    binary_data_size: Annotated[int, Field(ge=0)] | None = None
    # Of extensions that this server does not have.
    shared_memory_region: None = None
    classification: None = None


class InferInput(_Part):
    name: str
    shape: Annotated[
        list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(min_length=1, max_length=2)
    ]
    datatype: Literal["BYTES", "BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16",
                      "UINT32", "UINT64", "FP32", "FP64"]  # fmt: skip
    data: list[Any] | None = None
    parameters: InferParameters = InferParameters()


class InferOutput(_Part):
    name: str
    parameters: InferParameters = InferParameters()


class InferRequest(_Part):
    # Without FailFast, a body of 1 MiB can have a million errors, which take 14 s.
    inputs: Annotated[list[InferInput], Field(min_length=1), FailFast()]
    id: str | None = None
    outputs: Annotated[list[InferOutput], FailFast()] = []
    parameters: InferParameters = InferParameters()


def parse_inference(
    body: bytes, header_bytes: int | None, max_instances: int, hashed: Container[str | None] = ()
) -> tuple[InferRequest, list[dict[str, Any]]]:
    """Parse the body of a request, without memory for values that it announces but does not have.

    Args:
        header_bytes: size of the JSON, which binary tensors follow; None: there are none.
        hashed: fields whose text is hashed. Numbers in FP32 do not have the text of the data.

    Returns: the JSON, and the instances as /predict has them.
    Raises: Refused.
    """
    end = len(body) if header_bytes is None else header_bytes
    if end > len(body):
        _refuse(_HEADER, f"expected at most {len(body)}, the bytes of the body, found {end}")
    try:
        request = InferRequest.model_validate(parse_json(body[:end], _FORM))
    except ValidationError as error:
        if error.error_count() > 99:  # most are unknown members
            _refuse("the body", f"{error.error_count()} mistakes; the form is {_FORM}")
        first = error.errors(include_url=False)[0]
        why = "expected an object" if first["type"] == "model_type" else first["msg"]
        found = f"{why}, found {reprlib.repr(first['input'])}; the form is {_FORM}"
        _refuse(dotted(first["loc"]) or "the body", found)
    count = request.inputs[0].shape[0]
    if count > max_instances:
        _refuse("inputs", f"expected at most {max_instances} instances, found {count}: send less")
    columns: dict[str, list[Any]] = {}
    for number, tensor in enumerate(request.inputs):
        where, size = f"inputs[{number}]", tensor.parameters.binary_data_size
        if tensor.name in columns:
            _refuse(where, f"expected each name once, found {tensor.name[:40]!r} again")
        if tensor.shape[0] != count or tensor.shape[1:] == [0]:
            expected = f"expected [{count}] or [{count}, K], with K above 0"
            _refuse(f"{where}.shape", f"{expected}, found {tensor.shape}")
        if tensor.datatype == "FP32" and tensor.name in hashed:
            _refuse(where, f"the text of {tensor.name!r} is hashed: send it as BYTES, not as FP32")
        if (size is None) == (tensor.data is None):
            _refuse(where, "expected either data or parameters.binary_data_size")
        if size is None:
            values = _listed(tensor, where)
        else:
            values = _binary(body[end : end + size], size, tensor, where)
            end += size
        if tensor.datatype == "BYTES":
            values = [value or None for value in values]
        elif tensor.datatype in ("FP32", "FP64") and not all(map(math.isfinite, values)):
            _refuse(where, "expected finite numbers; for none, send BYTES with an empty string")
        if len(tensor.shape) == 2:
            width = tensor.shape[1]
            values = [values[at : at + width] for at in range(0, len(values), width)]
        columns[tensor.name] = values
    if end != len(body):
        _refuse("the body", f"expected {end} bytes by the sizes of its parts, found {len(body)}")
    rows = zip(*columns.values(), strict=True)
    return request, [dict(zip(columns, row, strict=True)) for row in rows]


def _binary(data: bytes, size: int, tensor: InferInput, where: str) -> list[Any]:
    """The values in binary form. size: bytes that were announced; the body may end before."""
    count = math.prod(tensor.shape)
    if len(data) != size:
        _refuse(where, f"expected {size} bytes, found {len(data)}, the end of the body")
    if tensor.datatype != "BYTES":
        dtype = np.dtype(tensor.datatype.lower().replace("fp", "float"))  # x86-64: little endian
        expected = count * dtype.itemsize
        if size != expected:
            _refuse(where, f"expected {expected} bytes of {tensor.datatype}, found {size}")
        return list(np.frombuffer(data, dtype).tolist())
    texts: list[str] = []
    at = 0
    while at < size:
        start = at + 4
        at = start + int.from_bytes(data[at:start], "little")
        if start > size or at > size:
            _refuse(where, f"expected {size} bytes, found a string that ends after {at}")
        try:
            texts.append(data[start:at].decode())
        except UnicodeDecodeError as error:
            _refuse(where, f"expected UTF-8, found in string {len(texts)}: {error}")
    if len(texts) != count:
        _refuse(where, f"expected {count} strings, found {len(texts)}")
    return texts


def _listed(tensor: InferInput, where: str) -> list[Any]:
    """The values in JSON, which are flat, or in one array for each instance."""
    data, count = tensor.data or [], math.prod(tensor.shape)
    if len(tensor.shape) == 2 and len(data) == tensor.shape[0]:
        width = tensor.shape[1]
        if all(type(row) is list and len(row) == width for row in data):
            data = [value for row in data for value in row]
    if len(data) != count:
        _refuse(f"{where}.data", f"expected {count} values, as in shape, found {len(data)}")
    fits = _fits(tensor.datatype)
    for value in data:
        if not fits(value):
            _refuse(f"{where}.data", f"expected {tensor.datatype}, found {reprlib.repr(value)}")
    return data


def _fits(datatype: str) -> Callable[[Any], bool]:
    """Whether a value of JSON is one of the datatype."""
    if datatype in ("BYTES", "BOOL"):
        kind = str if datatype == "BYTES" else bool
        return lambda value: type(value) is kind
    if datatype in ("FP32", "FP64"):
        return lambda value: type(value) is float or (type(value) is int and abs(value) < 1 << 127)
    low, high = np.iinfo(datatype.lower()).min, np.iinfo(datatype.lower()).max
    return lambda value: type(value) is int and low <= value <= high


def _refuse(where: str, why: str) -> NoReturn:
    raise Refused(400, "bad_tensor", f"{where}: {why}")


def response(
    asked: InferRequest, predictions: np.ndarray, generation: OpenGeneration
) -> web.Response:
    """The response with the requested outputs. predictions: (N) or (N, T). Raises: Refused."""
    tasks = generation.slots.tasks
    names = tasks if len(tasks) > 1 else (OUTPUT,)
    columns = dict(zip(names, predictions.reshape(-1, len(names)).T, strict=True))
    outputs: list[dict[str, Any]] = []
    tail = b""
    for number, wanted in enumerate(asked.outputs or [InferOutput(name=name) for name in names]):
        if wanted.name not in columns:
            expected = f"expected one of {', '.join(names)}, once"
            _refuse(f"outputs[{number}]", f"{expected}, found {wanted.name[:40]!r}")
        values, binary = columns.pop(wanted.name), wanted.parameters.binary_data
        output = {"name": wanted.name, "datatype": "FP32", "shape": [len(values)]}
        if asked.parameters.binary_data_output if binary is None else binary:
            outputs.append({**output, "parameters": {"binary_data_size": 4 * len(values)}})
            tail += values.tobytes()
        else:
            outputs.append({**output, "data": values.tolist()})
    answer = {
        "model_name": generation.config.name,
        "model_version": str(generation.record.version),
        **({} if asked.id is None else {"id": asked.id}),
        "outputs": outputs,
    }
    head = json.dumps(answer).encode()
    if not any("parameters" in output for output in outputs):
        return web.Response(body=head, content_type=_KINDS[0])
    return web.Response(body=head + tail, content_type=_KINDS[1], headers={_HEADER: str(len(head))})


class Protocol:
    """The routes of the protocol at a server."""

    def __init__(self, server: Server) -> None:
        self._server, self._predictor = server, server.predictor

    def add_to(self, router: web.UrlDispatcher) -> None:
        router.add_get("/v2", self._about)
        router.add_get("/v2/health/live", self._live)
        router.add_get("/v2/health/ready", self._ready)
        for model in _MODELS:
            router.add_get(model, self._metadata)
            router.add_get(f"{model}/ready", self._model_ready)
            router.add_post(f"{model}/infer", self._infer)

    async def _about(self, _: web.Request) -> web.Response:
        about = {"name": "paddlebox", "version": __version__, "extensions": ["binary_tensor_data"]}
        return web.json_response(about)

    async def _live(self, _: web.Request) -> web.Response:
        return web.json_response({"live": True})

    async def _ready(self, _: web.Request) -> web.Response:
        self._server.check()
        return web.json_response({"ready": True})

    async def _metadata(self, request: web.Request) -> web.Response:
        config, slots, version = self._named(request)
        outputs = slots.tasks if len(slots.tasks) > 1 else (OUTPUT,)
        about = {
            "name": config.name,
            "versions": [str(version)],
            "platform": "paddlebox",
            "inputs": inputs(config, slots),
            "outputs": [{"name": name, "datatype": "FP32", "shape": [-1]} for name in outputs],
        }
        return web.json_response(about)

    async def _model_ready(self, request: web.Request) -> web.Response:
        config, _, _ = self._named(request)
        self._server.check()
        return web.json_response({"name": config.name, "ready": True})

    async def _infer(self, request: web.Request) -> web.Response:
        self._named(request)
        return await self._server.computed(request, _KINDS, partial(self._answer, request))

    def _answer(self, request: web.Request, body: bytes) -> tuple[web.Response, int]:
        size = request.headers.get(_HEADER)
        if size is not None and not (size.isascii() and size.isdigit() and len(size) < 16):
            _refuse(_HEADER, f"expected a number of bytes, found {size[:40]!r}")
        header_bytes = None if size is None else int(size)
        slots = self._predictor.model[1].slots
        readers = [*slots, *slots_of_expressions(self._predictor.model[1])]
        hashed = {name for slot in readers if slot.hash for name in (slot.name, slot.column)}
        limit = self._server.options.max_batch
        asked, instances = parse_inference(body, header_bytes, limit, hashed)
        predictions, generation = self._server.predict(instances)
        _check_name(request, generation.config, generation.record.version)  # a new one may be shown
        return response(asked, predictions, generation), len(instances)

    def _named(self, request: web.Request) -> tuple[Config, Slots, int]:
        """The model that a request names. Raises: Refused if another one is served."""
        (config, slots), version = self._predictor.model, self._predictor.version
        _check_name(request, config, version)
        if config.model.reads_sequences:
            why = "reads histories of users, which tensors do not have: POST to /predict"
            raise Refused(400, "reads_users", f"{config.name} {why}")
        return config, slots, version


def _check_name(request: web.Request, config: Config, version: int) -> None:
    name, asked = request.match_info["model"], request.match_info.get("version", str(version))
    if name != config.name:
        why = f"expected model {config.name!r}, which is served, found {name[:80]!r}"
        raise Refused(404, "not_found", why)
    if asked != str(version):
        why = f"{name}: expected version {version}, which is served, found {asked[:80]!r}"
        raise Refused(404, "not_found", why)


def inputs(config: Config, slots: Slots) -> list[dict[str, Any]]:
    """The fields of a model, each with a datatype and a shape that hold all of its values."""
    criteo = config.data.format is Format.CRITEO_TSV
    found = []
    for name, readers in openapi.fields_of(slots).items():
        size, datatype, shape = max(slot.dim for slot in readers), "UINT64", [-1, -1]
        if criteo or any(slot.hash or slot.weighted for slot in readers):
            datatype = "INT64" if criteo and name[0] == "I" else "BYTES"
        elif all(slot.type is SlotType.DENSE for slot in readers):
            datatype, shape = "FP32", [-1]
        shape = [-1, size] if size > 1 else [-1] if criteo else shape
        found.append({"name": name, "datatype": datatype, "shape": shape})
    return found


def add_paths(page: dict[str, Any], config: Config, slots: Slots, version: int) -> None:
    """Add the protocol to the OpenAPI page."""
    text = {"type": "string"}
    error = {"type": "object", "properties": {"error": text}, "required": ["error"]}

    def answered(about: str, *refusals: int, **answer: Any) -> dict[str, Any]:
        schema = {"type": "object", "properties": answer, "required": list(answer)}
        return openapi.endpoint(openapi.json_answer(about, schema), *refusals, error=error)

    paths = page["paths"]
    paths["/v2"] = {"get": answered("The server, and its extensions of the protocol.", 500)}
    paths["/v2/health/live"] = {"get": answered("The server runs.", 500)}
    paths["/v2/health/ready"] = {"get": answered("The server predicts.", 500, 503)}
    if config.model.reads_sequences:
        return
    schema = InferRequest.model_json_schema(ref_template="#/components/schemas/{model}")
    page["components"]["schemas"] |= schema.pop("$defs")
    tensors = []
    values = openapi.example(config, slots)
    for tensor in inputs(config, slots):
        value = values[tensor["name"]]
        data = value if type(value) is list else [value]
        data = [str(one) for one in data] if tensor["datatype"] == "BYTES" else data
        tensors.append({**tensor, "shape": [1, len(data)][: len(tensor["shape"])], "data": data})
    infer = {
        "requestBody": openapi.request_body(schema, {"inputs": tensors}),
        **answered(
            "The outputs. The body may have binary tensors, as in the protocol of Triton.",
            *(400, 404, 408, 413, 415, 500, 503, 504),
            model_name=text,
            model_version=text,
            outputs={"type": "array", "items": {"type": "object"}},
        ),
    }
    operations = {
        "": {"get": answered("The inputs and outputs of the model.", 404, 500)},
        "/ready": {"get": answered("The model predicts.", 404, 500, 503)},
        "/infer": {"post": infer},
    }
    for model in _MODELS:
        served = {"model": config.name, "version": str(version)}
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": {"const": value}}
            for name, value in served.items()
            if f"{{{name}}}" in model
        ]
        for end, operation in operations.items():
            paths[model + end] = {**operation, "parameters": parameters}
