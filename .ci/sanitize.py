"""Runs tests of Python on a native library that is built with address and undefined sanitizers.

    python .ci/sanitize.py [--jobs 2] [arguments of pytest]

The library, and the host build of ops/cuda for the tests that use it, are compiled in a copy of the
working tree, build/sanitized, so the normal builds stay. Later runs compile only what has changed.
The run fails if a test fails, or if any process wrote a report.

Python and Paddle are not instrumented, which leaves limits:
- Leaks are not looked for: CPython and Paddle never free much of what they allocate. The core's own
  tests (`make sanitize-asan`) look for them.
- An access is checked if it is in the project's code, or in a function of libc that ASan replaces.
- A delete of what new[] allocated is not reported: a destructor of Paddle (AttributeManager) does
  that at the end of every process, and ASan cannot suppress a single place. The core's own tests
  report it.
- memset, memcpy and memcmp of 0 bytes at a null pointer are not reported: Paddle's empty tensors
  have no address. C2y defines them, glibc always has, and with bytes to touch ASan reports the null
  pointer.
- .ci/sanitize.supp lists the suppressed reports of UBSan.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / "build" / "sanitized"
REPORTS = COPY / "build" / "reports"
SANITIZERS = (
    "-fsanitize=address,undefined -fno-sanitize=nonnull-attribute -fno-sanitize-recover=all"
    " -fno-omit-frame-pointer"
)
# As in tests/ops/Makefile. Python's own flags have -fwrapv, and then UBSan accepts an overflow.
COMPILE = f"-O1 -g1 -fno-wrapv -mmove-max=256 -mstore-max=256 {SANITIZERS}"
TO_BUILD = {
    "PADDLEBOX_CXXFLAGS": COMPILE,
    "LDFLAGS": SANITIZERS,
    # At its end setup.py opens the library, in a process that has begun without ASan's runtime.
    # That cannot work, and does not matter: the tests open it in processes that have it.
    "ASAN_OPTIONS": f"verify_asan_link_order=0:exitcode=0:log_path={REPORTS / 'build'}",
}
LOG_PATH = f"log_path={REPORTS / 'report'}"  # of each process, also of those that tests start
ASAN_OPTIONS = (
    "detect_leaks=0",
    "alloc_dealloc_mismatch=0",
    "detect_stack_use_after_return=1",
    "allocator_may_return_null=1",  # tests ask for more memory than there is
    "handle_segv=2",  # 2: Paddle and faulthandler do not replace the handler
    "handle_sigbus=2",
    LOG_PATH,
)
UBSAN_OPTIONS = (
    "print_stacktrace=1",
    f"suppressions={ROOT / '.ci' / 'sanitize.supp'}",
    LOG_PATH,  # else its runtime sets ASan's back to stderr, where its own reports always go
)

# Tests that cannot pass under ASan, with the reason.
DESELECTED = (
    # Its limit of memory stops ASan's runtime before it can throw bad_alloc.
    "tests/operators/test_static.py"
    "::test_a_cpp_exception_in_an_operator_is_an_error_and_the_process_lives",
)


def to_test() -> dict[str, str]:
    # The runtime of C++ must be there when ASan looks for __cxa_throw.
    preloaded = ("libasan.so", "libstdc++.so.6")
    return {
        "LD_PRELOAD": " ".join(map(library, preloaded)),
        "ASAN_OPTIONS": ":".join(ASAN_OPTIONS),
        "UBSAN_OPTIONS": ":".join(UBSAN_OPTIONS),
        "LD_LIBRARY_PATH": paddle_libraries(),
        "PYTHONPATH": str(COPY),
        # By default Paddle and Python cut tensors and objects from large blocks. ASan would know
        # only the blocks.
        "FLAGS_use_system_allocator": "1",
        "PYTHONMALLOC": "malloc",
    }


def paddle_libraries() -> str:
    """The folder of the libraries that Paddle opens by name.

    Their search path is that of the library which calls dlopen. Under ASan that is ASan's runtime.
    """
    spec = find_spec("paddle")  # does not import it
    if spec is None or spec.origin is None:
        sys.exit("sanitize: Paddle is not installed")
    return str(Path(spec.origin).parent / "libs")


def library(name: str) -> str:
    asked = ["g++", f"-print-file-name={name}"]
    done = subprocess.run(asked, check=True, capture_output=True, text=True)
    path = Path(done.stdout.strip())
    if not path.is_absolute():
        sys.exit(f"sanitize: g++ has no {name}")
    return str(path.resolve())


def update_copy() -> None:
    """Make the copy's files those of the working tree. What was built there stays."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True)
    names = {name for name in done.stdout.split("\0") if (ROOT / name).is_file()}
    for path in [path for path in COPY.rglob("*") if path.is_file()]:
        relative = path.relative_to(COPY)
        built = relative.parts[0] == "build" or path.stem in ("_ops", "_build_info")
        if str(relative) not in names and not built:
            path.unlink()
    for name in names:
        source, target = ROOT / name, COPY / name
        if not target.exists() or target.stat().st_mtime != source.stat().st_mtime:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def call(command: list[str], env: dict[str, str]) -> int:
    return subprocess.run(command, cwd=COPY, env={**os.environ, **env}, check=False).returncode


def run_tests(command: list[str]) -> tuple[int, list[str]]:
    """The exit code of pytest, and the lines with which UBSan's reports begin in its output."""
    process = subprocess.Popen(
        command, cwd=COPY, env={**os.environ, **to_test()}, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    found = []
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        if "runtime error: " in line:
            found.append(line)
    return process.wait(), found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options, tests = parser.parse_known_args()
    update_copy()
    REPORTS.mkdir(parents=True, exist_ok=True)
    jobs = str(options.jobs)
    extension = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    host_device = ["make", "-s", "-C", "tests/cuda", "-j", jobs, "host", f"CXX=g++ {COMPILE}"]
    if call(extension, {**TO_BUILD, "MAX_JOBS": jobs}) or call(host_device, {}):
        return 1
    for old in REPORTS.iterdir():
        old.unlink()
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--capture=sys"]
    pytest += [argument for test in DESELECTED for argument in ("--deselect", test)]
    failed, undefined = run_tests([*pytest, "-n", jobs, "--dist", "worksteal", *tests])
    written = [path.read_text(errors="replace") for path in sorted(REPORTS.iterdir())]
    reports = [text for text in written if "ERROR: " in text]  # others warn of a large request
    for report in reports + undefined:
        print(f"\n{report}")
    print(f"sanitize: {len(reports)} reports of ASan, {len(undefined)} of UBSan")
    return 1 if failed or reports or undefined else 0


if __name__ == "__main__":
    sys.exit(main())
