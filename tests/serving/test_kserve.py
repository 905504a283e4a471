"""The Open Inference Protocol: the floats of /predict, and 400 for any tensor that lies."""

from __future__ import annotations

import asyncio
import importlib
import json
import random
import re
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from paddlebox.serving.counters import ServeOptions
from paddlebox.serving.kserve import parse_inference
from paddlebox.serving.request import Refused
from tests.conftest import ROOT
from tests.serving.conftest import csv_rows
from tests.serving.test_http import JSON, Held, Running, running, with_held_server

HEADER = "Inference-Header-Content-Length"
DTYPES = {"FP32": "<f4", "FP64": "<f8", "UINT64": "<u8", "INT64": "<i8", "BOOL": "?"}
INFER = "/v2/models/csv/infer"

Tensor = dict[str, Any]


@pytest.fixture(autouse=True)
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture(scope="module")
def server(csv_run: tuple[Path, Path]) -> Iterator[Running]:
    with running(csv_run[1], "--max-body-bytes", 50_000, "--max-batch", 64) as made:
        yield made


def tensor(name: str, datatype: str, data: Any) -> Tensor:
    shape = [len(data), len(data[0])] if data and type(data[0]) is list else [len(data)]
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def encoded(value: Tensor) -> bytes:
    """The data of a tensor in binary form."""
    flat = np.array(value["data"], object).ravel().tolist()
    if value["datatype"] != "BYTES":
        return np.array(flat, DTYPES[value["datatype"]]).tobytes()
    texts = [text.encode() for text in flat]
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def message(inputs: list[Tensor], binary: bool = False, **more: Any) -> tuple[bytes, int]:
    """A body, and the size of its JSON."""
    tail, sent = b"", inputs
    if binary:
        sent = []
        for one in inputs:
            raw = encoded(one)
            head = {key: value for key, value in one.items() if key != "data"}
            sent.append({**head, "parameters": {"binary_data_size": len(raw)}})
            tail += raw
    head_ = json.dumps({"inputs": sent, **more}).encode()
    return head_ + tail, len(head_)


def ask(
    server: Running, body: bytes, size: int | None = None, path: str = INFER
) -> tuple[int, Any]:
    """Status and JSON of a response; binary outputs become a list in `data`."""
    headers = JSON if size is None else {HEADER: str(size)}
    status, found, answer = server.ask("POST", path, body, headers)
    length = found.get(HEADER)
    value = json.loads(answer[: int(length)] if length else answer)
    at = int(length or 0)
    for output in value.get("outputs", ()):
        if "parameters" in output:
            end = at + output["parameters"]["binary_data_size"]
            output["data"] = np.frombuffer(answer[at:end], "<f4").tolist()
            at = end
    assert at in (0, len(answer))
    return status, value


def padded(lists: list[list[Any]], padding: Any) -> list[list[Any]]:
    longest = max(1, *map(len, lists))
    return [[*one, *[padding] * (longest - len(one))] for one in lists]


def requests_of_rows(count: int, seed: int) -> tuple[list[dict[str, Any]], list[Tensor]]:
    """The same instances for /predict and as tensors."""
    rows = csv_rows(count, seed)
    words = [row["words"].split("|") if row["words"] else [] for row in rows]
    items = [[int(item) for item in row["items"].split("|") if item] for row in rows]
    costs = [float(row["cost"]) for row in rows]
    instances = [
        {**row, "words": these, "items": those, "cost": cost}
        for row, these, those, cost in zip(rows, words, items, costs, strict=True)
    ]
    for instance in instances:
        del instance["click"]
    tensors = [
        *(tensor(name, "BYTES", [row[name] for row in rows]) for name in ("age", "user")),
        tensor("city", "BYTES", [[row["city"]] for row in rows]),
        tensor("cost", "FP64", costs),
        tensor("words", "BYTES", padded(words, "")),
        tensor("items", "UINT64", padded(items, 0)),
    ]
    return instances, tensors


