"""What do a prediction from an export file, a new version and HTTP cost?

    python benchmarks/serving.py export
    python benchmarks/serving.py export --load-minutes 1     # a trial
    python benchmarks/serving.py http

The model is that of configs/dnn_criteo.yaml: 39 sparse slots of one feasign each, 13 dense
features, D = 8, an MLP of 400-400-400. The peer is the same program, run by Paddle's inference,
with a dense embedding table of the same rows and width inside. Its ids are computed beforehand, so
it looks nothing up. Both run on one core, in turns, with the same requests and settings, and fetch
their handles once. Rows are drawn uniformly, so most are not in a cache.
Copies of the file's blocks are on huge pages, so malloc asks for them for the peer's table, too
(peers/huge_pages.py).

Then another process applies deltas of 5 % of the rows while this one follows. At the end such a
delta comes every second for 10 minutes, while each answer is compared, to the bit, with the rows of
its version.

Goals: as many requests/s as the peer, at batch 1 and 64. A delta of 5 % takes at most a fifth of
the time of the whole export. The anonymous memory of the reader, without blocks that it keeps
resident within their limit, grows by less than 5 % over the deltas. Under the long load there are
at least 0.95 deltas a second, no request fails, no answer is wrong, and in the last third neither
memory nor the file grows by 10 %.

http: the same model with fewer rows. The same requests of raw fields go in turns to a Predictor in
this process and, over one connection, to tools/serve.py with one worker. Then four processes send
requests to the server only. Client and server are Python programs on one machine. So the figures
show what a request costs, not how many a larger installation answers.

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
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import report
from peers import huge_pages, serving_load

from paddlebox.config import load_config, load_slots
from paddlebox.config.models import DnnConfig
from paddlebox.launch import cpu

CONFIG = "configs/dnn_criteo.yaml"
DELTAS = 10
BATCHES = (1, 64)
WARM = 50  # first requests, which are not counted
ROUNDS = 20  # requests/s is the median over these, because other processes may delay a few
GOAL_REQUESTS, GOAL_APPLY, GOAL_MEMORY, GOAL_LOAD, GOAL_DELTAS = 1.0, 0.2, 1.05, 1.1, 0.95


class Drawn:
    """A source of n rows with an embedx each, or of a share of them with changes."""

    def __init__(self, rows: int, version: int, share: float = 1.0) -> None:
        from paddlebox._native import core
        from paddlebox.training.runner import build_runner

        self.config = load_config(CONFIG, ["data.train_files=[x]"])
        self.slots = load_slots(self.config.data.slots)
        self.dense_state = build_runner(self.config, self.slots).dense_state()
        self.meta = {
            "kind": "base" if share == 1 else "delta",
            "version": version,
            "day": 0,
            "pass_number": version,
        }
        self.layout, self.parts = self.config.table.model_dump(mode="json"), {"": self}
        random = np.random.default_rng(version)
        chosen = np.arange(1, rows + 1, dtype=np.uint64)
        if share < 1:
            chosen = np.sort(random.choice(chosen, int(rows * share), replace=False))
        keys = core.sorted_unique_keys(chosen)
        self.feasigns = np.array([core.unmix(int(key)) for key in keys], np.uint64)
        self._random = random

    def dense(self) -> dict[str, np.ndarray]:
        return self.dense_state

    def deleted(self) -> tuple[()]:
        return ()

    def visit(self, take: Callable[[np.ndarray, np.ndarray], None]) -> None:
        dim = self.config.table.embedx_dim
        for first in range(0, len(self.feasigns), 1 << 16):
            chunk = self.feasigns[first : first + (1 << 16)]
            rows = self._random.normal(size=(len(chunk), 9 + dim)).astype(np.float32) * 0.1
            rows[:, 0].view(np.uint32)[:] = 1 << 16  # the row has an embedx
            rows[:, 1] = 9
            rows[:, 2] = 2
            take(chunk, rows)


def peer(source: Drawn, folder: Path) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """The peer: the program with its own table. ids (B, S) int64, dense (B, W)."""
    from paddlebox._native import paddle

    slots = len(source.slots.sparse)
    # As wide as our pooled slot.
    width = source.config.table.embedx_dim + (3 if source.config.model.use_cvm else 1)
    program, startup = paddle.static.Program(), paddle.static.Program()
    paddle.enable_static()
    with paddle.static.program_guard(program, startup):
        ids = paddle.static.data("ids", [-1, slots], "int64")
        dense = paddle.static.data("dense", [-1, source.slots.dense_width], "float32")
        table = paddle.nn.Embedding(len(source.feasigns) + 1, width)
        x = paddle.concat([paddle.reshape(table(ids), [-1, slots * width]), dense], axis=1)
        assert isinstance(source.config.model, DnnConfig)
        for hidden in source.config.model.hidden:
            x = paddle.nn.functional.relu(paddle.nn.Linear(x.shape[-1], hidden)(x))
        out = paddle.nn.functional.sigmoid(paddle.nn.Linear(x.shape[-1], 1)(x))
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(startup)
    paddle.static.save_inference_model(
        str(folder / "peer"), [ids, dense], [out], executor, program=program
    )
    config = paddle.inference.Config(str(folder / "peer.json"), str(folder / "peer.pdiparams"))
    config.disable_gpu()
    config.disable_glog_info()
    config.disable_mkldnn()
    config.set_cpu_math_library_num_threads(1)
    runner = paddle.inference.create_predictor(config)
    inputs = runner.get_input_handle("ids"), runner.get_input_handle("dense")
    output = runner.get_output_handle(runner.get_output_names()[0])

    def run(ids: np.ndarray, dense: np.ndarray) -> np.ndarray:
        inputs[0].copy_from_cpu(ids)
        inputs[1].copy_from_cpu(dense)
        runner.run()
        return np.asarray(output.copy_to_cpu())

    return run


def rates(seconds: list[float]) -> list[float]:
    """Requests/s of each round."""
    return [float(len(one) / one.sum()) for one in np.array_split(np.array(seconds), ROUNDS)]


def percentiles(seconds: list[float]) -> dict[str, float]:
    return {
        "p50_us": float(np.percentile(seconds, 50) * 1e6),
        "p99_us": float(np.percentile(seconds, 99) * 1e6),
    }


def measured(seconds: list[float]) -> dict[str, Any]:
    return {"requests_per_s": report.spread(rates(seconds)), **percentiles(seconds)}


def anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def speed(predictor: Any, run: Any, source: Drawn, requests: int) -> dict[str, Any]:
    """Figures by batch size: ours, the peer's, and ours from raw fields."""
    random = np.random.default_rng(7)
    slots, width = len(source.slots.sparse), source.slots.dense_width
    columns = [slot.column or slot.name for slot in source.slots.sparse]
    figures: dict[str, dict[str, Any]] = {}
    for batch in BATCHES:
        offsets = np.arange(batch * slots + 1, dtype=np.int32)
        drawn = [
            (
                random.integers(1, len(source.feasigns) + 1, (batch, slots)),
                random.random((batch, width), np.float32),
            )
            for _ in range(requests + WARM)
        ]
        times: dict[str, list[float]] = {"own": [], "peer": [], "raw": []}

        own = predictor.predict_feasigns
        for number, (ids, dense) in enumerate(drawn):
            feasigns = ids.reshape(-1).astype(np.uint64)  # the type that our predictor takes
            both = (("own", own, (feasigns, offsets, dense)), ("peer", run, (ids, dense)))
            for name, call, request in both if number % 2 else both[::-1]:
                times[name].append(timed(call, *request))
        for ids, _ in drawn:
            fields = [
                {c: f"{v:x}" if c[0] == "C" else int(v) for c, v in zip(columns, row, strict=True)}
                for row in ids
            ]
            times["raw"].append(timed(predictor.predict, fields))
        times = {name: taken[WARM:] for name, taken in times.items()}
        figures[str(batch)] = {name: measured(taken) for name, taken in times.items()}
        figures[str(batch)]["of_peer"] = report.ratios(rates(times["own"]), rates(times["peer"]))
    return figures


