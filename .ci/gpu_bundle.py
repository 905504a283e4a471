"""Packs what benchmarks/gpu_program.py needs on a GPU machine without network (docs/gpu.md).

    make gpu-bundle

The result is build/gpu-bundle with folders 1 and 2, of at most 55 MB each: such a machine
may take 64 MiB at once, beside 12 MB of this source. All archives are unpacked into one folder:

    site/    Paddle without what training does not need, and the packages that it and we import
    tree/    this source, with the extension for Python 3.12 and the GPU library built

The archives of Paddle are made once for each version: it takes minutes. Python 3.12 is that of
`.ci/wheels.py`. The GPU machine itself must have numpy, pyarrow, pillow and cuBLAS.
"""

from __future__ import annotations

import argparse
import lzma
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import wheels

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build/gpu-bundle"
LIMIT_BYTES = 55_000_000
PYTHON = "3.12"
#: What training does not call: sources, and libraries that are loaded when they are called.
LEFT_OUT = (
    *("include/", "apy/", "libs/liblapack.", "libs/libblas.", "libs/libgfortran."),
    *("libs/libquadmath.", "libs/libwarp", "libs/libopenvino_intel_cpu_plugin."),
)
#: Libraries that libpaddle.so links and training does not call, and the namespace of their names.
HOLLOW = {"libs/libopenvino": "2ov", "libs/libtbb": "3tbb"}
#: Which part holds what of Paddle, by the beginnings of names. The first part also has all that is
#: not of Paddle.
PARTS = {"1": ("base/libpaddle.so",), "2": ("",)}
PACKAGES = (
    *("annotated-types", "anyio", "certifi", "cloudpickle", "h11", "httpcore", "httpx", "idna"),
    *("iniconfig", "lmdb", "opt-einsum", "packaging", "pluggy", "protobuf"),
    *("pydantic", "pydantic_core", "Pygments", "pytest", "PyYAML", "safetensors", "setuptools"),
    *("tqdm", "typing_extensions", "typing-inspection"),
)
TREE = (
    *("Makefile", "benchmarks/*.py", "configs", "datasets", "ops", "paddlebox", "tools"),
    *("tests/conftest.py", "tests/gpu", "tests/models", "tests/support"),
)
FILTERS = [
    {"id": lzma.FILTER_X86},
    {"id": lzma.FILTER_LZMA2, "preset": 4, "dict_size": 64 << 20},
]

Files = Iterable[tuple[str, Path]]  # the name in the archive, and the file


def say(text: str) -> None:
    print(f"gpu-bundle: {text}", flush=True)


def paddle_files(folder: Path, part: str) -> Iterator[tuple[str, Path]]:
    """The files of Paddle that a part holds."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() or "__pycache__" in name or name.startswith(LEFT_OUT):
            continue
        if part != next(one for one, begins in PARTS.items() if name.startswith(begins)):
            continue
        spaces = [space for begin, space in HOLLOW.items() if name.startswith(begin)]
        hollow = [hollowed(path, space, folder / "base/libpaddle.so") for space in spaces]
        yield f"site/paddle/{name}", hollow[0] if hollow else path


def in_folder(folder: Path, name: str) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield f"{name}/{path.relative_to(folder).as_posix()}", path


def hollowed(library: Path, namespace: str, user: Path) -> Path:
    """Make a library that `user` loads in place of `library`: its functions end the process."""

    def names(path: Path, option: str) -> set[str]:
        lines = run("nm", "-D", option, path).splitlines()
        return {line.split()[-1].partition("@")[0] for line in lines if namespace in line}

    made = OUT / "work" / library.name
    made.parent.mkdir(parents=True, exist_ok=True)
    source = made.with_suffix(".c")
    found = sorted(names(library, "--defined-only") & names(user, "--undefined-only"))
    source.write_text("".join(f"void {name}(void) {{ __builtin_trap(); }}\n" for name in found))
    run("gcc", "-shared", "-nostdlib", "-w", f"-Wl,-soname,{library.name}", "-o", made, source)
    return made


def pack(archive: Path, files: Files) -> None:
    """Write the archive, all or nothing. Libraries lose the symbols that only debuggers read."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    made = archive.with_suffix(".part")
    stripped = archive.with_suffix(".stripped")
    with (
        lzma.open(made, "wb", filters=FILTERS) as stream,
        tarfile.open(fileobj=stream, mode="w|") as tar,
    ):
        for name, path in files:
            source = path
            if ".so" in path.name and b".symtab\0" in path.read_bytes():
                run("strip", "--strip-unneeded", "-o", stripped, path)
                source = stripped
            tar.add(source, name, filter=_anonymous)
    stripped.unlink(missing_ok=True)
    made.rename(archive)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def run(*command: str | Path) -> str:
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    if done.returncode != 0:
        output = f"{done.stdout}{done.stderr}"
        sys.exit(f"{output}gpu-bundle: {' '.join(map(str, command))} failed, see above")
    return done.stdout


