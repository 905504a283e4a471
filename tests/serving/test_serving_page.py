"""The header of the serving library, and the programs of docs/serving_library.md."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from paddlebox.config import load_config, load_slots
from paddlebox.serving import Predictor
from paddlebox.serving.writer import export
from tests.conftest import ROOT
from tests.serving.made_export import MadeSource
from tests.serving.test_serving_library import fed
from tests.support import serving_library as library


def compiled(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    include = [f"-I{library.HEADER.parent}"]
    linked = [str(library.LIBRARY), f"-Wl,-rpath,{library.PACKAGE}"]
    command = ["gcc", *flags, *include, str(source), *linked, "-o", str(out)]
    return subprocess.run(command, capture_output=True, text=True)


def blocks(language: str) -> list[str]:
    page = (ROOT / "docs/serving_library.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.M | re.S)


FIELDS = {"user": 17, "words": [3, 4], "dense": [0.1, 0.2, 0.3, 0.4]}


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    slots = load_slots(ROOT / "datasets/synthetic/slots.yaml")
    config = load_config(ROOT / "configs/deepfm_synthetic.yaml", ["model.hidden=[8]"])
    path = tmp_path_factory.mktemp("synthetic") / "m.export"
    export(MadeSource(config, slots, [FIELDS]), path, onnx=True)
    return path


def test_the_program_in_c_of_the_page_compiles_as_c99_and_prints_the_input(
    synthetic: Path, tmp_path: Path
) -> None:
    program, source = tmp_path / "serve", tmp_path / "serve.c"
    source.write_text(blocks("c")[0])
    made = compiled(source, program)
    assert made.returncode == 0, made.stderr
    run = subprocess.run([str(program), str(synthetic)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    name, _, numbers = run.stdout.partition(":")
    assert name == "deepfm_synthetic, version 1"
    with Predictor(synthetic) as predictor:
        expected = fed(predictor, [FIELDS])[0]
    assert np.array(numbers.split(), np.float32).tobytes() == expected.tobytes()
    missing = subprocess.run([str(program), str(tmp_path / "no")], capture_output=True, text=True)
    assert missing.returncode == 1
    assert "error 2: " in missing.stderr


def test_sessions_of_the_page_compile_beside_the_header(tmp_path: Path) -> None:
    """Against declarations in place of ONNX Runtime's header."""
    prologue = """
    #include "paddlebox_serve.h"
    typedef struct OrtSession OrtSession; typedef struct OrtStatus OrtStatus;
    typedef struct OrtSessionOptions OrtSessionOptions; typedef struct OrtValue OrtValue;
    typedef struct OrtMemoryInfo OrtMemoryInfo; typedef int ONNXTensorElementDataType;
    typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;
    static struct { void (*ReleaseSession)(OrtSession *);
      OrtStatus *(*CreateTensorWithDataAsOrtValue)(const OrtMemoryInfo *, void *, size_t,
        const int64_t *, size_t, ONNXTensorElementDataType, OrtValue **);
      OrtStatus *(*Run)(OrtSession *, const void *, const char *const *, const OrtValue *const *,
        size_t, const char *const *, size_t, OrtValue **);
      OrtStatus *(*GetTensorMutableData)(OrtValue *, void **);
      OrtStatus *(*GetTensorTypeAndShape)(const OrtValue *, OrtTensorTypeAndShapeInfo **);
      OrtStatus *(*GetTensorShapeElementCount)(const OrtTensorTypeAndShapeInfo *, size_t *);
      void (*ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo *);
      void (*ReleaseValue)(OrtValue *);
      OrtStatus *(*CreateSessionOptions)(OrtSessionOptions **);
      void (*ReleaseSessionOptions)(OrtSessionOptions *);
      OrtStatus *(*CreateSessionFromArray)(void *, const void *, size_t, OrtSessionOptions *,
                                           OrtSession **); } api, *ort = &api;
    """
    functions, _, rest = blocks("c")[1].partition("paddlebox_options options")
    source = tmp_path / "sessions.c"
    source.write_text(
        textwrap.dedent(prologue) + functions + blocks("c")[2]
        + f"int main(void) {{ void *env = 0; paddlebox_options options{rest}"
        + "return options.context == env ? 0 : answer(0, 0, 0, 0); }\n"
    )  # fmt: skip
    made = compiled(source, tmp_path / "sessions")
    assert made.returncode == 0, made.stderr


def test_the_program_in_python_of_the_page_predicts(synthetic: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    source = tmp_path / "serve.py"
    source.write_text(blocks("python")[0])
    command = [sys.executable, str(source), str(library.LIBRARY), str(synthetic)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    version, probability = run.stdout.split()
    with Predictor(synthetic) as predictor:
        expected = predictor.predict([FIELDS])[0]
    assert version == "1"
    assert abs(float(probability) - expected) < 1e-5
