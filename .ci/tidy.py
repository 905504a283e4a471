"""Runs clang-tidy on ops/: one process for each source file, several at a time.

The PyPI package has clang's own headers (stddef.h, immintrin.h, ...) and finds those of the
machine's C++ library as g++ does. ops/paddle is checked against the installed Paddle, whose headers
count as system headers. The .cu files need nvcc and are not checked.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from sysconfig import get_path

ROOT = Path(__file__).resolve().parent.parent


def paddle_includes() -> list[str]:
    spec = find_spec("paddle")  # does not import it
    if spec is None or spec.origin is None:
        sys.exit("tidy: Paddle is not installed: ops/paddle cannot be checked without it")
    include = Path(spec.origin).parent / "include"
    compat = include / "paddle/phi/api/include/compat"
    folders = [include, include / "third_party", compat, compat / "torch/csrc/api/include"]
    return [f"-isystem{folder}" for folder in (*folders, get_path("include"))]


# These files use `#pragma GCC target`, which clang does not know.
VECTOR = {"_avx2": ["-mavx2"], "_avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]}


def check(source: Path) -> tuple[Path, int, str]:
    flags = ["-std=c++17", f"-I{ROOT / 'ops'}", "-pthread"]
    if source.is_relative_to(ROOT / "ops" / "paddle"):
        flags += [*paddle_includes(), "-w"]
    for suffix, target in VECTOR.items():
        flags += target if source.stem.endswith(suffix) else []
    tidy = Path(sys.executable).with_name("clang-tidy")
    run = subprocess.run(
        [tidy, "--quiet", source, "--", *flags], cwd=ROOT, capture_output=True, text=True
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
    parser.add_argument("files", nargs="*", type=Path, help="default: every source of ops/")
    args = parser.parse_args()
    sources = args.files or sorted((ROOT / "ops").rglob("*.cc"))
    sources = [source.resolve() for source in sources]
    bad = 0
    with ThreadPoolExecutor(args.jobs) as pool:
        for source, code, output in pool.map(check, sources):
            if code != 0:
                bad += 1
                print(f"{source.relative_to(ROOT)}:\n{output}\n", flush=True)
    print(f"clang-tidy: {len(sources)} files, {bad} with findings")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
