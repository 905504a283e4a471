"""Is each model of the zoo what it says?

    python benchmarks/conformance.py
    python benchmarks/conformance.py --models dcn_v2 dien

Each model is compared with one made of FuxiCTR, DeepCTR-Torch, torch-rechub or PyTorch
(benchmarks/peers/zoo_networks.py), on the same pooled slots and with the same parameters. What
differs by design is taken out; `differs` in the table names it.

  float64      logits, loss, and the gradients of parameters and pooled slots
  three steps  logits and parameters after three steps of Adam, in float64
  float32      logits before and after three steps of the whole model, with rows that it pulls from
               a table and pushes to; the peer, in float64, gets the slots that were pulled
  start        variances of the initial values, in standard errors from what
               docs/conformance.md says

Goals: 1e-10 in float64, 1e-5 in float32, and 6 standard errors. Errors are relative to the largest
magnitude of the same tensor.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import report
from peers.zoo_cases import CASES, Case
from pydantic import TypeAdapter

B, L, W = 16, 4, 3  # instances, max_length, dense width
STEPS, RATE = 3, 2**-7  # exact in float32, which Paddle keeps the rate in
FLOAT64, FLOAT32, STANDARD_ERRORS = 1e-10, 1e-5, 6.0

Numbers = dict[str, np.ndarray]


@dataclass(frozen=True)
class Inputs:
    """The numbers of a batch; zoo_parts.Batch says what they are."""

    rows: np.ndarray
    dense: np.ndarray
    label: np.ndarray
    lengths: np.ndarray
    ranks: np.ndarray
    times: np.ndarray


def config_of(case: Case) -> Any:
    from paddlebox.config import AnyModelConfig

    hidden = {} if case.model in ("lr", "fm") else {"hidden": [6, 4]}
    adapter: Any = TypeAdapter(AnyModelConfig)
    return adapter.validate_python({"type": case.model, **hidden, **case.settings})


def slots_of(case: Case) -> Any:
    from paddlebox.config import Slots

    tasks = ["click", "buy"] if "tower" in case.settings or case.model == "esmm" else ["click"]
    slots: list[dict[str, Any]] = [{"name": task, "type": "label"} for task in tasks]
    slots.append({"name": "dense", "type": "dense", "dim": W})
    if "history" in case.settings:
        slots.append({"name": "user", "type": "sparse"})
        slots.append({"name": "history", "type": "sparse", "max_length": L})
    else:
        others = () if case.model == "dssm" else ("city", "brand", "shop", "hour")
        slots += [{"name": name, "type": "sparse"} for name in ("user", "old", *others)]
    slots.append({"name": "item", "type": "sparse"})
    return Slots.model_validate({"slots": slots}, strict=False)


def created(case: Case, config: Any, dim: int = 0) -> Any:
    """The model with its initial values. dim: instead of the one of the case."""
    from paddlebox import ops
    from paddlebox.config.fields import fields_of
    from paddlebox.models import create_model

    ops.paddle.disable_static()
    ops.paddle.seed(5)
    slots = slots_of(case)
    return create_model(
        config,
        slots=len(slots.sparse),
        embedx_dim=dim or case.dim,
        dense_width=W,
        tasks=slots.tasks,
        fields=fields_of(slots, config.sequences),
    )


def trained(model: Any) -> dict[str, Any]:
    """The parameters that are trained, without those of the pull."""
    found = dict(model.named_parameters())
    return {n: p for n, p in found.items() if not (p.stop_gradient or n.startswith("sparse."))}


def parameters_of(case: Case, config: Any) -> Numbers:
    """Random values for all parameters that are trained, the same in float32 and float64."""
    random, found = np.random.default_rng(3), {}
    for name, parameter in trained(created(case, config)).items():
        about = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        # Small biases leave the tasks of a model with several of them in no fixed order.
        value = random.normal(about, 0.1 if name.endswith("bias") else 0.3, parameter.shape)
        found[name] = value.astype(np.float32).astype(np.float64)
    return found


def batches_of(case: Case, config: Any) -> list[Inputs]:
    """One batch for each step, and one more."""
    random = np.random.default_rng(7)
    slots = slots_of(case)
    cells = sum(slots.positions(config.sequences))
    width = case.dim + (3 if getattr(config, "use_cvm", False) else 1)
    shape = (B, cells, width)
    return [_batch(case, random, len(slots.tasks), shape) for _ in range(STEPS + 1)]


def _batch(
    case: Case, random: np.random.Generator, tasks: int, shape: tuple[int, int, int]
) -> Inputs:
    lengths = np.full(B, L) if case.full else random.integers(0, L + 1, B)
    rows = random.normal(0, 0.7, shape)
    if "history" in case.settings:
        rows[:, 1:-1] *= (np.arange(L) < lengths[:, None])[:, :, None]
    else:
        lengths = np.array([0, 1, 9, B - 10])  # of the users' sequences
    ranks = np.full((B, 7), -1, np.int32)
    for begin in range(0, B - 3, 3):  # pages of three, of which the last has no rank
        page = [value for rank in (0, 1) for value in (rank + 1, begin + rank)]
        for rank in (0, 1):
            ranks[begin + rank, :5] = [rank + 1, *page]
    return Inputs(
        rows=rows.astype(np.float32).astype(np.float64),
        dense=random.normal(0, 0.7, (B, W)).astype(np.float32).astype(np.float64),
        label=random.integers(0, 2, (B, tasks)).astype(np.float64),
        lengths=lengths,
        ranks=ranks,
        times=np.cumsum(random.integers(0, 40, B)),
    )


@dataclass
class Found:
    """What one side computed. The gradients are those of the first batch, before a step."""

    logits: np.ndarray
    loss: float
    gradients: Numbers
    stepped: Numbers  # parameters after the steps
    after: np.ndarray  # logits after the steps


# ---- ours


class Ours:
    """The model with given parameters and Adam, which reads the slots of the batches."""

    def __init__(self, case: Case, config: Any, parameters: Numbers, dtype: str) -> None:
        from paddlebox import ops
        from paddlebox.nn.rows import use_padding
        from paddlebox.training import program

        self.paddle, self.case, self.config, self.dtype = ops.paddle, case, config, dtype
        self.model = created(case, config)
        self.pull = self.model.sparse
        self.model.sparse = self._in_place_of_the_pull()
        self.model.to(dtype=dtype)
        if dtype == "float64":
            use_padding(self.model)
        self.parameters = trained(self.model)
        for name, parameter in self.parameters.items():
            parameter.set_value(parameters[name].astype(dtype))
        self.model.train()
        self.mean_loss = program.mean_loss
        self.optimizer = program.create_optimizer(run_config(), [*self.parameters.values()])

    def _in_place_of_the_pull(self) -> Any:
        """A layer that returns the slots of `_slots` as the pull does."""
        paddle, pull, slots = self.paddle, self.pull, self._slots

        class Slots(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
            embedx_dim, width = getattr(pull, "embedx_dim", 0), pull.width

            def forward(self, *inputs: Any) -> Any:
                return slots(*inputs)

        return Slots()

    def _slots(self, *inputs: Any) -> Any:
        """The given slots. inputs: of `PooledSlots`, or the three of `PooledTables`."""
        dense = inputs[-1] if len(inputs) in (3, 5) else None
        if dense is None:
            return self.rows
        return self.paddle.concat([self.rows.reshape([len(dense), -1]), dense], axis=1)

    def pulled(self, batch: Inputs) -> list[Any]:
        """The inputs of the pull."""
        rows = batch.rows.astype(self.dtype)
        self.rows = self.paddle.to_tensor(rows, stop_gradient=False)
        return [None] * 4

    def forward(self, batch: Inputs) -> tuple[Any, Any]:
        """The logits and the loss."""
        tensor, dense = self.paddle.to_tensor, batch.dense
        if "history" in self.case.settings:
            dense = np.concatenate([dense, batch.lengths[:, None]], axis=1)
        label = tensor(batch.label.astype(self.dtype))
        more = []
        if self.case.model == "rank_attention":
            more = [tensor(batch.ranks)]
        elif getattr(self.config, "reads_sequences", False):
            offsets = np.concatenate([[0], np.cumsum(batch.lengths)]).astype(np.int32)
            more = [tensor(offsets), tensor(batch.times[:, None]), None, None, label]
        logits = self.model(*self.pulled(batch), tensor(dense.astype(self.dtype)), *more)
        return logits, self.mean_loss(self.model, logits, label)

    def run(self, batches: list[Inputs]) -> Found:
        logits, loss = self.forward(batches[0])
        loss.backward()
        gradients = {n: p.grad.numpy() for n, p in self.parameters.items() if p.grad is not None}
        gradients["pooled slots"] = self.rows.grad.numpy()
        first = (logits.numpy(), float(loss))
        self.optimizer.clear_grad()
        for batch in batches[:STEPS]:
            self.step(batch)
        after = self.forward(batches[STEPS])[0].numpy()
        stepped = {name: p.numpy() for name, p in self.parameters.items()}
        return Found(*first, gradients, stepped, after)

    def step(self, batch: Inputs) -> Any:
        """The logits before the step."""
        logits, loss = self.forward(batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.clear_grad()
        return logits


class Whole(Ours):
    """The model with the rows of a table, which it pulls and pushes, in float32."""

    def __init__(self, case: Case, config: Any, parameters: Numbers) -> None:
        from paddlebox.data.positions import Positions

        super().__init__(case, config, parameters, "float32")
        self.positions = Positions(slots_of(case), config.sequences)
        self.random = np.random.default_rng(11)

    def _slots(self, *inputs: Any) -> Any:
        """As the pull, and keeps the slots."""
        with self.paddle.no_grad():
            pooled = self.pull(*inputs[:2]) if len(inputs) == 3 else self.pull(*inputs[:4])
        cells = self.positions.cells
        self.rows = pooled.reshape([-1, cells, pooled.size // len(pooled) // cells])
        return self.pull(*inputs)

    def pulled(self, batch: Inputs) -> list[Any]:
        """Ids of rows, some of them several times."""
        counts = self.random.integers(0, 4, (B, len(slots_of(self.case).sparse)))
        counts[:, -1] = 1
        if "history" in self.case.settings:
            counts[:, 1] = batch.lengths
        offsets = np.concatenate([[0], np.cumsum(counts.reshape(-1))]).astype(np.int32)
        ids = (self.random.zipf(1.3, offsets[-1]) % self.count).astype(np.int32)
        if self.positions.any:
            offsets, _ = self.positions.part(offsets)
        shows = np.concatenate([np.ones((B, 1)), batch.label[:, :1]], axis=1).astype(np.float32)
        return [*map(self.paddle.to_tensor, (ids, offsets, shows, np.zeros(1, np.int32)))]

    def trained(self, batches: list[Inputs]) -> tuple[list[Inputs], np.ndarray, np.ndarray]:
        """The batches with the slots that were pulled, and the logits of the first and of the last
        batch. The steps push to the rows between them."""
        from paddlebox.config import TableConfig
        from paddlebox.store.table import Table, sorted_unique_keys

        fields = {"embedx_dim": self.case.dim, "embedx_threshold": 0.0}
        config = TableConfig.model_validate({**fields, "embedx": {"initial_range": 0.3}})
        seen, logits = [], []
        with Table(config, mem_budget_bytes=1 << 20) as table:
            staged = table.stage(sorted_unique_keys(np.arange(1, 60, dtype=np.uint64)))
            self.count = len(staged.row_of_key)
            table.begin(staged)
            for batch in batches:  # the first push of a row creates its vector
                self.forward(batch)[1].backward()
            self.optimizer.clear_grad()
            for batch in batches:
                logits.append(self.step(batch).numpy())
                seen.append(replace(batch, rows=self.rows.numpy().astype(np.float64)))
            table.end()
            table.commit()
        return seen, logits[0], logits[-1]


def run_config() -> Any:
    """The config of a run with Adam."""
    from paddlebox.config import Config

    fields = {
        "name": "conformance",
        "data": {"format": "csv", "slots": "slots.yaml", "train_files": ["train.csv"]},
        "model": {"type": "lr"},  # the optimizer does not read it
        "optimizer": {"type": "adam", "learning_rate": RATE},
    }
    return Config.model_validate(fields, strict=False)


# ---- the peer


class Peer:
    """The network of the peer with given parameters, in float64."""

    def __init__(self, case: Case, config: Any, parameters: Numbers) -> None:
        import torch
        from peers import zoo_networks, zoo_parts

        torch.set_default_dtype(torch.float64)
        self.torch, self.case, self.config = torch, case, config
        self.network, self.batch = zoo_networks.NETWORKS[case.model], zoo_parts.Batch
        self.parameters = {
            name: torch.tensor(value, requires_grad=True) for name, value in parameters.items()
        }
        self.optimizer = torch.optim.Adam(self.parameters.values(), RATE)

    def forward(self, batch: Inputs) -> tuple[Any, Any, Any]:
        """The pooled slots, logits and loss."""
        tensor = self.torch.tensor
        given = self.batch(
            rows=tensor(batch.rows, requires_grad=True),
            dense=tensor(batch.dense),
            label=tensor(batch.label),
            lengths=batch.lengths,
            embedx_dim=self.case.dim,
            ranks=batch.ranks,
            times=batch.times,
        )
        return given.rows, *self.network(self.parameters, given, self.config)

    def run(self, batches: list[Inputs]) -> Found:
        rows, logits, loss = self.forward(batches[0])
        loss.backward()
        gradients = {n: p.grad.numpy().copy() for n, p in self.parameters.items()}
        gradients["pooled slots"] = rows.grad.numpy()
        first = (logits.detach().numpy(), float(loss))
        self.optimizer.zero_grad()
        for batch in batches[:STEPS]:
            self.forward(batch)[2].backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        after = self.forward(batches[STEPS])[1].detach().numpy()
        stepped = {name: p.detach().numpy() for name, p in self.parameters.items()}
        return Found(*first, gradients, stepped, after)


# ---- the comparison


def error(found: np.ndarray, expected: np.ndarray, least: float = 0.0) -> float:
    """The largest difference, relative to the largest magnitude, which is at least `least`."""
    if found.shape != expected.shape:
        return math.inf
    scale = max(float(np.abs(expected).max()), least, 1e-300)
    worst = float(np.abs(found - expected).max()) / scale
    return math.inf if math.isnan(worst) else worst


def largest(found: Numbers, expected: Numbers, share: float) -> float:
    """The largest error of tensors by name. A tensor counts as at least a share of the largest one,
    because some gradients are 0 but for rounding, and Adam makes steps of them."""
    if found.keys() != expected.keys():
        return math.inf
    least = max(float(np.abs(value).max()) for value in expected.values()) * share
    return max(error(found[name], value, least) for name, value in expected.items())


def without_padding(case: Case, batch: Inputs, found: Found) -> Found:
    """Without the gradients of places that hold nothing."""
    if "history" not in case.settings:
        return found
    gradient = found.gradients["pooled slots"].copy()
    gradient[:, 1:-1] *= (np.arange(L) < batch.lengths[:, None])[:, :, None]
    return replace(found, gradients={**found.gradients, "pooled slots": gradient})


def compared(case: Case) -> dict[str, float]:
    config = config_of(case)
    parameters, batches = parameters_of(case, config), batches_of(case, config)
    errors = {}
    pulled, *ours = Whole(case, config, parameters).trained(batches)
    whole = Peer(case, config, parameters).run(pulled)
    pairs = zip(ours, (whole.logits, whole.after), strict=True)
    errors["float32"] = max(error(a, b, 1.0) for a, b in pairs)
    dtype = "float32" if case.only_float32 else "float64"
    found = Ours(case, config, parameters, dtype).run(batches)
    expected = Peer(case, config, parameters).run(batches)
    found, expected = (without_padding(case, batches[0], side) for side in (found, expected))
    gradients = largest(found.gradients, expected.gradients, 0.001)
    if case.only_float32:
        errors["gradients, float32"] = gradients
    else:
        errors["logits"] = error(found.logits, expected.logits)
        errors["loss"] = abs(found.loss - expected.loss) / abs(expected.loss)
        errors["gradients"] = gradients
        errors["steps"] = max(
            error(found.after, expected.after), largest(found.stepped, expected.stepped, 1.0)
        )
    errors["start"] = standard_errors(case, config)
    return errors


# ---- initial values

# Parameters that do not start as Paddle's XavierUniform: the end of a name -> variance.
STARTS = {"positions": 1e-4, "position_bias": 4e-4, "time_bias": 4e-4}
ZEROS = ("bias", "biases", "alpha", "keys.weight", "linear.dense.weight")


def expected_variance(name: str, shape: list[int]) -> float:
    """The variance of the initial values of a parameter, as docs/conformance.md says."""
    last = name.rpartition(".")[2]
    if last in STARTS:
        return STARTS[last]
    if name.endswith(ZEROS) or ("norm" in name and last == "weight"):
        return 0.0
    if last == "pairs":  # of ranks: 9 matrices, one below the other
        return 2 / (shape[0] / 9 + shape[1])
    if len(shape) == 2:
        return 2 / (shape[0] + shape[1])
    return 2 / (shape[0] * shape[2] + shape[1] * shape[2])


def standard_errors(case: Case, config: Any) -> float:
    """The largest distance of a parameter's initial variance from what is expected."""
    larger = {"hidden": (64, 64)} if hasattr(config, "hidden") else {}
    model = created(case, config.model_copy(update=larger), dim=16)
    worst = 0.0
    for name, parameter in trained(model).items():
        values = parameter.numpy().astype(np.float64).reshape(-1)
        expected = expected_variance(name, parameter.shape)
        if expected == 0.0:
            worst = max(worst, math.inf if np.ptp(values) else 0.0)
            continue
        normal = name.rpartition(".")[2] in STARTS
        # The variance of a square, of a normal and of a uniform variable.
        spread = expected * math.sqrt((2.0 if normal else 0.8) / len(values))
        worst = max(worst, abs(float(np.mean(values**2)) - expected) / spread)
    return worst


def goals_of(name: str, errors: Mapping[str, float]) -> list[report.Goal]:
    bounds = {"start": STANDARD_ERRORS, "float32": FLOAT32, "gradients, float32": 10 * FLOAT32}
    return [
        report.at_most(f"{name}: {what}", value, bounds.get(what, FLOAT64))
        for what, value in errors.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=[], help="only these; default: all")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/conformance.json"))
    options = parser.parse_args()
    try:
        import peers.zoo_networks  # noqa: F401
    except ModuleNotFoundError as missing:
        raise report.UnavailableError(
            f"{missing.name} is not installed: make bench-setup"
        ) from None
    figures: dict[str, Any] = {}
    goals: list[report.Goal] = []
    for case in CASES:
        if options.models and case.model not in options.models:
            continue
        errors = compared(case)
        print(case.name, *(f"{what} {value:.1e}" for what, value in errors.items()), flush=True)
        figures[case.name] = {
            "model": case.model,
            "settings": case.said,
            "peer": case.peer,
            "differs": case.differs,
            "errors": errors,
        }
        goals += goals_of(case.name, errors)
    return report.write(options.out, vars(options), figures, goals)


if __name__ == "__main__":
    report.run(main)
