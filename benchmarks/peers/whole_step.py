"""The subjects of end_to_end.py, whole training steps of a CTR model. See `turns`.

Every model feeds pooled slots and dense features into an MLP, with binary cross entropy, Adam for
the MLP and Adagrad for the rows. The MLPs have the same inputs: 16 columns for each slot, which are
16 weights in the peers' tables, and embed_w and 15 weights of embedx in ours. A turn is one walk
over all batches, or over one of several parts of them, and returns the seconds of each step.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import numpy as np

from peers import sparse, turns
from peers.batches import Setting
from peers.sparse import now

LEARNING_RATE = 1e-3


def part_of(count: int, part: int, parts: int) -> range:
    return range(count * part // parts, count * (part + 1) // parts)


class Data:
    """The other inputs of the MLP: dense (B, W), label (B, 1). They are equal for all subjects."""

    def __init__(self, setting: Setting, dense_width: int) -> None:
        rng = np.random.default_rng(7)
        self.dense = rng.standard_normal((setting.instances, dense_width)).astype(np.float32)
        self.label = (rng.random((setting.instances, 1)) < 0.2).astype(np.float32)
        self.show_click = np.concatenate([np.ones_like(self.label), self.label], axis=1)


class Own:
    """Static PIR programs with the CPU settings of training: one with our operator for each type of
    products, and one with an input of the same shape, which takes a gradient, instead of the sparse
    part."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from paddlebox.config import Program
        from paddlebox.launch import cpu

        self.lines = cpu.apply(Program.PIR, dense_threads=int(settings["threads"]))
        self.table = sparse.Own({**settings, "dim": int(settings["dim"]) - 1})
        self.width, self.dense_width = int(settings["dim"]), int(settings["dense"])
        self.hidden = [int(width) for width in settings["hidden"]]

    def prepare(self, setting: dict[str, Any], count: int) -> str:
        from paddlebox import _native, ops

        self.paddle = ops.paddle
        library, _, speeds = _native.core.dense_library()
        self.paddle.enable_static()
        self.table.prepare(setting, count)
        self.setting = Setting(**setting)
        self.exe = self.paddle.static.Executor(self.paddle.CPUPlace())
        float32 = "float32" if speeds["float32"] == "fast" else ""
        products = {"float32": float32, "bfloat16": "bfloat16"}
        if speeds["bfloat16"] == "none":
            del products["bfloat16"]
        self.programs = {
            f"{part}{dtype}": self.build(part == "", of)
            for dtype, of in products.items()
            for part in ("", "replaced ")
        }
        data = Data(self.setting, self.dense_width)
        common = {"dense": data.dense, "label": data.label}
        own = [
            {
                **common,
                "ids": batch.ids,
                "offsets": batch.offsets,
                "show_click": data.show_click,
                "plan": plan,
            }
            for batch, plan in zip(self.table.batches, self.table.plans, strict=True)
        ]
        # A tensor, so that no array is copied in the step.
        replaced = [{**common, "pooled": self.pooled()}] * count
        self.feeds = {name: replaced if "replaced" in name else own for name in self.programs}
        return "; ".join([f"{float32 or 'Paddle'}, {library}", *self.lines])

    def has(self, dtype: str) -> bool:
        """Whether there is a program with products of this type."""
        return dtype in self.programs

    def pooled(self) -> Any:
        """Pooled slots as large as a pull makes them."""
        tensor = self.paddle.base.core.DenseTensor()
        shape = (self.setting.instances, self.setting.slots * self.width)
        values = np.random.default_rng(1).standard_normal(shape).astype(np.float32) * 0.01
        tensor.set(values, self.paddle.CPUPlace())
        return tensor

    def build(self, own: bool, products: str) -> tuple[Any, Any]:
        from paddlebox.nn import MLP, PooledSlots, use_products

        static = self.paddle.static
        width = self.setting.slots * self.width
        program, startup = static.Program(), static.Program()
        program.random_seed = startup.random_seed = 1
        with (
            static.program_guard(program, startup),
            self.paddle.utils.unique_name.guard(f"{own}{products}"),
        ):
            dense = static.data("dense", [-1, self.dense_width], "float32")
            label = static.data("label", [-1, 1], "float32")
            if own:
                layer = PooledSlots(self.setting.slots, self.table.dim, use_cvm=False)
                ids, offsets, plan = (
                    static.data(name, [-1], "int32") for name in ("ids", "offsets", "plan")
                )
                show_click = static.data("show_click", [-1, 2], "float32")
                features = layer(ids, offsets, show_click, plan, dense)
            else:
                pooled = static.data("pooled", [-1, width], "float32")
                pooled.stop_gradient = False
                features = self.paddle.concat([pooled, dense], axis=1)
            mlp = MLP(width + self.dense_width, self.hidden)
            use_products(mlp, products)
            logits = mlp(features)
            loss = self.paddle.nn.functional.binary_cross_entropy_with_logits(logits, label)
            adam = self.paddle.optimizer.Adam(LEARNING_RATE)
            fetch = [loss]
            if own:
                adam.minimize(loss)
            else:
                # One number of the input's gradient is fetched, so that it is not optimised away.
                wanted = [*mlp.parameters(), pooled]
                gradients = static.append_backward(loss, parameter_list=wanted)
                adam.apply_gradients([pair for pair in gradients if not pair[0].is_same(pooled)])
                fetch += [grad[0, 0] for value, grad in gradients if value.is_same(pooled)]
                if len(fetch) != 2:
                    raise RuntimeError("the input has no gradient: the steps are not comparable")
        self.exe.run(startup)
        return program, fetch

    def turn(self, what: str, part: int = 0, parts: int = 1) -> list[float]:
        """what: float32 or bfloat16, also after "replaced " or "planned ": the step makes its dedup
        plan."""
        name = what.removeprefix("planned ")
        program, fetch = self.programs[name]
        seconds = []
        for number in part_of(len(self.feeds[name]), part, parts):
            feed = self.feeds[name][number]
            started = now()
            if name != what:
                feed = {**feed, "plan": self.table.plan(self.table.batches[number])}
            loss, *_ = self.exe.run(program, feed=feed, fetch_list=fetch)
            seconds.append(now() - started)
            if not np.isfinite(loss):
                raise RuntimeError(f"{what}: the loss is {loss}")
        return seconds


