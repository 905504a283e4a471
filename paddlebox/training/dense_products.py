"""Chooses what computes the products of a model's linear layers (`trainer.dense_dtype`)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paddlebox import _native
from paddlebox.config import Config, DenseDtype, HbmPlace
from paddlebox.errors import ConfigError
from paddlebox.store.options import LIBRARY, host_is_device

log = logging.getLogger("paddlebox")

_FLOAT32, _BFLOAT16 = DenseDtype.FLOAT32.value, DenseDtype.BFLOAT16.value


@dataclass(frozen=True)
class DenseProducts:
    """What computes the products of linear layers. Runs with the same `name` on the same processor
    compute the same products; those by Paddle need the same number of threads, too."""

    products: str  # as for `paddlebox.nn.use_products`
    name: str  # "bfloat16 by oneDNN 3.6.2, instruction set 0xe7"
    why: str  # why the type is not the one asked for, or why oneDNN is missing; else empty


def dense_products(config: Config) -> DenseProducts:
    """Choose for the config of a run, on this machine. Raises ConfigError if it names bfloat16 and
    this machine lacks it."""
    wanted = config.trainer.dense_dtype
    by_paddle = f"float32 by Paddle {_native.paddle.__version__}"
    if config.hbm.place is not HbmPlace.HOST and not host_is_device():
        why = "hbm.place is gpu" if wanted is DenseDtype.AUTO else ""
        if _native.core.hbm_backend() != "cuda":
            products = _BFLOAT16 if wanted is DenseDtype.BFLOAT16 else _FLOAT32
            return DenseProducts(products, f"{products} by {LIBRARY}", why)
        if wanted is DenseDtype.BFLOAT16:
            raise ConfigError(
                f"trainer.dense_dtype bfloat16 needs a CPU or {LIBRARY}, found a GPU of "
                "paddlepaddle-gpu: set it to float32 or auto"
            )
        return DenseProducts("", f"{by_paddle} on a GPU", why)
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


def check_products(run_dir: Path, before: str | None, now: str, of_ranks: Sequence[str]) -> None:
    """Warn if another library computes matrix products than at the last commit or on another rank.
    before: the name that the newest commit stores; None: no commit, or it has no config. of_ranks:
    the names of all ranks."""
    differences = []
    if before is not None and before != now:
        differences.append(f"were computed as {before}, now as {now}")
    if len(set(of_ranks)) > 1:
        listed = ", ".join(f"rank {rank}: {name}" for rank, name in enumerate(of_ranks))
        differences.append(f"are computed differently by the ranks: {listed}")
    for difference in differences:
        log.warning(
            "%s: the products of the dense part %s: results differ from those of one kind",
            run_dir,
            difference,
        )


def _why_not_bfloat16(speed: str) -> str:
    if speed == "none":
        return "the processor has neither AVX512_BF16 nor AMX"
    return "bfloat16 is not faster than float32 on this processor"
