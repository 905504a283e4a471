"""What does a prediction cost with the serving library, compared with HTTP?

    python benchmarks/serving_c.py

The model and the requests of raw fields are those of `serving.py http`: 39 sparse slots of one
feasign each, 13 dense features, an MLP of 400-400-400, one instance a request. In turns, each
request goes to a Predictor in this process, over one connection to `paddlebox serve` with one
worker, and through libpaddlebox_serve.so with ONNX Runtime: setting the fields, their transforms,
the rows, and the dense part on one thread. The library is called through ctypes, which takes some
40 calls of Python for the fields of a request; a C program does not pay that.

Goal: the median with the library is at most a third of that over HTTP.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import report
import serving

import paddlebox
from paddlebox.config import load_config
from paddlebox.launch import cpu

GOAL = 1 / 3


class Library:
    """Predicts by the serving library and ONNX Runtime."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        self._c = ctypes.CDLL(f"{paddlebox.__path__[0]}/libpaddlebox_serve.so")
        self._c.paddlebox_batch_new.restype = ctypes.c_void_p
        self._server, self._version = ctypes.c_void_p(), ctypes.c_void_p()
        where = str(path).encode(), None, ctypes.byref(self._server)
        self._check(self._c.paddlebox_open(*where, None))
        self._c.paddlebox_acquire(self._server, ctypes.byref(self._version))
        model, size = ctypes.c_void_p(), ctypes.c_size_t()
        into = ctypes.byref(model), ctypes.byref(size)
        self._check(self._c.paddlebox_onnx(self._version, *into, None))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        content = ctypes.string_at(model, size.value)
        self._session = onnxruntime.InferenceSession(content, options)
        self._room = np.empty((1, self._session.get_inputs()[0].shape[1]), np.float32)
        self._batch = ctypes.c_void_p(self._c.paddlebox_batch_new())

    @staticmethod
    def _check(code: int) -> None:
        if code:
            raise SystemExit(f"the library returned code {code}")

    def fill(self, instance: dict[str, Any]) -> None:
        batch, c = self._batch, self._c
        c.paddlebox_batch_clear(batch)
        c.paddlebox_batch_next(batch)
        for name, value in instance.items():
            if isinstance(value, int):
                c.paddlebox_batch_id(batch, name.encode(), ctypes.c_uint64(value))
            else:
                text = value.encode()
                c.paddlebox_batch_text(batch, name.encode(), text, ctypes.c_size_t(len(text)))
        at, floats = ctypes.c_void_p(self._room.ctypes.data), ctypes.c_size_t(self._room.size)
        self._check(c.paddlebox_fill(self._version, batch, at, floats, None))

    def predict(self, instances: list[dict[str, Any]]) -> Any:
        self.fill(instances[0])
        return self._session.run(None, {"box_input": self._room})[0]

    def close(self) -> None:
        self._c.paddlebox_release(self._version)
        self._c.paddlebox_batch_free(self._batch)
        self._c.paddlebox_close(self._server)


def medians(seconds: list[float]) -> list[float]:
    """The median of each round, in microseconds."""
    rounds = np.array_split(np.array(seconds[serving.WARM :]), serving.ROUNDS)
    return [float(1e6 * np.median(one)) for one in rounds]


def measure(options: argparse.Namespace, folder: Path) -> report.Found:
    from paddlebox.serving import Predictor
    from paddlebox.serving.writer import export

    path, source = folder / "m.export", serving.Drawn(options.rows, 1)
    columns = [slot.column or slot.name for slot in source.slots.sparse]
    export(source, path, onnx=True)
    command = [sys.executable, "tools/serve.py", str(path), "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=report.ROOT)
    library = Library(path)
    times: dict[str, list[float]] = {"process": [], "http": [], "library": [], "fill": []}
    try:
        client = serving.Client(serving.listening(server))
        with Predictor(path, follow_s=0) as predictor:
            calls: dict[str, Callable[[Any], Any]] = {
                "process": predictor.predict,
                "http": client.predict,
                "library": library.predict,
                "fill": lambda request: library.fill(request[0]),
            }
            count = options.requests + serving.WARM
            requests = serving.requests_of(columns, options.rows, 1, count, 1)
            worst = max(
                abs(float(library.predict(one)[0, 0]) - float(predictor.predict(one)[0]))
                for one in requests[:100]
            )
            for number, request in enumerate(requests):
                for one in sorted(calls, reverse=bool(number % 2)):
                    times[one].append(serving.timed(calls[one], request))
    finally:
        server.terminate()
        server.wait()
        library.close()
    figures: dict[str, Any] = {
        one: serving.percentiles(taken[serving.WARM :]) for one, taken in times.items()
    }
    figures["of_http"] = report.ratios(medians(times["library"]), medians(times["http"]))
    figures["largest_difference"] = worst
    for name in times:
        print(f"{name:8} p50 {figures[name]['p50_us']:6.0f} us, p99 {figures[name]['p99_us']:.0f}")
    goal = report.at_most("p50 with the library of that over HTTP", figures["of_http"], GOAL)
    return figures, [goal, report.at_most("difference of probabilities", worst, 1e-5)]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    report.output(parser, "serving_c")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--requests", type=int, default=1000)
    options = parser.parse_args()
    cpu.apply(load_config(serving.CONFIG, ["data.train_files=[x]"]).trainer.program, 1)
    os.environ["OMP_NUM_THREADS"] = "1"
    return report.timed(options, lambda folder: measure(options, folder))


if __name__ == "__main__":
    report.run(main)
