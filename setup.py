"""Builds the native extension `paddlebox._ops`, and from the objects of its core the serving
library `libpaddlebox_serve.so`. Everything else is in pyproject.toml."""

from __future__ import annotations

import importlib.util
import itertools
import os
import platform
import runpy
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.errors import CompileError

ROOT = Path(__file__).resolve().parent
EXTENSION = "paddlebox._ops"
if (sys.platform, platform.machine(), platform.libc_ver()[0]) != ("linux", "x86_64", "glibc"):
    libc = " without glibc" if sys.platform == "linux" and not platform.libc_ver()[0] else ""
    sys.exit(
        "paddlebox needs Linux on x86-64 with glibc, as Paddle does: found "
        f"{platform.system()} on {platform.machine()}{libc}. Install it on such a machine or in "
        "such a container, for example of Debian or Ubuntu"
    )
# With --no-build-isolation pip installs no build requirements. A new environment of Python 3.11 has
# neither of the two packages that can write a wheel.
if {"dist_info", "bdist_wheel", "editable_wheel"} & {*sys.argv} and not any(
    map(importlib.util.find_spec, ("wheel", "setuptools.command.bdist_wheel"))
):
    sys.exit(
        "building paddlebox needs the package wheel, or setuptools 70.1 or newer: "
        f"{sys.executable} has neither. Run `pip install wheel`, then the same command again"
    )
if "bdist_wheel" in sys.argv:  # else modules that have been removed since would be packed, too
    for packed in (ROOT / "build").glob("lib.*"):
        shutil.rmtree(packed)
paddle_version = runpy.run_path(str(ROOT / "paddlebox" / "_paddle_version.py"))

try:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="No ccache found")
        import paddle
        from paddle.utils.cpp_extension import BuildExtension, CppExtension, CUDAExtension
except ModuleNotFoundError as error:
    if error.name != "paddle":
        raise
    # If Paddle is installed, the usual cause is pip's isolated build environment.
    sys.exit(f"{paddle_version['absent']()} (pip needs --no-build-isolation)")
if not paddle_version["is_supported"](paddle.version.full_version):
    sys.exit(paddle_version["unsupported"](paddle.version.full_version))

PADDLE = f"Paddle {paddle.version.full_version} {paddle.version.commit}"
FLAGS = [
    "-std=c++17",
    "-O3",
    "-g0",
    "-DNDEBUG",  # this and the next are flags of Python itself, which the core does not get
    "-fwrapv",
    # These give the same bits on every processor: no fused multiply-add unless the source has one,
    # and no -march. Vector paths are chosen at run time, so a wheel runs on any x86-64 machine.
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-pthread",
    *os.environ.get("PADDLEBOX_CXXFLAGS", "").split(),  # of a build with sanitizers
]

# Errors name files without the folders of the machine that built the library.
FILE_NAMES = [f"-ffile-prefix-map={top}/=" for top in (ROOT, Path(paddle.__file__).parents[1])]

# --fmad=false: no fused multiply-add in device code either (docs/design.md). 2810: nvcc warns of a
# dropped result when a [[nodiscard]] class is assigned.
NVCC_FLAGS = [
    *("-std=c++17", "-O3", "--fmad=false", "--expt-relaxed-constexpr", "--extended-lambda"),
    *("-Xcompiler", "-fPIC,-fvisibility=hidden,-ffp-contract=off"),
    *("-diag-suppress", "2810"),
]
ARCHITECTURES = os.environ.get("PADDLEBOX_CUDA_ARCH", "80 86 89 90").split()

# std::condition_variable::wait, which ops/base/condition_wait.cc replaces.
WAIT = "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE"
LINK_FLAGS = ["-pthread", "-ldl", f"-Wl,--wrap={WAIT}"]

SERVING = "libpaddlebox_serve.so"
LAYERS = ("base", "row", "rule", "store", "table", "serve", "feed", "library")  # of SERVING

BUILD_INFO = '''"""Written by setup.py: what the native library beside this file was built with."""

PADDLE_VERSION = {version!r}
PADDLE_COMMIT = {commit!r}
PADDLE_CUDA = {cuda!r}
COMPILER = {compiler!r}
CXX11_ABI = True
SOURCES = {sources!r}  # digest of ops/
'''


