"""Runs clang-tidy on ops/: one process for each source file, several at a time.

The PyPI package has clang's own headers (stddef.h, immintrin.h, ...) and finds those of the
machine's C++ library as g++ does. ops/paddle is checked against the installed Paddle, whose headers
count as system headers. ops/cuda is checked as the host build compiles it.

With --nvcc, only the .cu files are checked, as CUDA, with the headers of that nvcc's toolkit. clang
then compiles the host's half of them. It cannot compile the device's half, the few lines after
`#ifdef __CUDA_ARCH__`: that needs a declaration (cudaConfigureCall) that new toolkits lack.

With --most 40, only so many sources are checked, those that changed last (recent.py). Parsing takes
nearly all of the time, 1 to 5 s of CPU time for a source.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from sysconfig import get_path

import recent

ROOT = Path(__file__).resolve().parent.parent


def paddle_includes() -> list[str]:
    spec = find_spec("paddle")  # does not import it
    if spec is None or spec.origin is None:
        sys.exit("tidy: Paddle is not installed: ops/paddle cannot be checked without it")
    include = Path(spec.origin).parent / "include"
    compat = include / "paddle/phi/api/include/compat"
    folders = [include, include / "third_party", compat, compat / "torch/csrc/api/include"]
    return [f"-isystem{folder}" for folder in (*folders, get_path("include"))]


TOP = "#$ TOP="  # how the line of nvcc's dry run begins that names its toolkit

# These files use `#pragma GCC target`, which clang does not know.
VECTOR = {"_avx2": ["-mavx2"], "_avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]}


def cuda_flags(nvcc: str, beside: Path) -> list[str]:
    """Flags that make clang compile for the toolkit of an nvcc. beside: an empty folder."""
    dry = subprocess.run(
        [nvcc, "--dryrun", "-x", "cu", "-c", "/dev/null"], capture_output=True, text=True
    )
    tops = [line[len(TOP) :] for line in dry.stderr.splitlines() if line.startswith(TOP)]
    if not tops:
        sys.exit(f"tidy: {nvcc} --dryrun does not name its toolkit:\n{dry.stderr}")
    # clang includes this header of cuRAND, which ops/ does not need and nvcc from PyPI lacks.
    (beside / "curand_mtgp32_kernel.h").touch()
    headers = [f"-isystem{folder}" for folder in (beside, f"{tops[0]}/include/cccl")]
    return ["-x", "cuda", "--cuda-host-only", f"--cuda-path={tops[0]}", "-nocudalib", *headers]


def flags_of(source: Path) -> list[str]:
    flags = ["-x", "c++"] if source.suffix == ".cu" else []
    if source.is_relative_to(ROOT / "ops" / "paddle"):
        flags += [*paddle_includes(), "-w"]
    if source.parent == ROOT / "ops" / "paddle" / "gpu":
        flags += ["-DPADDLE_WITH_CUSTOM_DEVICE", "-DPADDLE_WITH_CUSTOM_KERNEL"]
    for suffix, target in VECTOR.items():
        flags += target if source.stem.endswith(suffix) else []
    return flags


def check(source: Path, flags: Sequence[str]) -> tuple[Path, int, str]:
    common = ["-std=c++17", f"-I{ROOT / 'ops'}", "-pthread"]
    tidy = Path(sys.executable).with_name("clang-tidy")
    run = subprocess.run(
        [tidy, "--quiet", source, "--", *common, *flags], cwd=ROOT, capture_output=True, text=True
    )
    noise = ("warnings generated", "warning generated", "Suppressed ", "Use -header-filter")
    lines = [
        line
        for line in (run.stdout + run.stderr).splitlines()
        if not any(part in line for part in noise)
    ]
    return source, run.returncode, "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--nvcc", help="check the .cu files as CUDA, with this nvcc's headers")
    parser.add_argument(
        "--most",
        type=int,
        help="check only so many sources, the last changed; all if .clang-tidy is one of as many "
        "files that changed last",
    )
    parser.add_argument("files", nargs="*", type=Path, help="default: every source of ops/")
    args = parser.parse_args()
    suffixes = [".cu"] if args.nvcc else [".cc", ".cu"]
    found = [path for suffix in suffixes for path in (ROOT / "ops").rglob(f"*{suffix}")]
    sources = sorted(path.resolve() for path in args.files or found)
    if args.most and ROOT / ".clang-tidy" not in recent.changed()[: args.most]:
        sources = recent.choose(sources, args.most)
    bad = 0
    with ThreadPoolExecutor(args.jobs) as pool, tempfile.TemporaryDirectory() as beside:
        cuda = cuda_flags(args.nvcc, Path(beside)) if args.nvcc else None
        flags = [cuda or flags_of(source) for source in sources]
        for source, code, output in pool.map(check, sources, flags):
            if code != 0:
                bad += 1
                print(f"{source.relative_to(ROOT)}:\n{output}\n", flush=True)
    print(f"clang-tidy: {len(sources)} files, {bad} with findings")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