def timed(call: Callable[..., Any], *arguments: Any) -> float:
    started = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - started


def apply_one(path: Path, rows: int, version: int) -> None:
    """Applies one delta and prints the seconds that it took. Runs in its own process."""
    from paddlebox.serving.writer import Writer

    source = Drawn(rows, version, 0.05)
    started = time.perf_counter()
    with Writer(path) as writer:
        layers = len(writer.apply(source).layers)
    print(json.dumps({"seconds": time.perf_counter() - started, "layers": layers}))


def follow(predictor: Any, path: Path, rows: int, whole_s: float) -> dict[str, Any]:
    """Applies deltas from another process. Returns their times and the memory of this one."""
    form = predictor.generation
    ids = np.arange(1, form.slots * 64 + 1, dtype=np.uint64)
    offsets = np.arange(form.slots * 64 + 1, dtype=np.int32)
    dense = np.zeros((64, form.dense_width), np.float32)
    taken, layers, memory = [], [], []
    for version in range(2, 2 + DELTAS):
        done = subprocess.run(
            [sys.executable, __file__, "export", "--apply", str(path), str(rows), str(version)],
            capture_output=True,
            text=True,
            check=True,
        )
        result = json.loads(done.stdout.strip().splitlines()[-1])
        taken.append(result["seconds"])
        layers.append(result["layers"])
        predictor.refresh()
        assert predictor.version == version
        predictor.predict_feasigns(ids, offsets, dense)
        with predictor._using() as generation:
            resident = generation.models[0].rows.table.resident_bytes  # has its own limit
        memory.append(anonymous_bytes() - resident)
    return {
        "export_s": whole_s,
        "apply_s": taken,
        "layers": layers,
        "anonymous_bytes": memory,
        "file_bytes": path.stat().st_size,
    }