class BuildNative(BuildExtension):  # type: ignore[misc]  # Paddle has no types
    """Paddle's BuildExtension, but incremental, and a compile error ends the build.

    Paddle's own prints a compile error and continues, so that an object of an earlier build may be
    linked. It compiles every file every time, gives an in-place library another name, and leaves a
    loader and a version.txt in the package. This class compiles an object if its source, a header
    that it includes, its command or Paddle has changed, and removes the old object first.

    The core, all of ops/ but ops/paddle, includes neither Paddle nor Python. It is compiled without
    their flags and folders, so that builds for several versions of Python share its objects.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        self.force = True  # is_fresh decides for each object; the link always runs
        # A fixed folder, because pip builds an editable install in a new temporary one every time.
        self.build_temp = str(ROOT / "build" / "objects")

    def build_extension(self, ext: Any) -> None:
        failed: list[str] = []
        compile_always, name_all = self.compiler._compile, self.compiler.object_filenames

        def name_objects(sources: list[str], strip_dir: bool, output_dir: str) -> list[str]:
            own = os.path.join(output_dir, sys.implementation.cache_tag or "")
            return [
                name
                for source in sources
                for name in name_all([source], strip_dir, output_dir if is_core(source) else own)
            ]

        def compile_if_changed(
            obj: str, src: str, _ext: str, cc_args: list[str], flags: list[str], _pp: list[str]
        ) -> None:
            command = self._command(src, cc_args, flags)
            recorded = "\n".join(command if is_core(src) else [PADDLE, *command])
            if is_fresh(Path(obj), recorded):
                return
            Path(obj).unlink(missing_ok=True)
            started = time.time()
            try:
                self.compiler.spawn([*command, "-o", obj, "-MMD", "-MF", f"{obj}.d"])
            except Exception:
                failed.append(str(Path(src).relative_to(ROOT)))
                raise
            os.utime(obj, (started, started))  # a header saved meanwhile is newer than the object
            Path(f"{obj}.cmd").write_text(recorded)

        self.compiler._compile = compile_if_changed
        self.compiler.object_filenames = name_objects
        # Paddle has been imported when the library is loaded, so libpaddle.so is found without a
        # search path, which would only hold the folders of the machine that built it.
        ext.runtime_library_dirs = []
        for linker in ("linker_so", "linker_so_cxx"):
            words = getattr(self.compiler, linker, [])
            setattr(self.compiler, linker, [w for w in words if not w.startswith("-Wl,-rpath")])
        try:
            super().build_extension(ext)
        except Exception as error:
            if failed:  # the link failed only because these objects are missing
                raise CompileError(f"failed to compile {', '.join(sorted(failed))}") from error
            raise
        finally:
            self.compiler._compile = compile_always
            self.compiler.object_filenames = name_all

    def _command(self, src: str, cc_args: list[str], flags: list[str]) -> list[str]:
        """Compiles a source; the name of the object is missing."""
        compiler: list[str] = self.compiler.compiler_so  # with flags of Python
        if src.endswith(".cu"):
            return [NVCC, *cc_args, src, *flags]
        if is_core(src):
            program = itertools.takewhile(lambda word: not word.startswith("-"), compiler)
            own = [flag for flag in flags if not flag.startswith("-I")]
            return [*program, "-fPIC", *own, f"-I{ROOT / 'ops'}", "-c", src]
        return [*compiler, *cc_args, src, *flags, *FILE_NAMES]

    def run(self) -> None:
        super().run()
        library = Path(self.get_ext_fullpath(EXTENSION)).resolve()
        (Path(self.build_lib) / "paddlebox" / "version.txt").unlink(missing_ok=True)
        self._link_serving_library(library.parent)
        library.with_name("_build_info.py").write_text(
            BUILD_INFO.format(
                version=paddle.version.full_version,
                commit=paddle.version.commit,
                cuda=str(paddle.version.cuda_version),
                compiler=compiler_version(self.compiler.compiler_so[0]),
                sources=runpy.run_path(str(ROOT / "ops" / "digest.py"))["digest"](),
            )
        )
        # Opens the library, because an undefined symbol shows only then.
        load = (
            "import importlib.util as u, sys, warnings; warnings.simplefilter('ignore'); "
            f"import paddle; s = u.spec_from_file_location({EXTENSION!r}, sys.argv[1]); "
            "s.loader.exec_module(u.module_from_spec(s))"
        )
        self.spawn([sys.executable, "-c", load, str(library)])

    def _link_serving_library(self, package: Path) -> None:
        """Link the serving library into the package, beside its header."""
        core = ROOT / "ops"
        objects = [
            str(Path(self.build_temp) / path.relative_to(ROOT).with_suffix(".o"))
            for layer in LAYERS
            for path in sorted((core / layer).rglob("*.cc"))
        ]
        exports = Path(self.build_temp) / f"{SERVING}.map"
        exports.write_text("{ global: paddlebox_*; local: *; };\n")
        own = [f"-Wl,--version-script={exports}", "-Wl,--no-undefined", f"-Wl,-soname,{SERVING}"]
        flags = [*LINK_FLAGS, *os.environ.get("PADDLEBOX_CXXFLAGS", "").split()]
        program = self.compiler.compiler_cxx[0]
        self.spawn([program, "-shared", *objects, *own, *flags, "-o", str(package / SERVING)])
        include = package / "include"
        include.mkdir(exist_ok=True)
        shutil.copyfile(core / "library" / "paddlebox_serve.h", include / "paddlebox_serve.h")

    # Steps of Paddle's run() that write a loader, rename the in-place library and delete objects.
    def _generate_python_api_file(self) -> None: ...
    def _rename_inplace_shared_library(self) -> None: ...
    def _clean_intermediate_files(self) -> None: ...


def is_core(source: str) -> bool:
    """Whether a source belongs to the core, as C++ (.ci/layers.py checks what it includes)."""
    in_paddle = Path(source).resolve().is_relative_to(ROOT / "ops" / "paddle")
    return source.endswith(".cc") and not in_paddle


def is_fresh(obj: Path, command: str) -> bool:
    """Whether obj was made by this command, from files that have not changed since."""
    try:
        if Path(f"{obj}.cmd").read_text() != command:
            return False
        made = obj.stat().st_mtime
        _, _, names = Path(f"{obj}.d").read_text().replace("\\\n", " ").partition(": ")
        return all(Path(name).stat().st_mtime < made for name in names.split())
    except FileNotFoundError:
        return False


def compiler_version(compiler: str) -> str:
    out = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    return out.splitlines()[0]


def find_nvcc() -> str:
    """The compiler for .cu files; empty if they are compiled for the host. Prints the reason."""
    if not paddle.is_compiled_with_cuda():
        print("paddlebox: this Paddle is for CPUs, so ops/cuda is compiled for the host")
        return ""
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    nvcc = shutil.which("nvcc", path=f"{named}/bin" if named else None)
    if nvcc is None:
        print(
            "paddlebox: this Paddle is for GPUs, but nvcc was not found "
            f"{f'in {named}/bin' if named else 'on PATH'}: hbm.place gpu will not work. Install a "
            f"CUDA toolkit {paddle.version.cuda_version}, or set CUDA_HOME, and build again"
        )
        return ""
    print(
        f"paddlebox: ops/cuda is compiled by {nvcc} for sm_{', sm_'.join(ARCHITECTURES)} "
        "(PADDLEBOX_CUDA_ARCH)"
    )
    return nvcc


def device_sources() -> list[str]:
    """The .cu files. Without nvcc, .cc files that include them, for the C++ compiler."""
    found = sorted((ROOT / "ops" / "cuda").glob("*.cu"))
    if NVCC:
        return [str(path.relative_to(ROOT)) for path in found]
    sources = []
    for path in found:
        name = path.relative_to(ROOT / "ops")
        source = (ROOT / "build" / "host_device" / name).with_suffix(".cc")
        source.parent.mkdir(parents=True, exist_ok=True)
        text = f'#include "{name}"\n'
        if not source.exists() or source.read_text() != text:
            source.write_text(text)
        sources.append(str(source.relative_to(ROOT)))
    return sources


NVCC = find_nvcc()
OF_PLUG_IN = {ROOT / "ops" / "gpu", ROOT / "ops" / "paddle" / "gpu"}  # see ops/gpu/Makefile
sources = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "ops").rglob("*.cc")
    if path.parent not in OF_PLUG_IN
)
gencode = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in ARCHITECTURES]
gencode += [f"-gencode=arch=compute_{arch},code=compute_{arch}" for arch in ARCHITECTURES[-1:]]
# From version 13 on, toolkits have Thrust, which Paddle's headers include, in a separate folder.
cccl = [str(Path(NVCC).parents[1] / "include" / "cccl")] if NVCC else []
extension = (CUDAExtension if NVCC else CppExtension)(
    sources=[*sources, *device_sources()],
    include_dirs=[str(ROOT / "ops"), *cccl],
    extra_compile_args={"cxx": FLAGS, "nvcc": [*NVCC_FLAGS, *gencode]},
    extra_link_args=[*LINK_FLAGS],  # to which Paddle adds its own library
)
extension.name = EXTENSION

setup(ext_modules=[extension], cmdclass={"build_ext": BuildNative})
