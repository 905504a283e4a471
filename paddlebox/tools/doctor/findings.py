"""Draws conclusions from the facts: what will not work, what will be slow, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from paddlebox.config.tiers import SsdConfig
from paddlebox.config.units import GIB, MIB
from paddlebox.tools.doctor.facts import Facts

_LEAST_MEMORY = GIB
_SLOW_READ, _SLOW_WRITE = 300e6, 200e6  # bytes/s; slower: a hard disk or a network drive
_SLOW_RANDOM = 5_000  # reads of 4 KiB per second
_SLOW_SYNC_S = 0.02
_SEGMENT_BYTES = SsdConfig().max_segment_bytes
_OTHER_FILES = 256  # open files of Paddle, the log and the data
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "9p", "fuse.sshfs")


class Level(StrEnum):
    FAILS = "fails"  # something will not work
    SLOW = "slow"
    NOTE = "note"


@dataclass(frozen=True)
class Finding:
    level: Level
    topic: str
    what: str
    do: str  # what to do about it


def findings(facts: Facts) -> list[Finding]:
    """All findings, the worst first."""
    found = [*_software(facts), *_processor(facts), *_memory(facts), *_disk(facts)]
    return sorted(found, key=lambda one: list(Level).index(one.level))


def _software(facts: Facts) -> Iterator[Finding]:
    if facts.machine != "x86_64":
        yield Finding(
            Level.FAILS, "machine", f"the processor is {facts.machine}, expected x86_64",
            "use Linux on x86-64",
        )  # fmt: skip
    if facts.python < (3, 11):
        version = ".".join(map(str, facts.python))
        yield Finding(
            Level.FAILS, "python", f"Python {version}, expected 3.11",
            "create an environment with Python 3.11",
        )  # fmt: skip
    if facts.packages_missing:
        names = ", ".join(facts.packages_missing)
        yield Finding(
            Level.FAILS,
            "packages",
            f"not installed: {names}",
            "pip install paddlebox installs them",
        )
    if facts.native_problem:
        do = "see the message; docs/building.md"
        yield Finding(Level.FAILS, "paddle", facts.native_problem, do)
    if facts.gpus:
        yield Finding(
            Level.NOTE, "gpu", f"there are {facts.gpus} GPUs; by default, training runs on the CPU",
            "hbm.place: gpu trains on one GPU (docs/gpu.md, docs/caveats.md)",
        )  # fmt: skip


def _processor(facts: Facts) -> Iterator[Finding]:
    if facts.vector_path == "plain":
        yield Finding(
            Level.SLOW, "vector path", "the processor has no AVX2: pull and push take much longer",
            "use a processor with AVX2 or AVX-512; the results are identical",
        )  # fmt: skip
    if facts.vector_path == "avx2":
        yield Finding(
            Level.NOTE, "vector path", "the kernels use AVX2, because the processor lacks AVX-512 "
            "f, bw, dq or vl",
            "nothing; a processor with AVX-512 is faster, with identical results",
        )  # fmt: skip
    if facts.dense_types.get("bfloat16") == "fast":
        yield Finding(
            Level.NOTE, "dense types", "products in bfloat16 are faster here than in float32",
            "trainer.dense_dtype: auto uses them (docs/running.md)",
        )  # fmt: skip
    if facts.cores == 1:
        yield Finding(
            Level.SLOW, "cores", "one core: loading and commits slow down training",
            "use two cores or more; see OMP_NUM_THREADS below",
        )  # fmt: skip
    if facts.load > facts.cores:
        yield Finding(
            Level.SLOW, "load",
            f"other programs already have {facts.load:.0f} threads for the {facts.cores} cores",
            "end other programs, or expect a slower run",
        )  # fmt: skip
    if facts.governor not in (None, "performance"):
        yield Finding(
            Level.SLOW, "governor",
            f"the frequency governor is {facts.governor}: short tasks run slowly",
            "cpupower frequency-set -g performance",
        )  # fmt: skip
    if facts.numa_nodes > 1:
        yield Finding(
            Level.NOTE, "numa", f"{facts.numa_nodes} memory nodes: rows of another node are slower",
            "run one rank per node with numactl --cpunodebind --membind (docs/ranks.md)",
        )  # fmt: skip
    yield from _settings(facts)


def _settings(facts: Facts) -> Iterator[Finding]:
    threads = facts.settings.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) >= max(2, facts.cores):
        yield Finding(
            Level.SLOW, "OMP_NUM_THREADS",
            f"is {threads}, with {facts.cores} cores: all threads wait for the slowest one, and no "
            "core is left for the feeder and the store",
            "unset it: a run uses half of the cores",
        )  # fmt: skip
    if "compact" in facts.settings.get("KMP_AFFINITY", ""):
        yield Finding(
            Level.SLOW, "KMP_AFFINITY",
            "compact pins the main thread and its children to one core", "unset it",
        )  # fmt: skip
    if facts.settings.get("FLAGS_use_mkldnn", "0").lower() in ("1", "true"):
        yield Finding(
            Level.FAILS, "FLAGS_use_mkldnn", "static programs give wrong results", "unset it"
        )
    found = facts.settings.get("MKL_DEBUG_CPU_TYPE")
    wide = {"7": "avx512f", "5": "avx2"}  # as launch.cpu chooses
    wanted = next((value for value, flag in wide.items() if flag in facts.cpu_flags), None)
    if facts.cpu_vendor == "AuthenticAMD" and wanted and found not in (None, wanted):
        yield Finding(
            Level.SLOW, "MKL_DEBUG_CPU_TYPE", f"is {found}; {wanted} is several times faster here",
            f"unset it: a run sets it to {wanted}",
        )  # fmt: skip


def _memory(facts: Facts) -> Iterator[Finding]:
    if facts.usable_bytes < _LEAST_MEMORY:
        yield Finding(
            Level.FAILS, "memory",
            f"{facts.usable_bytes / MIB:,.0f} MiB are free, expected {_LEAST_MEMORY // MIB}",
            "end other programs, or raise the limit of the container",
        )  # fmt: skip
    limit = facts.memory_limit_bytes
    if limit is not None and limit < facts.memory_bytes:
        yield Finding(
            Level.NOTE, "memory",
            f"the container may use {limit / GIB:.1f} of {facts.memory_bytes / GIB:.1f} GiB; the "
            "kernel kills a run that uses more",
            "use the budgets below",
        )  # fmt: skip
    if facts.huge_pages == "never":
        yield Finding(
            Level.SLOW, "huge pages", "are off: access to rows needs more TLB entries",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )  # fmt: skip


def _disk(facts: Facts) -> Iterator[Finding]:
    if not facts.io_uring:
        yield Finding(
            Level.NOTE, "io_uring", "the kernel or the container forbids it; threads read instead",
            "nothing, or allow it in the seccomp profile of the container",
        )  # fmt: skip
    if facts.filesystem in _NETWORK:
        yield Finding(
            Level.SLOW, "disk",
            f"{facts.filesystem} is a network file system: locks and syncs go over the network",
            "use a folder on a local disk, and checkpoint.copy_to for copies elsewhere",
        )  # fmt: skip
    if facts.filesystem == "tmpfs":
        yield Finding(
            Level.FAILS, "disk", "tmpfs is memory: commits are lost when the machine stops",
            "use a folder on a disk",
        )  # fmt: skip
    disk = facts.disk
    if disk is None or facts.filesystem == "tmpfs":
        return
    if not disk.direct:
        yield Finding(
            Level.SLOW, "disk",
            f"{facts.filesystem} has no direct I/O: the rates are those of the page cache",
            "use a folder on ext4 or xfs",
        )  # fmt: skip
    for name, found, least, unit in (
        ("reads", disk.read_bytes_per_s / 1e6, _SLOW_READ / 1e6, "MB/s in sequence"),
        ("writes", disk.write_bytes_per_s / 1e6, _SLOW_WRITE / 1e6, "MB/s in sequence"),
        ("reads", disk.random_reads_per_s, _SLOW_RANDOM, "random pages of 4 KiB per second"),
    ):
        if found < least:
            yield Finding(
                Level.SLOW, "disk",
                f"it {name} {found:,.0f} {unit}; an SSD {name} {least:,.0f} or more",
                "use an NVMe drive for the run dir, or a larger mem.budget_bytes to read less",
            )  # fmt: skip
    if disk.fsync_s > _SLOW_SYNC_S:
        yield Finding(
            Level.SLOW, "disk",
            f"a sync takes {disk.fsync_s * 1e3:.0f} ms: short passes wait for it",
            "use larger passes, or checkpoint.every: 10",
        )  # fmt: skip
    segments = disk.free_bytes // _SEGMENT_BYTES + _OTHER_FILES
    if 0 < facts.open_files < _OTHER_FILES:
        yield Finding(
            Level.FAILS, "open files",
            f"the limit is {facts.open_files}, expected at least {_OTHER_FILES}",
            "ulimit -Hn 65536",
        )  # fmt: skip
    elif 0 < facts.open_files < segments:
        yield Finding(
            Level.NOTE, "open files",
            f"the limit is {facts.open_files}; a store that fills this disk opens {segments:,}",
            "ulimit -Hn 65536, or a larger ssd.max_segment_bytes",
        )  # fmt: skip
