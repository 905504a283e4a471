"""The subjects of hot_path.py, which pull and push: our table, bounds and peers. See `turns`.

A turn is one walk over all batches; slow peers do a third of the walk per turn. It returns seconds
per batch of the pull, of the push, and of other parts of the subject. The walk comes after another
one over the same batches that is not timed: in the turns of the others, the rows have left the
caches. A peer first tries its candidates, which are ways to do the same work, and then takes turns
with the fastest.
"""

from __future__ import annotations

import ctypes
import gc
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from peers import batches, compiled, turns
from peers.batches import Batch, Setting

LEARNING_RATE, EPSILON = 0.05, 1e-8
Turn = dict[str, list[float]]


def now() -> float:
    return time.perf_counter()


class Base:
    """Holds rows, dim and threads and, after `prepare`, the batches of a setting."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.rows, self.dim = int(settings["rows"]), int(settings["dim"])
        self.threads = int(settings["threads"])
        self.folder = Path(settings["folder"])
        self.batches: list[Batch] = []

    def read_batches(self, setting: dict[str, Any], count: int) -> Setting:
        self.batches = batches.load(self.folder, setting["name"], count)
        return Setting(**setting)


class Own(Base):
    """paddlebox's table, with accessor, counts and CVM."""

    def __init__(self, settings: dict[str, Any], weight_decay: float = 0.0) -> None:
        super().__init__(settings)
        import paddlebox
        from paddlebox._native import core
        from paddlebox.config import TableConfig
        from paddlebox.launch import cpu
        from paddlebox.store.table import sorted_unique_keys

        cpu.keep_heaps_small()  # as in tools/train.py: the memory of a plan is used again
        self.core = core
        # Threshold 0: every row has its D weights, like the peers' rows.
        config = TableConfig(
            name="hot", embedx_dim=self.dim, embedx_threshold=0, weight_decay=weight_decay
        )
        keys = sorted_unique_keys(np.arange(1, self.rows + 1, dtype=np.uint64))
        probe = paddlebox.Table(config, mem_budget_bytes=1 << 20)
        per_row = probe.first.native.pass_bytes_per_row
        probe.close()
        self.table = paddlebox.Table(
            config,
            hbm_budget_bytes=3 * (self.rows + 1) * per_row,
            mem_budget_bytes=1 << 20,
            threads=self.threads,
        )
        self.staged = self.table.stage(keys)
        self.table.begin(self.staged)
        self.native = self.table.first.native
        self.shows = np.zeros(self.rows)

    def about(self) -> dict[str, Any]:
        return {"row_bytes": self.table.first.row_bytes, "vector_path": self.core.vector_path()}

    def prepare(self, setting: dict[str, Any], count: int) -> str:
        kind = self.read_batches(setting, count)
        rng = np.random.default_rng(1)
        width = 3 + self.dim
        self.slots = kind.slots
        self.out = np.zeros((kind.segments, width), np.float32)
        self.grad = rng.standard_normal((kind.segments, width)).astype(np.float32) * 1e-4
        clicks = (rng.random(kind.instances) < 0.2).astype(np.float32)
        self.show_click = np.stack([np.ones_like(clicks), clicks], axis=1)
        self.plans = [self.plan(batch) for batch in self.batches]
        return "fused"

    def plan(self, batch: Batch, factors: Any = None) -> Any:
        return self.native.build_plan(batch.ids, batch.offsets, self.staged.stamp, factors)

    def pull(self, batch: Batch) -> None:
        self.native.pull_pooled(batch.ids, batch.offsets, self.slots, True, self.out)

    def push(self, batch: Batch, plan: Any) -> None:
        self.native.push_pooled(
            batch.ids, batch.offsets, self.slots, True, self.show_click, plan, self.grad
        )

    def turn(self) -> Turn:
        kinds = ("pull", "push", "both", "planned", "plan", "plan with factors")
        seconds: Turn = {kind: [] for kind in kinds}
        count = len(self.batches)
        for batch, plan in zip(self.batches, self.plans, strict=True):
            self.pull(batch)
            self.push(batch, plan)
        for number, (batch, plan) in enumerate(zip(self.batches, self.plans, strict=True)):
            t0 = now()
            self.pull(batch)
            t1 = now()
            self.push(batch, plan)
            t2 = now()
            seconds["pull"].append(t1 - t0)
            seconds["push"].append(t2 - t1)
            seconds["both"].append(t2 - t0)
            # With the plan made on the same core; in a run, the feeder makes it elsewhere. The
            # batch is the one at the other end of the walk. In a second walk, all rows would be
            # warmer than in the first.
            other = self.batches[(number + count // 2) % count]
            t0 = now()
            made = self.plan(other)
            self.pull(other)
            self.push(other, made)
            seconds["planned"].append(now() - t0)
        for batch in self.batches:
            factors = np.full(len(batch.ids), 0.5, np.float32)
            t0 = now()
            self.plan(batch)
            t1 = now()
            self.plan(batch, factors)
            seconds["plan"].append(t1 - t0)
            seconds["plan with factors"].append(now() - t1)
        for batch in self.batches:
            self.shows += 3 * np.bincount(batch.ids, minlength=self.rows)
        return seconds

    def check(self) -> float:
        """Largest difference between the pulled shows and those that were pushed."""
        worst = 0.0
        for batch in self.batches:
            self.pull(batch)
            sums = np.add.reduceat(self.shows[batch.ids], batch.offsets[:-1])
            worst = max(worst, float(np.abs(self.out[:, 0] - np.log1p(sums)).max()))
        return worst


class Bounds(Base):
    """A plain gather of the ids at the pulled width, a plain update of the unique rows, and an
    update that also reads the gradients, as every push must."""

    AHEAD = (16, 32, 64)

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        self.width, floats = 3 + self.dim, int(settings["row_bytes"]) // 4
        self.library = compiled.compiled(
            "bounds.cc", self.folder, [f"-DWIDTH={self.width}", f"-DROW_FLOATS={floats}"]
        )
        self.memory = compiled.huge_array(
            self.library, self.rows * max(self.width, floats), np.float32
        )

    def prepare(self, setting: dict[str, Any], count: int) -> str:
        kind = self.read_batches(setting, count)
        most = max(len(batch.ids) for batch in self.batches)
        self.out = compiled.huge_array(self.library, most * self.width, np.float32)
        self.grad = compiled.huge_array(self.library, kind.segments * self.width, np.float32)
        self.occurrences = [occurrences(batch) for batch in self.batches]
        return "bare loops"

    def turn(self) -> Turn:
        # Each of the three loops uses the prefetch distance that is fastest in this turn. As in a
        # step, the rows of a batch are gathered and then updated. In a walk that only gathers, the
        # output would always be in the cache, unlike in a step.
        # The first of the walks is not timed.
        best: Turn = {}
        for walk, ahead in enumerate(map(ctypes.c_int64, (self.AHEAD[0], *self.AHEAD))):
            seconds: Turn = {"pull": [], "push": [], "push+": []}
            for batch, found in zip(self.batches, self.occurrences, strict=True):
                rows = len(batch.unique)
                gather = ("Gather", batch.ids, len(batch.ids), self.out, ahead)
                seconds["pull"].append(self.timed(*gather))
                seconds["push"].append(self.timed("Update", batch.unique, rows, ahead))
                self.timed(*gather)
                merge = ("UpdateMerged", batch.unique, *found, rows, self.grad, ahead)
                seconds["push+"].append(self.timed(*merge))
            for name, values in seconds.items() if walk else ():
                best[name] = min(best.get(name, values), values, key=statistics.median)
        return best

    def timed(self, loop: str, *arguments: Any) -> float:
        given = [
            compiled.pointer(a) if isinstance(a, np.ndarray) else a
            for a in (self.memory, *arguments)
        ]
        given = [ctypes.c_int64(a) if isinstance(a, int) else a for a in given]
        call = getattr(self.library, loop)
        started = now()
        call(*given, ctypes.c_int(self.threads))
        return now() - started


def occurrences(batch: Batch) -> tuple[batches.Ids, batches.Ids]:
    """The segments in which each unique row occurs: starts (U + 1), and the segments (N)."""
    counts = np.diff(batch.offsets)
    segments = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    order = np.argsort(batch.ids, kind="stable")
    starts = np.searchsorted(batch.ids[order], batch.unique)
    return np.append(starts, len(order)).astype(np.int32), segments[order]


class Model(Protocol):
    """One candidate of a peer. `feed` converts a batch for `pull` and is not timed."""

    def feed(self, batch: Batch) -> Any: ...
    def pull(self, fed: Any) -> Any: ...
    def push(self, pulled: Any) -> None: ...


class Peer(Base):
    """A library that takes turns with the fastest of its candidates."""

    torch: Any = None  # set for libraries that use PyTorch
    model: Model | None = None
    turns_a_walk = 1
    _next = 0  # next part of the walk

    def candidates(self, setting: Setting) -> dict[str, Callable[[], Model]]:
        raise NotImplementedError

    def prepare(self, setting: dict[str, Any], count: int) -> str:
        kind = self.read_batches(setting, count)
        self.model = None  # frees its memory
        candidates = self.candidates(kind)
        rates = {name: self.trial(make) for name, make in candidates.items()}
        fastest = min(rates, key=lambda name: rates[name])
        if fastest != list(candidates)[-1]:  # the last candidate still exists
            self.take(candidates[fastest])
        return f"{fastest} ({', '.join(f'{n} {s * 1e3:.2f} ms' for n, s in rates.items())})"

    def take(self, make: Callable[[], Model]) -> None:
        self.model = None
        gc.collect()  # frees cycles of objects: memory may not suffice for two models
        self.model = make()
        self.fed = [self.model.feed(batch) for batch in self.batches]

    def trial(self, make: Callable[[], Model]) -> float:
        self.take(make)
        turns_taken = [self.turn()["both"] for _ in range(2)]
        return statistics.median(turns_taken[1])

    def turn(self) -> Turn:
        assert self.model is not None
        seconds: Turn = {"pull": [], "push": [], "both": []}
        part = self.fed[self._next :: self.turns_a_walk]
        self._next = (self._next + 1) % self.turns_a_walk
        for fed in part:
            self.model.push(self.model.pull(fed))
        for fed in part:
            t0 = now()
            pulled = self.model.pull(fed)
            t1 = now()
            self.model.push(pulled)
            t2 = now()
            seconds["pull"].append(t1 - t0)
            seconds["push"].append(t2 - t1)
            seconds["both"].append(t2 - t0)
        return seconds


class Torch(Peer):
    """EmbeddingBag(sparse=True, mode="sum") and torch.optim.Adagrad over one table."""

    turns_a_walk = 3

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        import torch

        self.torch = torch
        torch.set_num_threads(self.threads)

    def candidates(self, setting: Setting) -> dict[str, Callable[[], Model]]:
        types = {"int64 ids": self.torch.int64, "int32 ids": self.torch.int32}
        return {name: partial(TorchModel, self, setting, dtype) for name, dtype in types.items()}


class TorchModel:
    def __init__(self, peer: Torch, setting: Setting, dtype: Any) -> None:
        torch = self.torch = peer.torch
        self.dtype = dtype
        self.bag = torch.nn.EmbeddingBag(peer.rows, peer.dim, mode="sum", sparse=True)
        self.optimizer = torch.optim.Adagrad(self.bag.parameters(), lr=LEARNING_RATE)
        self.grad = torch.randn(setting.segments, peer.dim) * 1e-4

    def feed(self, batch: Batch) -> Any:
        tensors = (self.torch.from_numpy(a).to(self.dtype) for a in (batch.ids, batch.offsets[:-1]))
        return tuple(tensors)

    def pull(self, fed: Any) -> Any:
        return self.bag(*fed)

    def push(self, pulled: Any) -> None:
        pulled.backward(self.grad)
        self.optimizer.step()
        self.optimizer.zero_grad()


class Fbgemm(Peer):
    """SplitTableBatchedEmbeddingBagsCodegen on the host. Its backward applies the rule as well.

    settings["kernels"]: through its operators, without the module and autograd, which a step needs.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        import torch
        from fbgemm_gpu import split_table_batched_embeddings_ops_training as fbgemm

        self.torch, self.fbgemm = torch, fbgemm
        self.exact = bool(settings.get("exact"))
        self.maker = FbgemmKernels if settings.get("kernels") else FbgemmModel
        torch.set_num_threads(self.threads)

    def candidates(self, setting: Setting) -> dict[str, Callable[[], Model]]:
        # One table with a feature for each slot was slower than both by a third.
        return {
            f"{tables}, {ids} ids": partial(
                self.maker, self, setting, tables == "a table a slot", getattr(self.torch, ids)
            )
            for tables in ("one table", "a table a slot")
            for ids in ("int64", "int32")
        }


class FbgemmModel:
    def __init__(self, peer: Fbgemm, setting: Setting, by_slot: bool, dtype: Any) -> None:
        torch, fbgemm = peer.torch, peer.fbgemm
        self.torch, self.dtype, self.by_slot = torch, dtype, by_slot
        place = (fbgemm.EmbeddingLocation.HOST, fbgemm.ComputeDevice.CPU)
        tables = setting.slots if by_slot else 1
        rows = setting.rows_per_slot if by_slot else setting.rows
        rules = fbgemm.OptimType
        self.bags = fbgemm.SplitTableBatchedEmbeddingBagsCodegen(
            [(rows, peer.dim, *place)] * tables,
            optimizer=rules.EXACT_ADAGRAD if peer.exact else rules.EXACT_ROWWISE_ADAGRAD,
            learning_rate=LEARNING_RATE,
            eps=EPSILON,
            pooling_mode=fbgemm.PoolingMode.SUM,
        )
        self.bags.init_embedding_weights_uniform(-0.01, 0.01)
        self.grad = torch.randn(setting.segments // tables, tables * peer.dim) * 1e-4

    def feed(self, batch: Batch) -> Any:
        ids = batch.slot_ids if self.by_slot else batch.ids
        offsets = batch.slot_offsets if self.by_slot else batch.offsets
        return tuple(self.torch.from_numpy(a).to(self.dtype) for a in (ids, offsets))

    def pull(self, fed: Any) -> Any:
        return self.bags(*fed)

    def push(self, pulled: Any) -> None:
        pulled.backward(self.grad)


class FbgemmKernels(FbgemmModel):
    """The operators that the module calls, with the same bits as results. They take 0.86 to 0.92 of
    the module's time."""

    def __init__(self, peer: Fbgemm, setting: Setting, by_slot: bool, dtype: Any) -> None:
        super().__init__(peer, setting, by_slot, dtype)
        operators = self.torch.ops.fbgemm
        rule = "adagrad" if peer.exact else "rowwise_adagrad"
        self.forward = operators.split_embedding_codegen_forward_cpu
        self.backward = getattr(operators, f"split_embedding_backward_codegen_{rule}_cpu")
        self.pooling = int(peer.fbgemm.PoolingMode.SUM)
        self.weights = self.bags.weights_host.detach()

    def pull(self, fed: Any) -> Any:
        bags = self.bags
        self.out = self.forward(
            *(self.weights, bags.weights_offsets, bags.D_offsets, bags.total_D),
            *(bags.hash_size_cumsum, *fed, self.pooling, None, 0),
        )
        return fed

    def push(self, pulled: Any) -> None:
        bags = self.bags
        momentum = (bags.momentum1_host, bags.momentum1_placements, bags.momentum1_offsets)
        self.backward(
            *(self.grad, self.weights, bags.weights_placements, bags.weights_offsets),
            *(bags.D_offsets, bags.max_D, bags.hash_size_cumsum, bags.total_hash_size_bits),
            *(*pulled, self.pooling, None, bags.stochastic_rounding, *momentum),
            *(bags.learning_rate_tensor, EPSILON),
        )


class Paddle(Peer):
    """nn.Embedding(sparse=True), a sum over the ids of a slot, and Adagrad, in dygraph."""

    turns_a_walk = 3

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        import paddle

        self.paddle = paddle

    def candidates(self, setting: Setting) -> dict[str, Callable[[], Model]]:
        # Padding slots to the longest and summing over an axis was slower by 15 to 30 %.
        name = "no sum" if setting.most == 1 else "segment_sum"
        return {name: partial(PaddleModel, self, setting)}


class PaddleModel:
    def __init__(self, peer: Paddle, setting: Setting) -> None:
        paddle = self.paddle = peer.paddle
        self.sums = setting.most > 1
        self.embedding = paddle.nn.Embedding(peer.rows, peer.dim, sparse=True)
        self.optimizer = paddle.optimizer.Adagrad(
            LEARNING_RATE, parameters=self.embedding.parameters()
        )
        self.grad = paddle.randn([setting.segments, peer.dim]) * 1e-4

    def feed(self, batch: Batch) -> Any:
        counts = np.diff(batch.offsets)
        segments = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        return self.paddle.to_tensor(batch.ids), self.paddle.to_tensor(segments)

    def pull(self, fed: Any) -> Any:
        ids, segments = fed
        rows = self.embedding(ids)
        return self.paddle.geometric.segment_sum(rows, segments) if self.sums else rows

    def push(self, pulled: Any) -> None:
        self.paddle.autograd.backward([pulled], [self.grad])
        self.optimizer.step()
        self.optimizer.clear_grad()


if __name__ == "__main__":
    turns.serve(
        {
            "paddlebox": Own,
            "weight_decay": lambda settings: Own(settings, weight_decay=1e-3),
            "bounds": Bounds,
            "torch": Torch,
            "fbgemm_rowwise": lambda settings: Fbgemm({**settings, "kernels": True}),
            "fbgemm_exact": lambda settings: Fbgemm({**settings, "kernels": True, "exact": True}),
            "paddle": Paddle,
        }
    )
    sys.exit(0)
