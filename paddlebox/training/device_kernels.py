"""Checks that a program on the device of libpaddlebox_gpu.so has kernels there.

Paddle runs an operator without one on the CPU: on copies of its inputs, so that an operator that
updates in place changes nothing, without an error. Programs of the zoo are checked when they are
built, others by `train_from_dataset`. In dygraph, a flag makes Paddle refuse such an operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from paddlebox import ops
from paddlebox.errors import ConfigError
from paddlebox.store.options import DEVICE

paddle = ops.paddle

#: Operators that compute no tensor: inputs, outputs and shapes of a program.
HOST = {"data", "fetch", "full_int_array", "shadow_output"}
#: The project's operators that compute on a device.
OWN = {
    *("pull_box_sparse", "pull_box_extended_sparse", "push_box_sparse"),
    *("fused_pull_seqpool_cvm", "fused_pull_seqpool_cvm_concat"),
    *("box_data_norm", "box_data_norm_update", "box_batch_fc", "box_mlp", "box_rank_attention"),
    *("box_jagged_attention", "box_jagged_offsets", "box_jagged_pack", "box_jagged_places"),
    *("box_jagged_repeat", "box_jagged_softmax", "box_jagged_sum", "box_jagged_unpack"),
}
#: Operators whose kernel is chosen by the dtype of the result. Others: by that of the first input.
MAKERS = {"full", "full_like", "assign_value", "uniform", "gaussian", "randint", "arange"}
_NOT_REGISTERED = re.compile(r"kernel with key \(\w+, [^,]*, (\w+)\) of kernel `(\w+)`")


def check_kernels(model: str, programs: Iterable[Any]) -> None:
    """Check all operators of PIR programs. model: what they are, in errors. Raises: ConfigError
    with the operators that have no kernel."""
    kernels = paddle.base.core._get_registered_phi_kernels("all")
    found = {(op.name(), _dtype(op)) for program in programs for op in program.global_block().ops}
    missing = sorted(_told(*one) for one in found if not _has_kernel(*one, kernels))
    if missing:
        raise _without(model, missing)


def check_program(place: Any, program: Any) -> None:
    """`check_kernels` for a program that is not of the zoo, if the place is of the device."""
    if isinstance(place, paddle.CustomPlace) and place.get_device_type() == DEVICE:
        check_kernels("the program", [program])


@contextmanager
def refused_in_dygraph(model: str) -> Iterator[None]:
    """Raise the error of `check_kernels` for the first operator of the block that has no kernel.
    Sets flags of Paddle for the rest of the process."""
    paddle.set_flags({"FLAGS_enable_api_kernel_fallback": False, "FLAGS_use_stride_kernel": False})
    try:
        yield
    except RuntimeError as error:
        found = _NOT_REGISTERED.search(str(error))
        if found is None:
            raise
        raise _without(model, [_told(found[2], found[1])]) from error


def _without(model: str, operators: list[str]) -> ConfigError:
    return ConfigError(
        f"{model} has operators without a kernel for the GPU: {', '.join(operators)}; use others, "
        "or train on the host (hbm.place: host)"
    )


def _told(operator: str, dtype: str) -> str:
    return f"{operator} of {dtype}" if dtype else operator


def _dtype(op: Any) -> str:
    """The dtype by which Paddle chooses the kernel of an operator; empty if it has no tensors."""
    dialect, _, name = op.name().partition(".")
    values = [] if name.rstrip("_") in MAKERS or dialect != "pd_op" else op.operands_source()
    for value in [*values, *op.results()]:
        of_list = value.type().as_vec_type()
        if of_list is not None:
            value = value.get_defining_op().operands_source()[0]
        if (
            value.is_dense_tensor_type()
            and value.get_defining_op().name() != "pd_op.full_int_array"
        ):
            dtype = str(value.dtype).rpartition(".")[2].lower()
            if dtype != "uint8":  # the mask of dropout
                return dtype
    return ""


def _has_kernel(operator: str, dtype: str, kernels: dict[str, list[str]]) -> bool:
    dialect, _, name = operator.partition(".")
    if dialect == "custom_op":
        return name.removesuffix("_grad").rstrip("_") in OWN
    if dialect != "pd_op" or name in HOST:
        return True
    keys = kernels.get(name.rstrip("_"), [])
    return any(
        key.startswith("(CUSTOM, Undefined")
        or (key.startswith(f"({DEVICE},") and key.endswith(f", {dtype})"))
        for key in keys
    )
