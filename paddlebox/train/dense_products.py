"""Chooses what computes the products of a model's linear layers (`trainer.dense_dtype`)."""

from __future__ import annotations

from dataclasses import dataclass

from paddlebox import _native
from paddlebox.config import Config, DenseDtype, HbmPlace
from paddlebox.errors import ConfigError
from paddlebox.store.hbm_place import host_is_device

_FLOAT32, _BFLOAT16 = DenseDtype.FLOAT32.value, DenseDtype.BFLOAT16.value


@dataclass(frozen=True)
class DenseProducts:
    """What computes the products of linear layers. Runs with the same `name` compute the same
    bits."""

    products: str  # as for `paddlebox.nn.use_products`
    name: str  # "bfloat16 by oneDNN 3.6.2, instruction set 0x10e7"
    why: str  # why it is not what the config asks for; empty if it is


def dense_products(config: Config) -> DenseProducts:
    """Choose for the config of a run, on this machine.

    Raises: ConfigError if bfloat16 is asked for by name and cannot be had.
    """
    wanted = config.trainer.dense_dtype
    by_paddle = f"float32 by Paddle {_native.paddle.__version__}"
    if config.hbm.place is not HbmPlace.HOST and not host_is_device():
        if wanted is DenseDtype.BFLOAT16:
            raise ConfigError(
                f"trainer.dense_dtype bfloat16 is for a CPU, but hbm.place is "
                f"{config.hbm.place.value}: set it to float32 or auto"
            )
        return DenseProducts("", f"{by_paddle} on a GPU", "")
    library, found, speeds = _native.core.dense_library()
    if wanted is DenseDtype.BFLOAT16 and speeds[_BFLOAT16] == "none":
        needs = "AVX512_BF16 or AMX in the processor" if found else "the oneDNN of Paddle's wheel"
        raise ConfigError(
            f"trainer.dense_dtype bfloat16 needs {needs}, found {library}: set it to float32 or "
            "auto"
        )
    if wanted is DenseDtype.BFLOAT16 or (wanted is DenseDtype.AUTO and speeds[_BFLOAT16] == "fast"):
        return DenseProducts(_BFLOAT16, f"bfloat16 by {library}", "")
    if not found:
        return DenseProducts("", by_paddle, library)
    why = _why_not_bfloat16(speeds[_BFLOAT16]) if wanted is DenseDtype.AUTO else ""
    if speeds[_FLOAT32] == "fast":
        return DenseProducts(_FLOAT32, f"float32 by {library}", why)
    return DenseProducts("", by_paddle, why)  # without AVX-512, Paddle's MKL is as fast


def _why_not_bfloat16(speed: str) -> str:
    if speed == "none":
        return "the processor has neither AVX512_BF16 nor AMX"
    return "bfloat16 is not faster than float32 on this processor"