def packages(python: Path, folder: Path) -> None:
    """Install PACKAGES, pinned, into an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    options = ("--no-deps", "--no-compile", "-c", wheels.PINS, "--target", folder)
    run(python, *wheels.PIP, "install", *options, *PACKAGES)
    shutil.rmtree(folder / "bin", ignore_errors=True)


def built(wheel: Path, folder: Path) -> None:
    """Take what a build writes into the package: the extension, its record, the GPU library."""
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(wheel) as files:
        found = [name for name in files.namelist() if name.startswith("paddlebox/_")]
        found = [name for name in found if Path(name).stem in BUILT]
        files.extractall(folder, found)
    if missing := BUILT - {Path(name).stem for name in found}:
        sys.exit(
            f"gpu-bundle: {wheel.name} lacks {', '.join(sorted(missing))}: run `make gpu` first"
        )


BUILT = {"_ops", "_build_info", "libpaddlebox_gpu"}


def tree_files(built_files: Path, host_results: Path) -> Iterator[tuple[str, Path]]:
    for name in sorted(filter(None, run("git", "ls-files", "-z", *TREE).split("\0"))):
        yield f"tree/{name}", ROOT / name
    yield from in_folder(built_files, "tree")
    yield f"tree/{host_results.relative_to(ROOT).as_posix()}", host_results


def check_sizes(out: Path) -> None:
    """Print the sizes; end with an error if a part is over the limit."""
    over = []
    for part in PARTS:
        sizes = {path.name: path.stat().st_size for path in sorted((out / part).iterdir())}
        total = sum(sizes.values())
        shown = ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in sizes.items())
        say(f"part {part}: {total / 1e6:.1f} MB ({shown})")
        over += [part] if total > LIMIT_BYTES else []
    if over:
        sys.exit(
            f"gpu-bundle: part {' and part '.join(over)} is over {LIMIT_BYTES / 1e6:.0f} MB: move "
            "files between PARTS, or leave more out with LEFT_OUT"
        )


def pack_paddle(paddle: Path, version: str) -> None:
    """Make the archives of Paddle that do not exist."""
    for part in PARTS:
        archive = OUT / part / f"paddle-{version}-{part}.tar.xz"
        if not archive.exists():
            say(f"packs {archive.relative_to(ROOT)}, which takes minutes")
            pack(archive, paddle_files(paddle, part))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--host-results", type=Path, required=True, help="of gpu_program.py")
    options = parser.parse_args(argv)
    found = wheels.find(PYTHON)
    if found is None:
        parser.error(f"python{PYTHON} is neither on PATH nor in pyenv, or lacks its venv module")
    python = wheels.environment(PYTHON, found)
    (paddle,) = python.parents[1].glob("lib/*/site-packages/paddle")
    version = next(paddle.parent.glob("paddlepaddle-*.dist-info")).stem.split("-")[1]
    pack_paddle(paddle, version)
    work = OUT / "work"
    packages(python, work / "site")
    wheels.DIST.mkdir(exist_ok=True)
    built(wheels.build(PYTHON, python), work / "tree")
    files = [*in_folder(work / "site", "site")]
    files += tree_files(work / "tree", options.host_results.resolve())
    pack(OUT / "1/program.tar.xz", files)
    check_sizes(OUT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
