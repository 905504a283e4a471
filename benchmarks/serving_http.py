"""What does HTTP add to a prediction, and how many requests does a worker answer?

    python benchmarks/serving_http.py

The model and the rows are those of benchmarks/serving.py. The same requests of raw fields go in
turns to a Predictor in this process and, over one connection, to tools/serve.py with one worker.
Then four processes send requests to the server only. Client and server are Python programs on one
machine. So the figures show what a request costs, not how many a larger installation answers.

Goal: for requests of one instance, the median over HTTP is at most 1 ms above that in the process.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import report
from serving import BATCHES, CONFIG, ROUNDS, WARM, Drawn, timed
from serving import MEASURES as OF_SERVING

from paddlebox.config import load_config
from paddlebox.launch import cpu

MEASURES = (*OF_SERVING, "ops/feed/text")
CLIENTS = 4
GOAL_ADDED_MS = 1.0


class Client:
    """A client with one persistent connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def predict(self, instances: Any) -> Any:
        self._connection.request(
            "POST",
            "/predict",
            json.dumps({"instances": instances}).encode(),
            {"Content-Type": "application/json"},
        )
        answer = self._connection.getresponse()
        body = json.loads(answer.read())
        assert answer.status == 200, body
        return body["predictions"]


def requests_of(columns: list[str], rows: int, batch: int, count: int, seed: int) -> list[Any]:
    random = np.random.default_rng(seed)
    return [
        [
            {c: f"{v:x}" if c[0] == "C" else int(v) for c, v in zip(columns, row, strict=True)}
            for row in random.integers(1, rows + 1, (batch, len(columns)))
        ]
        for _ in range(count)
    ]


def ask(port: int, requests: list[Any], queue: Any) -> None:
    client = Client(port)
    queue.put([timed(client.predict, request) for request in requests])


def listening(server: subprocess.Popen[str]) -> int:
    """Waits until a worker is ready and returns the port."""
    assert server.stderr is not None
    port = 0
    for line in server.stderr:
        found = re.search(r"at http://127\.0\.0\.1:(\d+)", line)
        port = int(found[1]) if found else port
        if "is ready" in line:
            return port
    raise SystemExit("the server did not start")


def measured(seconds: list[float]) -> dict[str, float]:
    return {
        "p50_us": float(np.percentile(seconds, 50) * 1e6),
        "p99_us": float(np.percentile(seconds, 99) * 1e6),
    }


def added(process: list[float], http: list[float]) -> list[float]:
    """The milliseconds that HTTP adds to the median of each round."""
    rounds = (np.array_split(np.array(seconds), ROUNDS) for seconds in (process, http))
    return [float(1e3 * (np.median(b) - np.median(a))) for a, b in zip(*rounds, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/serving_http.json"))
    options = parser.parse_args()
    cpu.apply(load_config(CONFIG, ["data.train_files=[x]"]).trainer.program, 1)
    os.environ["OMP_NUM_THREADS"] = "1"
    from paddlebox.serving import Predictor
    from paddlebox.serving.writer import export

    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "m.export"
        source = Drawn(options.rows, 1)
        columns = [slot.column or slot.name for slot in source.slots.sparse]
        export(source, path)
        server = subprocess.Popen(
            [sys.executable, "tools/serve.py", str(path), "--port", "0"],
            stderr=subprocess.PIPE,
            text=True,
            cwd=report.ROOT,
        )
        try:
            port = listening(server)
            for batch in BATCHES:
                count = options.requests + WARM
                requests = requests_of(columns, options.rows, batch, count, batch)
                times: dict[str, list[float]] = {"process": [], "http": []}
                client = Client(port)
                with Predictor(path, follow_s=0) as predictor:
                    both = {"process": predictor.predict, "http": client.predict}
                    for number, request in enumerate(requests):
                        for one in sorted(both, reverse=bool(number % 2)):
                            times[one].append(timed(both[one], request))
                times = {one: taken[WARM:] for one, taken in times.items()}
                figures[str(batch)] = {one: measured(taken) for one, taken in times.items()}
                figures[str(batch)]["added_ms"] = added(times["process"], times["http"])
                figures[str(batch)]["clients"] = at_once(port, requests)
        finally:
            server.terminate()
            server.wait()
    for size, found in figures.items():
        print(f"batch {size:>2}: {json.dumps(found)}")
    return report.write(
        options.out,
        {"config": CONFIG, "rows": options.rows, "requests": options.requests, "workers": 1},
        figures,
        [report.at_most("ms that HTTP adds, p50", figures["1"]["added_ms"], GOAL_ADDED_MS)],
    )


def at_once(port: int, requests: list[Any]) -> dict[str, float]:
    """Requests/s of several clients, each of which sends all requests."""
    context = multiprocessing.get_context("spawn")  # no fork: this process has Paddle's threads
    queue = context.Queue()
    clients = [context.Process(target=ask, args=(port, requests, queue)) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    taken = [queue.get() for _ in clients]
    for client in clients:
        client.join()
    # The rate of each client by itself, so that the start of its process does not count.
    rate = sum(len(one) / sum(one) for one in taken)
    return {"requests_per_s": rate, **measured([s for one in taken for s in one[WARM:]])}


if __name__ == "__main__":
    report.run(main)
