"""The dense part of a model as a Paddle inference program: created at export, run at prediction.

Its only input is the result of a lookup, (B, S * width + W): for each instance its pooled slots
followed by its dense features. With click priors, the shows and clicks of slots follow. So the
program needs no operator of this package. A model with two towers has the vectors of the user and
of the item, (B, output_dim) each, as further outputs.

The program of a model that reads sequences scores candidates after the events of one user: those
whose keys and values an earlier call returned, and new ones. It uses
`paddlebox.ops.jagged_attention`, so it runs only where the package is loaded. Letters: P = known
events, E = new events, G = candidates, I = width of a lookup's result, K = width of the keys and
values of an event.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paddlebox import ops
from paddlebox._native import start_openmp
from paddlebox.config import Config, Slots
from paddlebox.config.fields import click_slots, fields_of
from paddlebox.errors import ConfigError, CorruptionError, StoreError
from paddlebox.models import create_model
from paddlebox.models.dssm import towers_of
from paddlebox.models.encoded_dense import EncodedDense
from paddlebox.nn import PooledSlots, PooledTables, TableSlots
from paddlebox.nn.hstu import Continued, Tokens
from paddlebox.nn.rows import use_padding
from paddlebox.serving.feed import known_width
from paddlebox.store.files import averaged

paddle = ops.paddle

INPUT = "box_input"
USER = 1  # the output with the vectors of users


def create_predictor(program: bytes, parameters: bytes, threads: int) -> Any:
    """A predictor of `paddle.inference` on the CPU. threads: of one prediction."""
    inference = paddle.inference
    suffix = ".json" if program[:1] == b"{" else ".pdmodel"
    # From files, because Paddle 3.3.1 crashes if it gets a PIR program in buffers.
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / f"model{end}") for end in (suffix, ".pdiparams")]
        for path, content in zip(paths, (program, parameters), strict=True):
            Path(path).write_bytes(content)
        config = inference.Config(*paths)
        config.disable_gpu()
        config.disable_glog_info()
        config.disable_mkldnn()  # it prints to stdout, and is not faster here
        config.set_cpu_math_library_num_threads(threads)
        start_openmp()
        return inference.create_predictor(config)


_INPUTS = {
    "box_events": "float32",  # (E, I)
    "box_label": "float32",  # (E, 1)
    "box_candidates": "float32",  # (G, I)
    "box_known": "float32",  # (P, K)
    "box_offsets": "int32",  # (2): 0, P + E
    "box_target_offsets": "int32",  # (2): 0, G
    "box_seen": "int32",  # (P + E + G)
    "box_time": "int64",  # (P + E + G)
    "box_new": "int32",  # (E + G): P and up
    "box_asked": "int32",  # (G): E and up
}


class _Pool:
    """Paddle predictors, one for each thread that runs at the same time. Each has its own copy of
    the parameters, because a clone of a predictor of a PIR program reads the files again."""

    def __init__(self, new: Callable[[], Any]) -> None:
        self._new = new
        self._idle = [new()]  # pop and append of a list are atomic, so there is no lock

    @contextlib.contextmanager
    def one(self) -> Iterator[Any]:
        try:
            predictor = self._idle.pop()
        except IndexError:
            predictor = self._new()
        try:
            yield predictor
        finally:
            self._idle.append(predictor)


class UserProgram:
    """Runs the frozen program of a model that reads sequences."""

    def __init__(self, program: bytes, parameters: bytes, threads: int) -> None:
        self._pool = _Pool(lambda: create_predictor(program, parameters, threads))

    def run(self, tensors: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """tensors: of _INPUTS. Returns probabilities of the candidates, (G) float32, and the keys
        and values of new events and candidates, (E + G, K)."""
        with self._pool.one() as predictor:
            for name, array in tensors.items():
                predictor.get_input_handle(name).copy_from_cpu(array)
            predictor.run()
            names = predictor.get_output_names()
            made = [predictor.get_output_handle(name).copy_to_cpu() for name in names]
        return made[0].reshape(-1), made[1]


class _Fed(paddle.nn.Layer):  # type: ignore[misc, name-defined]  # Paddle has no types
    """Replaces `PooledSlots` or `PooledTables`: returns slots that were pulled before. scaled:
    whether the model scales its dense features first, so that they differ from INPUT."""

    def __init__(self, pulled: Any, scaled: bool) -> None:
        super().__init__()
        self._scaled, self._tables = scaled, isinstance(pulled, PooledTables)
        self.width = self.all_width = pulled.width
        if not self._tables:
            self.slots, self.embedx_dim = pulled.slots, pulled.embedx_dim
            self.use_cvm, self.all_width = pulled.use_cvm, pulled.slots * pulled.width

    def forward(self, ids: Any, *rest: Any, dense: Any | None = None) -> Any:
        """ids: all of INPUT; of `PooledTables`, the first table's. rest: the other arguments of the
        replaced layer, with dense if the model wants it after the slots."""
        ids = ids[0][0] if self._tables else ids
        behind = rest[-1] if len(rest) == (2 if self._tables else 4) else dense
        if behind is not None and not self._scaled:
            return ids
        pooled = paddle.slice(ids, [1], [0], [self.all_width])
        if behind is not None:
            return paddle.concat([pooled, behind], axis=1)
        return pooled if self._tables else paddle.reshape(pooled, [-1, self.slots, self.width])


def _replace(model: Any, pulling: type, scaled: bool) -> _Fed:
    """Replace the only layer of class `pulling` in a model. Returns the new one."""
    layers = {name: sub for name, sub in model.named_sublayers() if isinstance(sub, pulling)}
    if len(layers) != 1:
        raise ConfigError(
            f"{type(model).__name__}: expected one {pulling.__name__} to export, found "
            f"{', '.join(layers) or 'none'}"
        )
    [(name, pulled)] = layers.items()
    *above, last = name.split(".")
    layer = _Fed(pulled, scaled)
    functools.reduce(getattr, above, model).add_sublayer(last, layer)
    return layer


def form(config: Config, slots: Slots) -> tuple[int, int]:
    """The numbers of cells and of dense floats in a lookup's result. A sequence has max_length
    cells, and its length is one of the floats (data/positions.py)."""
    sequences = config.model.sequences
    return fields_of(slots, sequences).cell_count, slots.dense_width + len(sequences)


def _left_out(config: Config, slots: Slots, width: int, behind: int) -> np.ndarray | None:
    """A mask for INPUT, (1, C * width + behind): 0 for slots that the model does not read, else 1;
    None if it reads all slots."""
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
    """Freeze the model of a config with its dense state. Returns (program, parameters) as Paddle
    saves them. Raises: CorruptionError if the state belongs to another model; ConfigError if the
    model cannot be exported; StoreError if there is no space for temporary files."""
    build = _build_of_users if config.model.reads_sequences else _build
    with static_mode(), tempfile.TemporaryDirectory() as folder:
        program, startup = paddle.static.Program(), paddle.static.Program()
        # The name guard gives the parameters the same names as in training.
        with paddle.static.program_guard(program, startup), paddle.utils.unique_name.guard():
            inputs, outputs = build(config, slots)
        start_openmp()
        executor, scope = paddle.static.Executor(paddle.CPUPlace()), paddle.static.Scope()
        with paddle.static.scope_guard(scope):
            executor.run(startup)
            wanted = _set_parameters(program, scope, averaged(dense))
            prefix = str(Path(folder) / "model")
            paddle.static.save_inference_model(prefix, inputs, outputs, executor, program=program)
        return _saved(Path(folder), wanted)


@contextlib.contextmanager
def static_mode() -> Iterator[None]:
    was_dynamic = paddle.in_dynamic_mode()
    paddle.enable_static()
    try:
        yield
    finally:
        if was_dynamic:
            paddle.disable_static()


def _model(config: Config, slots: Slots) -> Any:
    of_slot = slots.tables([table.name for table in config.tables])
    first, *more = (
        TableSlots(of_slot.count(number), table.embedx_dim, table.name, len(table.counts))
        for number, table in enumerate(config.tables)
    )
    model = create_model(
        config.model.served,
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
    """Build the program of a model in the current one. Returns its inputs and outputs."""
    model, more = _model(config, slots), len(config.tables) - 1
    use_padding(model)
    own = config.model
    scaled = bool(own.dense_scales or own.edges) or own.has_click_priors
    fed = _replace(model, PooledTables if more else PooledSlots, scaled)
    pooled_width = fed.all_width
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
    predictions = paddle.nn.functional.sigmoid(logits + shift if shift else logits)
    return [packed], [predictions, *(towers_of(model) or {}).values()]


def _build_of_users(config: Config, slots: Slots) -> tuple[list[Any], list[Any]]:
    """As `_build`, for a model that reads sequences (`HstuOverUsers`). Returns the inputs, and the
    outputs: predictions (G, 1), and keys and values (E + G, K)."""
    model = _model(config, slots)
    users = model.model if isinstance(model, EncodedDense) else model
    pulled, scales = users.sparse, config.model.dense_scales
    pooled_width = pulled.slots * pulled.width
    width = pooled_width + slots.dense_width
    widths = {"box_events": width, "box_label": 1, "box_candidates": width}
    widths["box_known"] = known_width(config.model)
    fed = {
        name: paddle.static.data(name, [-1, widths[name]] if name in widths else [-1], dtype)
        for name, dtype in _INPUTS.items()
    }
    mask = _left_out(config, slots, pulled.width, slots.dense_width)
    factor = np.ones((1, width), np.float32) if mask is None else mask
    shift = np.zeros((1, width), np.float32)
    if scales:
        mean, deviation = np.array(scales, np.float32).T
        shift[0, pooled_width:], factor[0, pooled_width:] = mean, 1 / deviation
    events, candidates = (
        (fed[name] - paddle.assign(shift)) * paddle.assign(factor)
        for name in ("box_events", "box_candidates")
    )
    tokens = Continued(
        Tokens(
            offsets=fed["box_offsets"],
            target_offsets=fed["box_target_offsets"],
            seen=fed["box_seen"],
            times=fed["box_time"],
        ),
        fed["box_known"],
        fed["box_new"],
    )
    logits = users.continued(events, fed["box_label"], candidates, tokens, fed["box_asked"])
    return list(fed.values()), [paddle.nn.functional.sigmoid(logits), tokens.made()]


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
    def __init__(self, predictor: Any, width: int) -> None:
        self.run, self._width = predictor.run, width
        self.input = predictor.get_input_handle(INPUT)
        names = predictor.get_output_names()
        self.outputs = [predictor.get_output_handle(name) for name in names]
        self.room = self.packed = np.empty((1, width), np.float32)

    def set_instances(self, instances: int) -> None:
        if len(self.room) < instances:
            self.room = np.empty((instances, self._width), np.float32)
        self.packed = self.room[:instances]


class DenseProgram:
    """Runs a frozen program on the CPU. width: S * width + W.

    It is thread-safe. It uses `paddle.inference`, which is faster than a static Executor.
    Microseconds per run of an MLP 300-400-400-400-1, with one thread on an AMD EPYC with AVX-512:

        batch   paddle.inference   static Executor
        1       81                 117
        64      331                427
    """

    def __init__(self, program: bytes, parameters: bytes, threads: int, width: int) -> None:
        self._pool = _Pool(lambda: _Runner(create_predictor(program, parameters, threads), width))

    @property
    def has_towers(self) -> bool:
        """Whether the program has the vectors of two towers as outputs."""
        with self._pool.one() as runner:
            return len(runner.outputs) > USER

    def run(
        self, instances: int, fill: Callable[..., None], *arguments: Any, output: int = 0
    ) -> np.ndarray:
        """Predictions, (B) float32; for several tasks (B, T). fill: called with the arguments and a
        float32 array (B, S * width + W), into which it writes the input. output: the number of the
        output; for USER, the vectors of the users, (B, output_dim)."""
        with self._pool.one() as runner:
            if len(runner.packed) != instances:
                runner.set_instances(instances)
            fill(*arguments, runner.packed)
            # This copies 93 KB at batch 64. Sharing the memory with share_external_data saved only
            # 3 of 322 us. With numpy's memory (DenseTensor.set with zero_copy) Paddle 3.3.1 hangs.
            runner.input.copy_from_cpu(runner.packed)
            runner.run()
            made: np.ndarray = runner.outputs[output].copy_to_cpu()
        return made.reshape(-1) if output == 0 and made.shape[1] == 1 else made