class TorchStep:
    """PyTorch's MLP and Adam over a sparse layer of PyTorch or FBGEMM."""

    def __init__(self, settings: dict[str, Any]) -> None:
        maker = sparse.Torch if settings["library"] == "torch" else sparse.Fbgemm
        self.peer: sparse.Peer = maker(settings)
        from peers import torch_mlp

        self.mlps = torch_mlp
        self.best, self.dtype = bool(settings["best"]), str(settings.get("dtype", "float32"))
        self.dense_width = int(settings["dense"])
        self.hidden = [int(width) for width in settings["hidden"]]

    def prepare(self, setting: dict[str, Any], count: int) -> str:
        """Sets up the model as shipped, or with the fastest layer and the fastest way to run the
        MLP over it."""
        torch = self.peer.torch
        layer = self.peer.prepare(setting, count)
        kind = Setting(**setting)
        data = Data(kind, self.dense_width)
        self.dense, self.label = torch.from_numpy(data.dense), torch.from_numpy(data.label)
        if not self.best:
            # As in their documentation: int64 ids; for FBGEMM, a table for each slot.
            layers = self.peer.candidates(kind)
            layer = next(name for name in layers if "int64" in name and "one table" not in name)
            self.peer.take(layers[layer])
            self.start(best=False)
            return layer
        self.start(best=True)
        way = self.mlps.use_fastest(self.mlp, lambda what: statistics.median(self.turn(what)))
        self.start(best=True, way=self.mlp.way)
        return f"{layer}; {way}"

    def start(self, best: bool, way: str = "eager") -> None:
        """Makes a new MLP and its Adam over the layer that the peer has chosen."""
        widths = [self.dense_width + self.pooled_width(self.peer.model), *self.hidden, 1]
        self.mlp = self.mlps.Mlp(widths, way, self.dtype)
        self.adam = self.mlps.adam(self.mlp.parameters(), best)

    def pooled_width(self, layer: Any) -> int:
        return int(layer.grad.numel() // len(self.dense))

    def turn(self, what: str, part: int = 0, parts: int = 1) -> list[float]:
        layer: Any = self.peer.model
        sparse_rule = getattr(layer, "optimizer", None)  # FBGEMM applies its rule in the backward
        seconds = []
        for number in part_of(len(self.peer.fed), part, parts):
            fed = self.peer.fed[number]
            started = now()
            loss = self.mlp(layer.pull(fed), self.dense, self.label)
            loss.backward()
            self.adam.step()
            self.adam.zero_grad()
            if sparse_rule is not None:
                sparse_rule.step()
                sparse_rule.zero_grad()
            value = loss.item()
            seconds.append(now() - started)
            if not np.isfinite(value):
                raise RuntimeError(f"{what}: the loss is {value}")
        return seconds


if __name__ == "__main__":
    turns.serve({"paddlebox": Own, "torch": TorchStep})
    sys.exit(0)
