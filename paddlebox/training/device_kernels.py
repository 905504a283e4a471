"""Checks that a program on the device of libpaddlebox_gpu.so has kernels there.

Paddle runs an operator without one on the CPU: on copies of its inputs, so that an operator that
updates in place changes nothing, without an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from paddlebox import ops
from paddlebox.errors import ConfigError
from paddlebox.store.options import DEVICE

paddle = ops.paddle

#: Operators that compute no tensor: inputs, outputs and shapes of a program.
HOST = {"data", "fetch", "full_int_array", "shadow_output"}
#: The project's operators that work on the rows of a device.
OWN = {
    *("pull_box_sparse", "pull_box_extended_sparse", "push_box_sparse"),
    *("fused_pull_seqpool_cvm", "fused_pull_seqpool_cvm_concat"),
}


def check_kernels(model: str, programs: Iterable[Any]) -> None:
    """Check all operators of PIR programs. model: its name in errors. Raises: ConfigError with the
    operators that have no kernel."""
    kernels = paddle.base.core._get_registered_phi_kernels("all")
    found = {op.name() for program in programs for op in program.global_block().ops}
    missing = sorted(name for name in found if not _has_kernel(name, kernels))
    if missing:
        raise ConfigError(
            f"model.type {model} has operators without a kernel for the GPU: {', '.join(missing)}; "
            "set hbm.place: host, or choose another model"
        )


def _has_kernel(operator: str, kernels: dict[str, list[str]]) -> bool:
    dialect, _, name = operator.partition(".")
    if dialect == "custom_op":
        return name.removesuffix("_grad").rstrip("_") in OWN
    if dialect != "pd_op" or name in HOST:
        return True
    keys = kernels.get(name.rstrip("_"), [])
    return any(key.startswith((f"({DEVICE},", "(CUSTOM, Undefined")) for key in keys)
