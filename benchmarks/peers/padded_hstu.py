"""The subjects of the speed part of sequences.py: HSTU over users, jagged and padded. See `turns`.

Both are static programs of the same layers with the same parameters, inputs and optimizer. `padded`
has a place for each event up to the longest possible user, and computes the attention with Paddle's
operators.

Letters: U = users of a batch, N = places of a user, F = features of an event, H = heads, A = width
of a head.
"""

from __future__ import annotations

import resource
import time
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from peers import turns


def lengths_of(settings: dict[str, Any], random: np.random.Generator) -> np.ndarray:
    """(U) exponential lengths, scaled to a mean of a quarter of N, to the rounding of a user."""
    drawn, most = random.exponential(1.0, settings["users"]), settings["most"]
    low, high = 0.0, 4.0 * most  # factors of too short and of too long users
    for _ in range(50):
        factor = (low + high) / 2
        lengths = np.clip(np.round(factor * drawn), 1, most)
        low, high = (factor, high) if lengths.mean() < most / 4 else (low, factor)
    return np.asarray(np.clip(np.round(high * drawn), 1, most), np.int64)


class _Subject(ABC):
    """settings: users, most, features, model, batches, threads."""

    @abstractmethod
    def feed(self, lengths: np.ndarray, features: Any, seconds: Any, clicks: Any) -> dict[str, Any]:
        """What a step of these users is fed."""

    @abstractmethod
    def loss(self, model: Any) -> Any:
        """The mean loss of the events."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from paddlebox.config import Program
        from paddlebox.launch import cpu

        cpu.apply(Program.PIR, dense_threads=settings["threads"])
        from paddlebox import ops

        self.settings, self.paddle = settings, ops.paddle
        self.paddle.enable_static()
        random = np.random.default_rng(5)
        self.feeds = []
        self.events = 0
        for _ in range(settings["batches"]):
            lengths = lengths_of(settings, random)
            count = int(lengths.sum())
            self.events += count
            features = random.normal(size=(count, settings["features"])).astype(np.float32)
            seconds = np.concatenate([np.cumsum(random.integers(1, 9999, n)) for n in lengths])
            clicks = (random.random((count, 1)) < 0.3).astype(np.float32)
            self.feeds.append(self.feed(lengths, features, seconds, clicks))
        self._build()

    def _build(self) -> None:
        paddle = self.paddle
        self.program, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(self.program, startup), paddle.utils.unique_name.guard():
            loss = self.loss(self._model())
            self.fetch = [loss]
            paddle.optimizer.Adam(1e-3).minimize(loss)
        self.exe = paddle.static.Executor(paddle.CPUPlace())
        self.exe.run(startup)
        random = np.random.default_rng(6)
        for name, tensor in sorted(self.program.state_dict("param").items()):
            value = random.normal(0, 0.1, np.shape(np.array(tensor))).astype(np.float32)
            scope = paddle.static.global_scope()
            scope.find_var(name).get_tensor().set(value, paddle.CPUPlace())

    def _model(self) -> Any:
        from paddlebox.config import Config
        from paddlebox.models import create_model

        fields = {
            "name": "speed",
            "model": self.settings["model"],
            "data": {
                "format": "csv",
                "slots": "slots.yaml",
                "train_files": ["none"],
                "sequences": {"user": "user"},
            },
        }
        config = Config.model_validate(fields, strict=False).model
        model = create_model(
            config, slots=1, embedx_dim=self.settings["features"] - 1, dense_width=0
        )
        model.sparse = self.paddle.nn.Identity()  # the features are fed
        return model

    def data(self, name: str, shape: list[int], dtype: str = "float32") -> Any:
        return self.paddle.static.data(name, shape, dtype)

    def first_loss(self) -> float:
        (loss,) = self.exe.run(self.program, feed=self.feeds[0], fetch_list=self.fetch)
        return float(loss)

    def turn(self) -> dict[str, float]:
        """One walk over the batches: events/s, and the peak of the process's memory in bytes."""
        begin = time.perf_counter()
        for feed in self.feeds:
            self.exe.run(self.program, feed=feed, fetch_list=self.fetch)
        seconds = time.perf_counter() - begin
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"rate": self.events / seconds, "peak_bytes": peak}

    def mean_length(self) -> float:
        """Events of a user."""
        return float(self.events / (self.settings["batches"] * self.settings["users"]))

    def resident(self) -> int:
        """Bytes of the process before its first step."""
        with open("/proc/self/status") as status:
            line = next(line for line in status if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024


class Jagged(_Subject):
    def feed(self, lengths: np.ndarray, features: Any, seconds: Any, clicks: Any) -> dict[str, Any]:
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return {"features": features[:, None], "offsets": offsets, "times": seconds[:, None],
                "clicks": clicks}  # fmt: skip

    def loss(self, model: Any) -> Any:
        from paddlebox.nn import log_loss

        features = self.data("features", [-1, 1, self.settings["features"]])
        clicks = self.data("clicks", [-1, 1])
        offsets = self.data("offsets", [-1], "int32")
        times = self.data("times", [-1, 1], "int64")
        model.sparse.forward = lambda *_: features
        return log_loss(
            model(None, None, None, None, None, offsets, times, None, None, clicks), clicks
        )


class Padded(_Subject):
    def feed(self, lengths: np.ndarray, features: Any, seconds: Any, clicks: Any) -> dict[str, Any]:
        users, most = len(lengths), self.settings["most"]
        there = np.arange(most) < lengths[:, None]
        made = {}
        for name, values in (("features", features), ("clicks", clicks)):
            made[name] = np.zeros((users, most, values.shape[1]), np.float32)
            made[name][there] = values
        times = np.zeros((users, most), np.float32)
        times[there] = seconds
        return made | {"times": times, "mask": there.astype(np.float32)[:, :, None]}

    def loss(self, model: Any) -> Any:
        from paddlebox.nn import log_loss

        paddle, most = self.paddle, self.settings["most"]
        features = self.data("features", [-1, most, self.settings["features"]])
        clicks, mask = self.data("clicks", [-1, most, 1]), self.data("mask", [-1, most, 1])
        tokens = _PaddedTokens(paddle, self.data("times", [-1, most]), mask, most, self.settings)
        x = model.event(features)
        width = self.settings["model"]["width"]
        both = paddle.reshape(paddle.concat([x + model.action(clicks), x], axis=0), [-1, width])
        y = paddle.split(model.encoder(both, tokens), 2, axis=0)[1]
        y = paddle.reshape(y, [-1, most, width])
        logits = model.mlp(paddle.concat([features, y], axis=2))
        each = log_loss(logits, clicks, reduction="none") * mask
        return paddle.sum(each) / paddle.sum(mask)


class _PaddedTokens:
    """Takes the place of `paddlebox.nn.hstu.Tokens`. q, k and v are (2 U * N, H * A): the places of
    the events and then those of the targets."""

    def __init__(
        self, paddle: Any, times: Any, mask: Any, most: int, settings: dict[str, Any]
    ) -> None:
        self.paddle, self.most = paddle, most
        at = np.arange(most)
        distance = np.clip(at[:, None] - at, 0, settings["model"]["max_length"] - 1)
        self.distance = paddle.assign(distance.reshape(-1).astype(np.int32))
        later = paddle.assign((at[:, None] >= at).astype(np.float32))
        there = paddle.reshape(mask, [-1, 1, 1, most])
        self.seen_by_events = there * later
        self.seen_by_targets = there * paddle.assign((at[:, None] > at).astype(np.float32))
        passed = paddle.unsqueeze(times, 2) - paddle.unsqueeze(times, 1)
        octave = paddle.floor(paddle.log2(paddle.clip(passed, min=1.0)))
        half = paddle.cast(passed >= 1.5 * paddle.exp(octave * float(np.log(2))), "float32")
        bucket = paddle.where(passed >= 1, 1 + 2 * octave + half, paddle.zeros_like(passed))
        most_bucket = settings["model"]["time_buckets"] - 1
        self.buckets = paddle.reshape(
            paddle.cast(paddle.clip(bucket, max=most_bucket), "int32"), [-1]
        )

    def causal(self, q: Any, k: Any, v: Any, form: Any) -> Any:
        """form: a `paddlebox.nn.rows.Pointwise`, computed in float32."""
        heads, divisor = form.heads, form.divisor
        position_bias, time_bias = form.position_bias, form.time_bias
        paddle, most = self.paddle, self.most
        width = q.shape[1] // heads

        def headed(x: Any) -> Any:
            return paddle.transpose(paddle.reshape(x, [-1, most, heads, width]), [0, 2, 1, 3])

        silu = paddle.nn.functional.silu
        (qe, qt), (ke, kt), (ve, vt) = (paddle.split(headed(x), 2, axis=0) for x in (q, k, v))
        of_positions = paddle.reshape(
            paddle.gather(position_bias, self.distance, axis=1), [1, heads, most, most]
        )
        of_times = paddle.reshape(
            paddle.gather(time_bias, self.buckets, axis=1), [heads, -1, most, most]
        )
        bias = paddle.transpose(of_times, [1, 0, 2, 3]) + of_positions
        found = []
        for query, seen in ((qe, self.seen_by_events), (qt, self.seen_by_targets)):
            scores = paddle.matmul(query, ke, transpose_y=True) + bias
            found.append(paddle.matmul(silu(scores) * seen, ve))
        own = paddle.sum(qt * kt, axis=-1, keepdim=True)
        own = own + paddle.reshape(
            paddle.slice(time_bias, [1], [0], [1]) + paddle.slice(position_bias, [1], [0], [1]),
            [1, heads, 1, 1],
        )
        found[1] = found[1] + silu(own) * vt
        out = paddle.concat(found, axis=0) * (1.0 / divisor)
        return paddle.reshape(paddle.transpose(out, [0, 2, 1, 3]), [-1, heads * width])


if __name__ == "__main__":
    turns.serve({"jagged": Jagged, "padded": Padded})