@pytest.mark.parametrize("binary", [False, True])
def test_the_same_instances_get_the_same_floats_as_from_predict(
    server: Running, binary: bool
) -> None:
    instances, tensors = requests_of_rows(64, 3)
    predicted = server.predict(instances)
    expected = predicted["predictions"]
    assert len(set(expected)) > 30
    body, size = message(tensors, binary, parameters={"binary_data_output": binary}, id="x1")
    status, answer = ask(server, body, size if binary else None)
    assert status == 200, answer
    (output,) = answer["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("probability", "FP32", [64])
    assert output["data"] == expected
    assert ("parameters" in output) is binary
    assert answer["model_name"] == "csv"
    assert (answer["model_version"], answer["id"]) == (str(predicted["version"]), "x1")


@pytest.mark.parametrize(
    ("field", "datatype", "values", "same"),
    [
        ("cost", "FP32", [0.1, 3.0], [float(np.float32(0.1)), 3]),
        ("cost", "INT64", [-3, 4], [-3, 4]),
        ("cost", "BOOL", [True, False], [1, 0]),
        ("cost", "BYTES", ["0.25", "1e-3"], [0.25, 0.001]),
        ("user", "INT64", [7, 39], [7, 39]),
        ("user", "UINT64", [2**64 - 1, 6], ["18446744073709551615", 6]),
        ("user", "BYTES", ["", "7"], [None, 7]),
        ("words", "BYTES", ["tee|水", "é"], ["tee|水", "é"]),  # split as in the data
        ("words", "BYTES", [["tee|水"], ["é"]], [["tee|水"], ["é"]]),  # not split
        ("words", "BYTES", [["tee", ""], ["", "水"]], [["tee"], ["水"]]),
        ("items", "BYTES", [["7", ""], ["", "9"]], [[7], [9]]),
        ("price", "FP64", [0.5, 0.75], [0.5, 0.75]),  # the name of the slot, not of its column
    ],
)
@pytest.mark.parametrize("binary", [False, True])
def test_each_datatype_has_the_values_of_predict(
    server: Running, field: str, datatype: str, values: Any, same: list[Any], binary: bool
) -> None:
    others = [] if field in ("cost", "price") else [tensor("cost", "FP64", [0.5, 0.5])]
    instances = [{**({"cost": 0.5} if others else {}), field: value} for value in same]
    status, answer = ask(server, *message([*others, tensor(field, datatype, values)], binary))
    assert status == 200, answer
    assert answer["outputs"][0]["data"] == server.predict(instances)["predictions"]


def test_an_array_of_json_may_be_flat_or_have_an_array_for_each_instance(server: Running) -> None:
    nested = [tensor("cost", "FP64", [0.5, 0.5]), tensor("items", "INT64", [[3, 9, 4], [5, 0, 0]])]
    flat = [nested[0], {**nested[1], "data": [3, 9, 4, 5, 0, 0]}]
    answers = [ask(server, message(one)[0])[1]["outputs"][0]["data"] for one in (nested, flat)]
    same = [{"cost": 0.5, "items": [3, 9, 4]}, {"cost": 0.5, "items": [5]}]
    assert answers == [server.predict(same)["predictions"]] * 2


def test_requested_outputs_say_whether_they_are_binary(server: Running) -> None:
    cost = [tensor("cost", "FP64", [0.5])]
    one = {"name": "probability"}
    for asked, default, binary in (
        ([one], True, True),
        ([{**one, "parameters": {"binary_data": False}}], True, False),
        ([{**one, "parameters": {"binary_data": True}}], False, True),
    ):
        body, _ = message(cost, outputs=asked, parameters={"binary_data_output": default})
        status, answer = ask(server, body)
        assert status == 200
        assert ("parameters" in answer["outputs"][0]) is binary
    for asked, said in (
        ([{"name": "score"}], "outputs[0]: expected one of probability, once, found 'score'"),
        ([one, one], "outputs[1]: expected one of probability, once, found 'probability'"),
    ):
        status, answer = ask(server, message(cost, outputs=asked)[0])
        assert (status, answer) == (400, {"error": said})


def test_no_instances_have_no_predictions(server: Running) -> None:
    status, answer = ask(server, *message([tensor("cost", "FP64", [])], True))
    assert status == 200
    assert answer["outputs"] == [
        {"name": "probability", "datatype": "FP32", "shape": [0], "data": []}
    ]


def test_the_model_and_its_version_are_described_and_others_are_not_found(server: Running) -> None:
    def get(path: str) -> tuple[int, Any]:
        status, _, body = server.ask("GET", path)
        return status, json.loads(body)

    version = json.loads(server.ask("GET", "/healthz")[2])["version"]
    assert get("/v2")[1]["extensions"] == ["binary_tensor_data"]
    assert get("/v2/health/live") == (200, {"live": True})
    assert get("/v2/health/ready") == (200, {"ready": True})
    for path in ("/v2/models/csv", f"/v2/models/csv/versions/{version}"):
        assert get(f"{path}/ready") == (200, {"name": "csv", "ready": True})
        assert get(path)[1] == {
            "name": "csv",
            "versions": [str(version)],
            "platform": "paddlebox",
            "inputs": [
                {"name": "age", "datatype": "FP32", "shape": [-1]},
                {"name": "cost", "datatype": "FP32", "shape": [-1]},
                {"name": "user", "datatype": "UINT64", "shape": [-1, -1]},
                *({"name": n, "datatype": "BYTES", "shape": [-1, -1]} for n in ("city", "words")),
                {"name": "items", "datatype": "UINT64", "shape": [-1, -1]},
            ],
            "outputs": [{"name": "probability", "datatype": "FP32", "shape": [-1]}],
        }
    other = f"csv: expected version {version}, which is served, found '77'"
    body, _ = message([tensor("cost", "FP64", [0.5])])
    assert get("/v2/models/csv/versions/77/ready") == (404, {"error": other})
    assert ask(server, body, path="/v2/models/csv/versions/77/infer") == (404, {"error": other})
    assert ask(server, body, path=f"/v2/models/csv/versions/{version}/infer")[0] == 200
    assert ask(server, body, path="/v2/models/cvs/infer") == (
        404, {"error": "expected model 'csv', which is served, found 'cvs'"},
    )  # fmt: skip
    assert "found /v2/repository" in get("/v2/repository")[1]["error"]
    assert server.ask("GET", INFER)[0] == 405


COST = tensor("cost", "FP64", [0.5, 0.5])
REFUSED: dict[str, tuple[Any, str]] = {
    "not JSON": (b"{", "not JSON in UTF-8"),
    "no object": (b"[]", r"the body: expected an object, found \[\]; the form is {.inputs"),
    "no inputs": ({}, "inputs: Field required"),
    "no tensor": ({"inputs": []}, "inputs: List should have at least 1 item"),
    "no object in a list": ({"inputs": [3]}, r"inputs\[0\]: expected an object, found 3"),
    "unknown member": ({"inputs": [COST], "input": 1}, "input: Extra inputs"),
    "unknown key of a tensor": ({"inputs": [{**COST, "dtype": 1}]}, r"inputs\[0\].dtype: Extra"),
    "id": ({"inputs": [COST], "id": 7}, "id: Input should be a valid string, found 7"),
    "datatype": ({"inputs": [{**COST, "datatype": "FP16"}]}, r"inputs\[0\].datatype: .*'FP16'"),
    "no shape": ({"inputs": [{**COST, "shape": []}]}, r"inputs\[0\].shape: .* at least 1"),
    "rank": ({"inputs": [{**COST, "shape": [2, 1, 1]}]}, r"inputs\[0\].shape: .* at most 2"),
    "negative": ({"inputs": [{**COST, "shape": [-1]}]}, r"inputs\[0\].shape\[0\]: .* found -1"),
    "float shape": ({"inputs": [{**COST, "shape": [2.0]}]}, r"shape\[0\]: .* integer, found 2.0"),
    "no list": ({"inputs": [{**COST, "shape": [2, 0]}]}, r"or \[2, K\], with K above 0"),
    "too many": ({"inputs": [tensor("cost", "FP64", [1.0] * 65)]}, "at most 64 .* found 65"),
    "few values": ({"inputs": [{**COST, "shape": [3]}]}, "expected 3 values, as in shape, found 2"),
    "uneven rows": ({"inputs": [{**COST, "shape": [2, 2], "data": [[1, 2], [3]]}]}, "expected 4"),
    "other N": ({"inputs": [COST, tensor("user", "INT64", [1])]}, r"\[1\].shape: expected \[2\]"),
    "twice": ({"inputs": [COST, COST]}, "each name once, found 'cost' again"),
    "no data": ({"inputs": [{**COST, "data": None}]}, "either data or"),
    "wrong type": ({"inputs": [tensor("user", "INT64", [1, 2.5])]}, "expected INT64, found 2.5"),
    "bool": ({"inputs": [tensor("user", "INT64", [1, True])]}, "expected INT64, found True"),
    "out of range": ({"inputs": [tensor("user", "UINT8", [1, 256])]}, "expected UINT8, found 256"),
    "no text": ({"inputs": [tensor("user", "BYTES", [1, "2"])]}, "expected BYTES, found 1"),
    "infinite": (b'{"inputs": [{"name": "cost", "datatype": "FP64", "shape": [1], "data": [1e999]}'
                 b"]}",
                 "finite numbers; for none, send BYTES"),
    "NaN": (b'{"inputs": [{"name": "cost", "datatype": "FP64", "shape": [1], "data": [NaN]}]}',
            "NaN is not a JSON number"),
    "shared memory": ({"inputs": [{**COST, "parameters": {"shared_memory_region": "a"}}]},
                      "parameters.shared_memory_region: Input should be None"),
    "classes": ({"inputs": [COST], "outputs": [{"name": "probability",
                                                "parameters": {"classification": 2}}]},
                r"outputs\[0\].parameters.classification"),
    "rounded text": ({"inputs": [COST, tensor("city", "FP32", [0.5, 1.5])]}, "send it as BYTES"),
    "unknown field": ({"inputs": [COST, tensor("cots", "FP64", [1.0, 1.0])]},
                      "no slot reads a field 'cots'; did you mean 'cost'"),
    "no dense": ({"inputs": [tensor("user", "INT64", [1, 2])]}, "slot 'price': .* found none"),
    "a float for an id": ({"inputs": [COST, tensor("user", "FP64", [1.0, 2.0])]},
                          "expected an integer, found the float 1.0"),
    "surrogate": (b'{"inputs": [{"name": "city", "datatype": "BYTES", "shape": [1], '
                  b'"data": ["\\ud800"]}]}', "half of a surrogate pair"),
    "sizes without binary data": (
        {"inputs": [{**COST, "data": None, "parameters": {"binary_data_size": 16}}]},
        "expected 16 bytes, found 0, the end of the body"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_request_that_cannot_be_read_is_a_400_with_its_place_and_reason(
    case: str, server: Running
) -> None:
    content, reason = REFUSED[case]
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    status, answer = ask(server, body)
    assert (status, list(answer)) == (400, ["error"]), answer
    assert re.search(reason, answer["error"]), answer


def test_the_limits_of_predict_hold_and_their_errors_have_the_form_of_the_protocol(
    server: Running, csv_run: tuple[Path, Path]
) -> None:
    status, answer = ask(server, b" " * 60_000)
    assert (status, list(answer)) == (413, ["error"])
    status, _, body = server.ask("POST", INFER, b"{}", {"Content-Type": "text/csv"})
    assert (status, list(json.loads(body))) == (415, ["error"])
    status, _, body = server.ask("POST", INFER, b"{}", {**JSON, "Content-Encoding": "gzip"})
    assert (status, json.loads(body)["error"]) == (415, "expected no Content-Encoding, found gzip")
    sent = message([COST])[0]

    async def full(client: Any, predictor: Held) -> None:
        waiting = asyncio.create_task(client.post(INFER, data=sent, headers=JSON))
        while 'paddlebox_waiting{worker="0"} 1' not in await (await client.get("/metrics")).text():
            await asyncio.sleep(0.01)
        refused = await client.post(INFER, data=sent, headers=JSON)
        assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
        assert "try again later" in (await refused.json())["error"]
        predictor.go.set()
        assert (await waiting).status == 200

    counters = with_held_server(csv_run[1], ServeOptions(max_queue=1), full)
    assert counters.rows[0]["instances"] == 2
    for code in (200, 503):
        label = f'paddlebox_requests_total{{path="/v2/models/{{model}}/infer",code="{code}"}} 1\n'
        assert label in counters.text()
    assert "paddlebox_predict_seconds_count 2\n" in counters.text()

    async def slow(client: Any, _: Held) -> None:
        late = await client.post(INFER, data=sent, headers=JSON)
        assert (late.status, await late.json()) == (504, {"error": "no prediction within 0.2 s"})

    with_held_server(csv_run[1], ServeOptions(timeout_s=0.2), slow)


def test_a_version_that_is_replaced_meanwhile_gives_no_answer_of_the_next(
    csv_run: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def talk(client: Any, predictor: Held) -> None:
        predictor.go.set()
        version = predictor.version
        predictions, shown = predictor.answer([{"cost": 0.5}] * 2)
        record = SimpleNamespace(version=version + 1)
        after = SimpleNamespace(config=shown.config, slots=shown.slots, record=record)
        monkeypatch.setattr(predictor, "answer", lambda _: (predictions, after))
        for path, status in (("/v2/models/csv", 200), (f"/v2/models/csv/versions/{version}", 404)):
            answer = await client.post(f"{path}/infer", data=message([COST])[0], headers=JSON)
            assert answer.status == status
        assert f"expected version {version + 1}" in (await answer.json())["error"]

    with_held_server(csv_run[1], ServeOptions(), talk)


def parsed(body: bytes, size: int | None) -> list[dict[str, Any]] | None:
    """The instances of a body; None if it is refused as the client's mistake."""
    try:
        _, instances = parse_inference(body, size, 64)
    except Refused as error:
        refused = error
    else:
        return instances
    assert refused.status in (400, 422)
    return None


BINARY = [tensor("cost", "FP32", [0.5, 0.25]), tensor("words", "BYTES", [["a", "bc"], ["", "水"]])]
SIZES = st.one_of(st.integers(-2, 40), st.sampled_from([2**31, 2**32 - 1, 2**63, 10**30, -(2**63)]))


def with_sizes(shapes: list[Any], sizes: list[Any]) -> tuple[bytes, int]:
    """A body whose JSON has these shapes and sizes, whatever follows."""
    body, end = message(BINARY, True)
    head = json.loads(body[:end])
    for one, shape, size in zip(head["inputs"], shapes, sizes, strict=True):
        one["shape"], one["parameters"]["binary_data_size"] = shape, size
    text = json.dumps(head).encode()
    return text + body[end:], len(text)


@pytest.mark.parametrize(
    ("shapes", "sizes"),
    [
        ([[2], [2, 2]], [8, 2**40]),
        ([[2**30], [2**30, 2**30]], [2**32, 2**40]),
        ([[2], [2, 2**30]], [8, 22]),
        ([[10**30], [2, 2]], [8, 22]),
        ([[2], [2, 0]], [8, 0]),
        ([[-2], [-2, -2]], [8, 22]),
    ],
)
def test_a_size_that_lies_takes_no_memory(shapes: Any, sizes: Any) -> None:
    body, end = with_sizes(shapes, sizes)
    assert parsed(*message(BINARY, True)) is not None
    tracemalloc.start()
    try:
        assert parsed(body, end) is None
        assert tracemalloc.get_traced_memory()[1] < 1 << 18
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("body", "reason"),
    [(b'{"inputs":[' + b"{}," * 50_000 + b"{}]}", r"inputs\[0\].name: Field required"),
     (json.dumps({"inputs": [COST], **{f"k{number}": 0 for number in range(50_000)}}).encode(),
      "50000 mistakes")],
)  # fmt: skip
def test_of_many_mistakes_one_is_reported_without_memory_for_the_others(
    body: bytes, reason: str
) -> None:
    tracemalloc.start()
    try:
        json.loads(body)
        taken = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        with pytest.raises(Refused, match=reason):
            parse_inference(body, None, 64)
        assert tracemalloc.get_traced_memory()[1] < 2 * taken
    finally:
        tracemalloc.stop()


SENT, HEAD_BYTES = message(BINARY, True)  # 8 bytes of numbers and 22 of strings follow the JSON


@pytest.mark.parametrize(
    ("body", "head_bytes", "reason"),
    [
        (SENT, len(SENT) + 1, f"Content-Length: expected at most {len(SENT)}"),
        (SENT, None, "the body is not JSON in UTF-8"),
        (SENT + b"x", HEAD_BYTES, f"expected {len(SENT)} bytes .* found {len(SENT) + 1}"),
        (SENT[:-1], HEAD_BYTES, r"inputs\[1\]: expected 22 bytes, found 21, the end of the body"),
        (SENT[:-22] + b"\x13\0\0\0" + b"x" * 18, HEAD_BYTES, "a string that ends after 23"),
        (SENT[:-22] + b"\x12\0\0\0" + b"x" * 18, HEAD_BYTES, "expected 4 strings, found 1"),
        (SENT[:-1] + b"\xff", HEAD_BYTES, r"inputs\[1\]: expected UTF-8, found in string 3"),
        (*with_sizes([[2], [2, 2]], [7, 22]), r"inputs\[0\]: expected 8 bytes of FP32, found 7"),
    ],
)
def test_binary_tensors_that_do_not_fit_are_refused_with_the_reason(
    body: bytes, head_bytes: int | None, reason: str
) -> None:
    with pytest.raises(Refused, match=reason) as refused:
        parse_inference(body, head_bytes, 64)
    assert refused.value.status == 400


_fuzzed = settings(max_examples=400, deadline=None, database=None, derandomize=True,
                   suppress_health_check=list(HealthCheck))  # fmt: skip


@_fuzzed
@given(st.lists(SIZES, max_size=3), st.lists(SIZES, max_size=3), SIZES, SIZES)
@example([2], [2, 2], 8, 22)
def test_shapes_and_sizes_that_lie_are_refused(
    first: list[int], second: list[int], size: int, other: int
) -> None:
    instances = parsed(*with_sizes([first, second], [size, other]))
    if instances is not None:
        assert first[0] == second[0] == 2
        assert len(instances) == 2
        assert all(set(one) == {"cost", "words"} for one in instances)


@_fuzzed
@given(st.binary(min_size=16, max_size=60), st.integers(0, 80))
def test_strings_whose_lengths_lie_are_refused(data: bytes, count: int) -> None:
    head = {"name": "city", "datatype": "BYTES", "shape": [count]}
    text = json.dumps({"inputs": [{**head, "parameters": {"binary_data_size": len(data)}}]})
    instances = parsed(text.encode() + data, len(text))
    if instances is not None:  # then the strings and their lengths are the data
        texts = [(one["city"] or "").encode() for one in instances]
        assert b"".join(struct.pack("<I", len(t)) + t for t in texts) == data


@_fuzzed
@given(st.data())
def test_a_body_with_some_other_bytes_is_read_or_refused(data: Any) -> None:
    body, end = message(BINARY, True)
    changed = bytearray(body)
    for _ in range(data.draw(st.integers(1, 6))):
        changed[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body) + 3))
    sent = bytes(changed[:cut]) + b"x" * max(0, cut - len(body))
    size = data.draw(st.one_of(st.none(), st.just(end), st.integers(0, len(body) + 9)))
    instances = parsed(sent, size)
    assert instances is None or len(instances) <= 64


def test_any_binary_body_is_answered_by_the_server(server: Running) -> None:
    rng = random.Random(1)
    connection = server.connection()
    body, end = message(BINARY, True)
    seen = set()
    for _ in range(150):
        sent, size = bytearray(body), rng.choice([str(end), str(end), "-1", "9" * 30, "x", "0"])
        for _ in range(rng.randrange(4)):
            sent[rng.randrange(len(sent))] = rng.randrange(256)
        status, _, answer = server.ask("POST", INFER, bytes(sent), {HEADER: size}, connection)
        assert status in (200, 400), answer
        seen.add(status)
    assert seen == {200, 400}
    assert "Traceback" not in server.log.read_text()


def test_the_client_of_triton_gets_the_floats_of_predict(server: Running) -> None:
    for name in ("geventhttpclient", "tritonclient"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    triton = importlib.import_module("tritonclient.http")
    instances, tensors = requests_of_rows(20, 4)
    expected = np.array(server.predict(instances)["predictions"], np.float32)
    version = str(server.predict(instances)["version"])
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("csv")
        assert client.is_model_ready("csv", version)
        assert not client.is_model_ready("csv", "77")
        assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
        assert client.get_model_metadata("csv")["versions"] == [version]
        for binary in (True, False):
            inputs = []
            for one in tensors:
                kind = object if one["datatype"] == "BYTES" else DTYPES[one["datatype"]]
                values = np.array(one["data"], kind)
                inputs.append(triton.InferInput(one["name"], list(values.shape), one["datatype"]))
                inputs[-1].set_data_from_numpy(values, binary_data=binary)
            for outputs in (
                None,
                [triton.InferRequestedOutput("probability", binary_data=binary)],
            ):
                done = client.infer("csv", inputs, outputs=outputs, request_id="7", priority=1)
                assert done.get_response()["id"] == "7"
                np.testing.assert_array_equal(done.as_numpy("probability"), expected)
        with pytest.raises(triton.InferenceServerException, match="found 'score'"):
            client.infer("csv", inputs, outputs=[triton.InferRequestedOutput("score")])
        with pytest.raises(triton.InferenceServerException, match="expected version"):
            client.infer("csv", inputs, model_version="77")