def export_file(options: argparse.Namespace, folder: Path) -> report.Found:
    """Measure predictions from an export file, deltas, and the long load."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    from paddlebox.serving import Predictor
    from paddlebox.serving.writer import export

    path = folder / "m.export"
    source = Drawn(options.rows, 1)
    started = time.perf_counter()
    export(source, path)
    whole_s = time.perf_counter() - started
    with Predictor(path, follow_s=0) as predictor:
        predictor.warm()  # the peer has read its table, too
        figures = speed(predictor, peer(source, folder), source, options.requests)
        figures["on_huge_pages"] = huge_pages.share()
        figures["deltas"] = follow(predictor, path, options.rows, whole_s)
    if options.load_minutes:
        figures["load"] = serving_load.load(
            folder / "load.export", source, options.load_minutes, anonymous_bytes
        )
    memory = figures["deltas"]["anonymous_bytes"]
    growth = memory[-1] / memory[0]
    shares = [taken / whole_s for taken in figures["deltas"]["apply_s"]]
    for batch in map(str, BATCHES):
        for one in ("own", "peer", "raw"):
            f = figures[batch][one]
            print(
                f"batch {batch:>2} {one:5} {f['requests_per_s']['median']:7.0f} requests/s, "
                f"p50 {f['p50_us']:6.0f} us, p99 {f['p99_us']:6.0f} us"
            )
    taken = report.spread(figures["deltas"]["apply_s"])
    print(f"export {whole_s:.2f} s, a delta of 5 % {taken}, memory {memory}")
    goals = [
        *(
            report.at_least(
                f"requests/s of the peer's, batch {batch}",
                figures[str(batch)]["of_peer"],
                GOAL_REQUESTS,
            )
            for batch in BATCHES
        ),
        report.at_most("a delta's time of the export's", shares, GOAL_APPLY),
        report.at_most("memory after of before", growth, GOAL_MEMORY),
    ]
    if "load" in figures:
        goals += load_goals(figures["load"])
    return figures, goals


def load_goals(load: dict[str, Any]) -> list[report.Goal]:
    memory = serving_load.growth(load["anonymous_bytes"])
    size = serving_load.growth(load["file_bytes"])
    print(
        f"load of {load['minutes']} min: {load['requests']} requests, p50 {load['p50_us']:.0f} us, "
        f"p99 {load['p99_us']:.0f} us, max {load['max_us']:.0f} us; {load['deltas']} deltas of "
        f"{report.spread(load['apply_s'])} s, {load['versions_seen']} versions seen; memory "
        f"{max(load['anonymous_bytes'])}, file {max(load['file_bytes'])} bytes at most"
    )
    every = load["deltas"] / (60 * load["minutes"] / serving_load.EVERY_S)
    return [
        report.at_least("load: deltas, of one every second", every, GOAL_DELTAS),
        report.at_most("load: failed requests", load["failed"], 0),
        report.at_most("load: wrong answers", load["wrong"], 0),
        report.at_most("load: memory in the last third", memory, GOAL_LOAD),
        report.at_most("load: the file in the last third", size, GOAL_LOAD),
    ]


# ---- HTTP

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


def added(process: list[float], over: list[float]) -> list[float]:
    """The milliseconds that HTTP adds to the median of each round."""
    rounds = (np.array_split(np.array(seconds), ROUNDS) for seconds in (process, over))
    return [float(1e3 * (np.median(b) - np.median(a))) for a, b in zip(*rounds, strict=True)]


def over_http(options: argparse.Namespace, folder: Path) -> report.Found:
    """Measure the same requests in the process, over HTTP, and of several clients."""
    from paddlebox.serving import Predictor
    from paddlebox.serving.writer import export

    figures: dict[str, Any] = {}
    path = folder / "m.export"
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
            figures[str(batch)] = {one: percentiles(taken) for one, taken in times.items()}
            figures[str(batch)]["added_ms"] = added(times["process"], times["http"])
            figures[str(batch)]["clients"] = at_once(port, requests)
    finally:
        server.terminate()
        server.wait()
    for size, found in figures.items():
        print(f"batch {size:>2}: {json.dumps(found)}")
    goals = [report.at_most("ms that HTTP adds, p50", figures["1"]["added_ms"], GOAL_ADDED_MS)]
    return figures, goals


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
    return {"requests_per_s": rate, **percentiles([s for one in taken for s in one[WARM:]])}


PARTS: dict[str, report.Part] = {"export": export_file, "http": over_http}


def main() -> int:
    parser, of = report.parts("serving", __doc__, PARTS)
    for name, rows, requests in (("export", 2_000_000, 2000), ("http", 200_000, 1000)):
        of[name].add_argument("--rows", type=int, default=rows)
        of[name].add_argument("--requests", type=int, default=requests)
    export = of["export"]
    export.add_argument("--load-minutes", type=float, default=10.0, help="0: no long load")
    export.add_argument("--apply", nargs=3, metavar=("FILE", "ROWS", "VERSION"), help="1 delta")
    export.add_argument("--write", nargs=3, metavar=("FILE", "ROWS", "SECONDS"), help="deltas")
    options = parser.parse_args()
    if options.part == "export":
        huge_pages.use_here()
    cpu.apply(load_config(CONFIG, ["data.train_files=[x]"]).trainer.program, 1)
    os.environ["OMP_NUM_THREADS"] = "1"
    if getattr(options, "apply", None):
        apply_one(Path(options.apply[0]), int(options.apply[1]), int(options.apply[2]))
        return 0
    if getattr(options, "write", None):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))  # all cores, not only the reader's
        drawn = Drawn(int(options.write[1]), 1)
        serving_load.write_versions(Path(options.write[0]), drawn, float(options.write[2]))
        return 0
    hidden = ("part", "scratch", "apply", "write")
    return report.timed(options, lambda at: PARTS[options.part](options, at), hidden=hidden)


if __name__ == "__main__":
    report.run(main)
