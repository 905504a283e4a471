"""The dense part of a model as a Paddle inference program: created at export, run at prediction.

Its only input is the result of a lookup, (B, S * width + W): for each instance its pooled slots
followed by its dense features. With click priors, the shows and clicks of slots follow. So the
program needs no operator of this package. Models that read sequences of users have another program
(user_program.py).
"""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox import ops
from paddlebox.config import Config, Slots
from paddlebox.config.fields import click_slots, fields_of
from paddlebox.errors import ConfigError, CorruptionError, StoreError
from paddlebox.models import create_model
from paddlebox.models.scaled_dense import ScaledDense
from paddlebox.nn import PooledSlots, PooledTables, TableSlots
from paddlebox.nn.rows import use_padding
from paddlebox.serving import user_program
from paddlebox.serving.inference import create_predictor
from paddlebox.store.averages import averaged

paddle = ops.paddle

INPUT = "box_input"


class _FedSlots(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """Replaces `PooledSlots` in a model: returns slots that were pulled before.

    Args:
        scaled: whether the model scales its dense features first, so that they differ from INPUT.
    """

    def __init__(self, pulled: PooledSlots, scaled: bool) -> None:
        super().__init__()
        self._scaled = scaled
        self.slots, self.embedx_dim, self.use_cvm = pulled.slots, pulled.embedx_dim, pulled.use_cvm
        self.width = pulled.width

    def forward(self, ids: Any, *rest: Any, dense: Any | None = None) -> Any:
        """ids: all of INPUT. rest: offsets, show_click and plan of `PooledSlots`, and dense if the
        model wants it after the slots."""
        behind = rest[3] if len(rest) == 4 else dense
        if behind is not None and not self._scaled:
            return ids
        pooled = paddle.slice(ids, [1], [0], [self.slots * self.width])
        if behind is not None:
            return paddle.concat([pooled, behind], axis=1)
        return paddle.reshape(pooled, [-1, self.slots, self.width])


class _FedTables(paddle.nn.Layer):  # type: ignore[misc, name-defined]
    """Replaces `PooledTables` in a model. scaled: as for `_FedSlots`."""

    def __init__(self, pulled: PooledTables, scaled: bool) -> None:
        super().__init__()
        self.width = pulled.width
        self._scaled = scaled

    def forward(self, batches: Any, *rest: Any, dense: Any | None = None) -> Any:
        """batches: as for `PooledTables`, with all of INPUT in place of the first table's ids.
        rest: show_click, and dense if the model wants it after the slots."""
        ids = batches[0][0]
        behind = rest[1] if len(rest) == 2 else dense
        if behind is not None and not self._scaled:
            return ids
        pooled = paddle.slice(ids, [1], [0], [self.width])
        return pooled if behind is None else paddle.concat([pooled, behind], axis=1)


def _replace(model: Any, pulling: type, fed: type, scaled: bool) -> Any:
    """Replace the only layer of class `pulling` in a model by one of class `fed`, and return it."""
    found = [(name, one) for name, one in model.named_sublayers() if isinstance(one, pulling)]
    if len(found) != 1:
        raise ConfigError(
            f"{type(model).__name__}: expected one {pulling.__name__} to export, found "
            f"{', '.join(name for name, _ in found) or 'none'}"
        )
    name, pulled = found[0]
    *above, last = name.split(".")
    layer = fed(pulled, scaled)
    functools.reduce(getattr, above, model).add_sublayer(last, layer)
    return layer


def uses_counts(config: Config) -> bool:
    """Whether the model reads shows and clicks."""
    return bool(config.model.use_cvm) or config.model.click_prior


def form(config: Config, slots: Slots) -> tuple[int, int]:
    """The form of a lookup's result: the number of cells, and of dense floats after them.

    A sequence has max_length cells, and its length is one of the floats (data/positions.py).
    """
    sequences = config.model.sequences
    return fields_of(slots, sequences).cell_count, slots.dense_width + len(sequences)


def _left_out(config: Config, slots: Slots, width: int, behind: int) -> np.ndarray | None:
    """A mask for INPUT, (1, C * width + behind): 0 for slots that the model does not read, else 1.

    None if the model reads all slots.
    """
    read = config.model.slots
    if not read:
        return None
    cells = fields_of(slots, config.model.sequences).cells
    count = max(end for _, end in cells.values())
    mask = np.ones((1, count * width + behind), np.float32)
    for name, (begin, end) in cells.items():
        if name not in read:
            mask[0, begin * width : end * width] = 0
    return mask


def freeze(config: Config, slots: Slots, dense: Mapping[str, np.ndarray]) -> tuple[bytes, bytes]:
    """Freeze the model of a config.

    Args:
        dense: the dense state, variable name -> array.

    Returns: (program, parameters) as Paddle saves them.

    Raises: CorruptionError if the state belongs to another model; ConfigError if the model cannot
        be exported; StoreError if there is no space for temporary files.
    """
    was_dynamic = paddle.in_dynamic_mode()
    paddle.enable_static()
    try:
        return _freeze(config, slots, dense)
    finally:
        if was_dynamic:
            paddle.disable_static()


def _freeze(config: Config, slots: Slots, dense: Mapping[str, np.ndarray]) -> tuple[bytes, bytes]:
    program, startup = paddle.static.Program(), paddle.static.Program()
    # The name guard gives the parameters the same names as in training.
    with paddle.static.program_guard(program, startup), paddle.utils.unique_name.guard():
        build = _build_of_users if config.model.reads_sequences else _build
        inputs, outputs = build(config, slots)
    executor = paddle.static.Executor(paddle.CPUPlace())
    scope = paddle.static.Scope()
    with paddle.static.scope_guard(scope), tempfile.TemporaryDirectory() as folder:
        executor.run(startup)
        wanted = _set_parameters(program, scope, averaged(dense))
        prefix = str(Path(folder) / "model")
        paddle.static.save_inference_model(prefix, inputs, outputs, executor, program=program)
        return _saved(Path(folder), wanted)


def _model(config: Config, slots: Slots) -> Any:
    of_slot = slots.tables([table.name for table in config.tables])
    first, *more = (
        TableSlots(of_slot.count(number), table.embedx_dim, table.name, len(table.counts))
        for number, table in enumerate(config.tables)
    )
    model = create_model(
        config.model,
        slots=first.slots,
        embedx_dim=first.embedx_dim,
        dense_width=slots.dense_width,
        table=first.table,
        more=more,
        tasks=slots.tasks,
        fields=None if more else fields_of(slots, config.model.sequences),
        click_slots=len(click_slots(config.model, slots)),
        counts=len(config.table.counts),
    )
    model.eval()
    return model


def _build(config: Config, slots: Slots) -> tuple[list[Any], list[Any]]:
    """Build the program of a model. Returns its input INPUT and its output."""
    model, more = _model(config, slots), len(config.tables) - 1
    use_padding(model)
    scaled = bool(config.model.dense_scales) or config.model.click_prior
    if more:
        pooled_width = _replace(model, PooledTables, _FedTables, scaled).width
    else:
        fed = _replace(model, PooledSlots, _FedSlots, scaled)
        pooled_width = fed.slots * fed.width
    _, dense_width = form(config, slots)
    dense_width += 2 * len(click_slots(config.model, slots))
    packed = fed_input = paddle.static.data(INPUT, [-1, pooled_width + dense_width], "float32")
    if not more:
        mask = _left_out(config, slots, fed.width, dense_width)
        if mask is not None:
            fed_input = packed * paddle.assign(mask)
    features = paddle.slice(fed_input, [1], [pooled_width], [pooled_width + dense_width])
    of_others = [None, None, None] * more  # ids, offsets and plan of each table
    dense_or_none = features if dense_width else None
    logits = model(fed_input, None, None, None, dense_or_none, *of_others)
    if config.model.delayed:
        logits = paddle.slice(logits, [1], [0], [len(slots.tasks)])
    shift = config.data.logit_shift
    return [packed], [paddle.nn.functional.sigmoid(logits + shift if shift else logits)]


def _build_of_users(config: Config, slots: Slots) -> tuple[list[Any], list[Any]]:
    """Build the program of a model that reads sequences (user_program.py). Returns its inputs and
    outputs."""
    model = _model(config, slots)
    users = model.model if isinstance(model, ScaledDense) else model
    pulled, scales = users.sparse, config.model.dense_scales
    pooled_width = pulled.slots * pulled.width
    width = pooled_width + slots.dense_width
    mask = _left_out(config, slots, pulled.width, slots.dense_width)
    factor = np.ones((1, width), np.float32) if mask is None else mask
    shift = np.zeros((1, width), np.float32)
    if scales:
        mean, deviation = np.array(scales, np.float32).T
        shift[0, pooled_width:], factor[0, pooled_width:] = mean, 1 / deviation
    return user_program.build(config, users, width, factor, shift)


def _set_parameters(program: Any, scope: Any, state: Mapping[str, np.ndarray]) -> int:
    """Set the parameters of a program. Returns their size in bytes."""
    wanted = 0
    for name, tensor in program.state_dict("param", scope).items():
        value, shape = state.get(name), np.shape(np.array(tensor))
        if value is None or value.shape != shape:
            raise CorruptionError(
                f"the dense state is of another model: {name}: expected shape {shape}, found "
                f"{'nothing' if value is None else value.shape}"
            )
        wanted += value.nbytes
        scope.find_var(name).get_tensor().set(value, paddle.CPUPlace())
    return wanted


def _saved(folder: Path, wanted: int) -> tuple[bytes, bytes]:
    """(program, parameters) that Paddle saved. wanted: bytes of the parameters."""
    saved = {path.suffix: path.read_bytes() for path in folder.iterdir()}
    described = saved.get(".json") or saved.get(".pdmodel", b"")
    parameters = saved.get(".pdiparams", b"")
    # Paddle reports no error if the disk is full and a file is incomplete.
    whole = described.rstrip().endswith(b"}") if ".json" in saved else described
    if not whole or len(parameters) < wanted:
        free = shutil.disk_usage(folder).free
        raise StoreError(
            f"{folder}: Paddle could not save the whole program there; {free} bytes are free. "
            "Free some space, or set TMPDIR to a folder with enough"
        )
    return described, parameters


class _Runner:
    """A Paddle predictor with its handles, and the memory for its input."""

    def __init__(self, predictor: Any, width: int) -> None:
        self.run, self._width = predictor.run, width
        self.input = predictor.get_input_handle(INPUT)
        self.output = predictor.get_output_handle(predictor.get_output_names()[0])
        self.room = self.packed = np.empty((1, width), np.float32)

    def set_instances(self, instances: int) -> None:
        if len(self.room) < instances:
            self.room = np.empty((instances, self._width), np.float32)
        self.packed = self.room[:instances]


class DenseProgram:
    """Runs a frozen program on the CPU.

    It is thread-safe: each of the threads that run at the same time has a Paddle predictor of its
    own. Each predictor has its own copy of the parameters, because a clone of a predictor of a PIR
    program reads the files again.

    It uses `paddle.inference`, which is faster than a static Executor. Microseconds per run of an
    MLP 300-400-400-400-1, with one thread on an AMD EPYC with AVX-512:

        batch   paddle.inference   static Executor
        1       81                 117
        64      331                427

    Args:
        width: S * width + W.
    """

    def __init__(self, program: bytes, parameters: bytes, threads: int, width: int) -> None:
        self._frozen, self._threads, self._width = (program, parameters), threads, width
        self._idle = [self._new()]  # pop and append of a list are atomic, so there is no lock

    def _new(self) -> _Runner:
        return _Runner(create_predictor(*self._frozen, self._threads), self._width)

    def run(self, instances: int, fill: Callable[..., None], *arguments: Any) -> np.ndarray:
        """Predict.

        Args:
            fill: called with the arguments and a float32 array (B, S * width + W). It writes the
                input into the array.

        Returns: float32 predictions, (B); for several tasks (B, T).
        """
        try:
            runner = self._idle.pop()
        except IndexError:
            runner = self._new()
        try:
            if len(runner.packed) != instances:
                runner.set_instances(instances)
            fill(*arguments, runner.packed)
            # This copies 93 KB at batch 64. Sharing the memory with share_external_data saved only
            # 3 of 322 us. With numpy's memory (DenseTensor.set with zero_copy) Paddle 3.3.1 hangs.
            runner.input.copy_from_cpu(runner.packed)
            runner.run()
            found: np.ndarray = runner.output.copy_to_cpu()
            return found.reshape(-1) if found.shape[1] == 1 else found
        finally:
            self._idle.append(runner)
