"""trainer.dense_dtype: what computes the products of linear layers, and that it is recorded."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paddlebox import _native
from paddlebox.config import Config
from paddlebox.errors import ConfigError
from paddlebox.training import dense_products
from tests.conftest import make_synthetic, tool
from tests.e2e.test_tools import CONFIG
from tests.support.marks import long

SCRIPT = (Path(__file__).parent / "train_small.py").read_text()
SPEEDS = _native.core.dense_library()[2]
WITH_AVX512 = pytest.mark.skipif(SPEEDS["float32"] != "fast", reason="needs AVX-512")
TYPES = [
    pytest.param("float32", marks=WITH_AVX512),
    pytest.param(
        "bfloat16",
        marks=pytest.mark.skipif(SPEEDS["bfloat16"] == "none", reason="needs AVX512_BF16"),
    ),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_synthetic(tmp_path_factory.mktemp("data"), passes=2, rows=2000)


def config(dtype: str, place: str = "host") -> Config:
    named = {"trainer": {"dense_dtype": dtype}, "hbm": {"place": place}}
    files = {"train_files": ["a"], "slots": "slots.yaml", "format": "multislot"}
    return Config.model_validate(
        {"name": "a", "data": files, "model": {"type": "deepfm"}, **named}, strict=False
    )


ZEN4 = ("oneDNN 3.6.2, instruction set 0xe7", True, {"float32": "fast", "bfloat16": "fast"})
COOPER_LAKE = (ZEN4[0], True, {"float32": "fast", "bfloat16": "slow"})
ICE_LAKE = ("oneDNN 3.6.2, instruction set 0x67", True, {"float32": "fast", "bfloat16": "none"})
HASWELL = ("oneDNN 3.6.2, instruction set 0x7", True, {"float32": "slow", "bfloat16": "none"})
NOTHING = ("libdnnl.so.3 is version 4.0.0", False, {"float32": "none", "bfloat16": "none"})


@pytest.mark.parametrize(
    ("library", "dtype", "products", "why"),
    [
        (ZEN4, "auto", "bfloat16", ""),
        (ZEN4, "float32", "float32", ""),
        (COOPER_LAKE, "auto", "float32", "bfloat16 is not faster"),
        (COOPER_LAKE, "bfloat16", "bfloat16", ""),
        (ICE_LAKE, "auto", "float32", "neither AVX512_BF16 nor AMX"),
        (HASWELL, "auto", "", "neither AVX512_BF16 nor AMX"),
        (HASWELL, "float32", "", ""),
        (NOTHING, "float32", "", "version 4.0.0"),
        (NOTHING, "auto", "", "version 4.0.0"),
    ],
)
def test_the_type_depends_on_the_processor(
    monkeypatch: pytest.MonkeyPatch, library: Any, dtype: str, products: str, why: str
) -> None:
    monkeypatch.setattr(_native.core, "dense_library", lambda: library)
    chosen = dense_products.dense_products(config(dtype))
    assert chosen.products == products
    assert why in chosen.why
    assert bool(why) == bool(chosen.why)
    by = f"{products} by {library[0]}" if products else "float32 by Paddle"
    assert chosen.name.startswith(by)


@pytest.mark.parametrize(
    ("library", "message"),
    [
        (ICE_LAKE, "bfloat16 needs AVX512_BF16 or AMX in the processor, found oneDNN 3.6.2, inst"),
        (NOTHING, "bfloat16 needs the oneDNN of Paddle's wheel, found libdnnl.so.3 is version 4"),
    ],
)
def test_bfloat16_by_name_is_refused_where_it_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch, library: Any, message: str
) -> None:
    monkeypatch.setattr(_native.core, "dense_library", lambda: library)
    with pytest.raises(ConfigError, match=message):
        dense_products.dense_products(config("bfloat16"))


@pytest.mark.parametrize("library", [ZEN4, HASWELL])
def test_a_gpu_computes_in_bfloat16_by_name_alone(
    monkeypatch: pytest.MonkeyPatch, library: Any
) -> None:
    monkeypatch.setattr(_native.core, "dense_library", lambda: library)
    for dtype in ("auto", "float32", "bfloat16"):
        chosen = dense_products.dense_products(config(dtype, "gpu"))
        assert chosen.products == ("float32" if dtype == "auto" else dtype)
        assert chosen.name == f"{chosen.products} by libpaddlebox_gpu.so"
    monkeypatch.setattr(_native.core, "hbm_backend", lambda: "cuda")
    assert dense_products.dense_products(config("auto", "gpu")).products == ""
    with pytest.raises(ConfigError, match=r"needs a CPU or libpaddlebox_gpu\.so, found a GPU of p"):
        dense_products.dense_products(config("bfloat16", "gpu"))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("model", ["deepfm", *map(long, ("dnn", "dcn_v2", "finalmlp"))])
def test_threads_of_the_dense_part_do_not_show(
    in_new_process: Callable[..., Any], data: Path, tmp_path: Path, dtype: str, model: str
) -> None:
    def digests(threads: int) -> Any:
        overrides = [
            f"data.train_files=[{data}/train-*.txt]", f"model.type={model}", "data.batch_size=1500",
            "model.hidden=[150,64]", "model.dropout=0.2", f"trainer.dense_dtype={dtype}",
        ]  # fmt: skip
        arguments = {"folder": str(tmp_path / str(threads)), "overrides": overrides}
        # `cpu.apply` keeps what the environment says.
        done = in_new_process(SCRIPT, json.dumps(arguments), env={"OMP_NUM_THREADS": str(threads)})
        assert done["omp_threads"] == threads
        return done["sparse"], done["dense"], done["auc"]

    assert digests(1) == digests(2) == digests(4)


def train(data: Path, run_dir: Path, *more: str, isa: str = "") -> Any:
    named = [f"data.train_files=['{data}/train-*.txt']", "model.hidden=[16]", *more]
    env = {"ONEDNN_MAX_CPU_ISA": isa} if isa else {}
    return tool("train", "-c", CONFIG, "--run-dir", str(run_dir), "-o", *named, env=env)


@pytest.mark.long
def test_simulated_processors_train_with_the_stated_message(data: Path, tmp_path: Path) -> None:
    auto = "trainer.dense_dtype=auto"
    done = train(data, tmp_path / "avx2", auto, isa="AVX2")
    assert done.returncode == 0, done.stderr
    assert "dense part: float32 by Paddle" in done.stderr
    assert "(the processor has neither AVX512_BF16 nor AMX)" in done.stderr
    done = train(data, tmp_path / "bfloat16", "trainer.dense_dtype=bfloat16", isa="AVX2")
    assert done.returncode == 2
    assert "bfloat16 needs AVX512_BF16 or AMX in the processor, found oneDNN 3" in done.stderr
    if SPEEDS["float32"] == "fast":
        done = train(data, tmp_path / "avx512", auto, isa="AVX512_CORE")
        assert done.returncode == 0, done.stderr
        assert "dense part: float32 by oneDNN 3" in done.stderr
        assert "(the processor has neither AVX512_BF16 nor AMX)" in done.stderr


@pytest.mark.slow
@WITH_AVX512
def test_a_resume_with_other_products_is_reported(data: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "r"
    first = f"data.train_files=['{data}/train-000.txt']"
    assert train(data, run_dir, first, isa="AVX512_CORE").returncode == 0
    reported = train(data, run_dir, isa="AVX2")
    assert reported.returncode == 0, reported.stderr
    assert re.search("WARNING .* were computed as float32 by oneDNN 3", reported.stderr)
    assert "now as float32 by Paddle 3" in reported.stderr
    more = f"data.train_files=['{data}/train-*.txt','{data}/test.txt']"
    kept = train(data, run_dir, more, isa="AVX2")
    assert kept.returncode == 0, kept.stderr
    assert "were computed as" not in kept.stderr


def test_ranks_that_differ_are_reported(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    now = dense_products.dense_products(config("float32")).name
    dense_products.check_products(tmp_path, None, now, [now, now])
    dense_products.check_products(tmp_path, now, now, [now])
    assert not caplog.messages
    dense_products.check_products(tmp_path, None, now, [now, "other"])
    assert caplog.messages[0].endswith(
        f"differently by the ranks: rank 0: {now}, rank 1: other: results differ from those of one "
        "kind"
    )
