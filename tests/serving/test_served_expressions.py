"""Ten thousand random expressions in training, in Predictor and over HTTP: the same bits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aiohttp import test_utils

from paddlebox.config import Format
from paddlebox.serving import Predictor
from paddlebox.serving.counters import Counters, ServeOptions
from paddlebox.serving.fields import FieldParser
from paddlebox.serving.http import Server
from paddlebox.serving.writer import export
from tests.data.test_expressions import parsed, slots_of, values_of
from tests.data.test_expressions_pyarrow import EXPRESSIONS, Random, batch_of
from tests.serving.made_export import MadeSource
from tests.support.configs import make_config
from tests.support.marks import long, slow

ROWS, SEEDS = 30, 10  # rows of each seed; seeds of a variant, with EXPRESSIONS each
REQUESTS = 3


@pytest.mark.parametrize("first", [slow(0), *map(long, range(SEEDS, 100, SEEDS))])
def test_the_bits_of_training_are_those_of_predictor_and_http(
    first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The expressions are those of test_expressions_pyarrow.py, on rows of all their batches."""
    numbers, texts, batches = [], [], []
    for seed in range(first, first + SEEDS):
        batches.append(batch_of(seed))
        made = Random(seed, batches[-1])
        numbers += [made.number(seed % 4 + 1)[0] for _ in range(EXPRESSIONS // 2)]
        texts += [made.text(seed % 4 + 1)[0] for _ in range(EXPRESSIONS // 2)]
    table = pa.Table.from_batches([batch.slice(0, ROWS) for batch in batches])
    slots = slots_of([f"clip({text}, -9, 9)" for text in numbers], texts)
    shape = len(numbers), len(texts)
    batch = table.combine_chunks().to_batches()[0]
    dense, ids = values_of(parsed(slots, Format.PARQUET, batch), *shape)

    served: list[tuple[np.ndarray, list[list[int]]]] = []
    parse = FieldParser.parse

    def kept(self: FieldParser, instances: Any, *what: str) -> Any:
        served.append(values_of(parse(self, instances, *what), *shape))
        return parse(self, instances, *what)

    instances = table.drop_columns("click").to_pylist()
    for instance in instances:
        instance["time"] = instance["time"].isoformat()
    config = make_config(
        model={"type": "dnn", "hidden": [2]},
        table={"embedx_dim": 1},
        data={"format": "parquet", "key_space": "shared"},
    )
    path = tmp_path / "m.export"
    export(MadeSource(config, slots, instances), path)
    monkeypatch.setattr(FieldParser, "parse", kept)
    size = len(instances) // REQUESTS
    requests = [instances[at : at + size] for at in range(0, len(instances), size)]
    with Predictor(path) as predictor:
        predictions = np.concatenate([predictor.predict(request) for request in requests])
        answers = asyncio.run(asked(predictor, requests))
    assert np.array(answers, np.float32).tobytes() == predictions.tobytes()
    assert len(served) == 2 * REQUESTS
    for of in (served[:REQUESTS], served[REQUESTS:]):
        assert np.concatenate([found for found, _ in of]).tobytes() == dense.tobytes()
        assert [one for _, found in of for one in found] == ids


async def asked(predictor: Predictor, requests: list[list[dict[str, Any]]]) -> list[float]:
    """The predictions of requests."""
    server = Server(predictor, ServeOptions(), Counters(1), 0)
    answers: list[float] = []
    async with test_utils.TestClient(test_utils.TestServer(server.application())) as client:
        for request in requests:
            response = await client.post("/predict", json={"instances": request})
            assert response.status == 200, await response.text()
            answers += (await response.json())["predictions"]
    return answers
