"""Draws conclusions from the facts: what will not work, what will be slow, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from paddlebox.config.section import GIB, MIB
from paddlebox.config.table import SsdConfig
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


# A condition, and the finding if it holds.
Check = tuple[bool, Level, str, str, str]


def findings(facts: Facts) -> list[Finding]:
    """All findings, the worst first."""
    checks = [*_software(facts), *_processor(facts), *_settings(facts), *_memory(facts)]
    checks += [*_disk(facts), *_open_files(facts)]
    results = [Finding(*check[1:]) for check in checks if check[0]]
    return sorted(results, key=lambda finding: list(Level).index(finding.level))


def _software(facts: Facts) -> list[Check]:
    python, names = ".".join(map(str, facts.python)), ", ".join(facts.packages_missing)
    return [
        (facts.machine != "x86_64", Level.FAILS, "machine",
            f"the processor is {facts.machine}, expected x86_64", "use Linux on x86-64"),
        (facts.python < (3, 11), Level.FAILS, "python", f"Python {python}, expected 3.11",
            "create an environment with Python 3.11"),
        (bool(names), Level.FAILS, "packages", f"not installed: {names}",
            "pip install paddlebox installs them"),
        (bool(facts.native_problem), Level.FAILS, "paddle", facts.native_problem,
            "see the message; docs/building.md"),
        (facts.gpus > 0, Level.NOTE, "gpu",
            f"there are {facts.gpus} GPUs; by default, training runs on the CPU",
            "hbm.place: gpu trains on one GPU (docs/gpu.md, docs/caveats.md)"),
    ]  # fmt: skip


def _processor(facts: Facts) -> list[Check]:
    return [
        (facts.vector_path == "plain", Level.SLOW, "vector path",
            "the processor has no AVX2: pull and push take much longer",
            "use a processor with AVX2 or AVX-512; the results are identical"),
        (facts.vector_path == "avx2", Level.NOTE, "vector path",
            "the kernels use AVX2, because the processor lacks AVX-512 f, bw, dq or vl",
            "nothing; a processor with AVX-512 is faster, with identical results"),
        (facts.dense_types.get("bfloat16") == "fast", Level.NOTE, "dense types",
            "products in bfloat16 are faster here than in float32",
            "trainer.dense_dtype: auto uses them (docs/running.md)"),
        (facts.cores == 1, Level.SLOW, "cores", "one core: loading and commits slow down training",
            "use two cores or more; see OMP_NUM_THREADS below"),
        (facts.load > facts.cores, Level.SLOW, "load",
            f"other programs already have {facts.load:.0f} threads for the {facts.cores} cores",
            "end other programs, or expect a slower run"),
        (facts.governor not in (None, "performance"), Level.SLOW, "governor",
            f"the frequency governor is {facts.governor}: short tasks run slowly",
            "cpupower frequency-set -g performance"),
        (facts.numa_nodes > 1, Level.NOTE, "numa",
            f"{facts.numa_nodes} memory nodes: rows of another node are slower",
            "run one rank per node with numactl --cpunodebind --membind (docs/ranks.md)"),
    ]  # fmt: skip


def _settings(facts: Facts) -> list[Check]:
    threads = facts.settings.get("OMP_NUM_THREADS", "")
    cpu_type = facts.settings.get("MKL_DEBUG_CPU_TYPE")
    wide = {"7": "avx512f", "5": "avx2"}  # as launch.cpu chooses
    wanted = next((value for value, flag in wide.items() if flag in facts.cpu_flags), None)
    slower = wanted is not None and cpu_type not in (None, wanted)
    return [
        (threads.isdigit() and int(threads) >= max(2, facts.cores), Level.SLOW,
            "OMP_NUM_THREADS",
            f"is {threads}, with {facts.cores} cores: all threads wait for the slowest one, and no "
            "core is left for the feeder and the store",
            "unset it: a run uses half of the cores"),
        ("compact" in facts.settings.get("KMP_AFFINITY", ""), Level.SLOW, "KMP_AFFINITY",
            "compact pins the main thread and its children to one core", "unset it"),
        (facts.settings.get("FLAGS_use_mkldnn", "0").lower() in ("1", "true"), Level.FAILS,
            "FLAGS_use_mkldnn", "static programs give wrong results", "unset it"),
        (facts.cpu_vendor == "AuthenticAMD" and slower, Level.SLOW, "MKL_DEBUG_CPU_TYPE",
            f"is {cpu_type}; {wanted} is several times faster here",
            f"unset it: a run sets it to {wanted}"),
    ]  # fmt: skip


def _memory(facts: Facts) -> list[Check]:
    limit = facts.memory_limit_bytes or facts.memory_bytes
    return [
        (facts.usable_bytes < _LEAST_MEMORY, Level.FAILS, "memory",
            f"{facts.usable_bytes / MIB:,.0f} MiB are free, expected {_LEAST_MEMORY // MIB}",
            "end other programs, or raise the limit of the container"),
        (limit < facts.memory_bytes, Level.NOTE, "memory",
            f"the container may use {limit / GIB:.1f} of {facts.memory_bytes / GIB:.1f} GiB; the "
            "kernel kills a run that uses more",
            "use the budgets below"),
        (facts.huge_pages == "never", Level.SLOW, "huge pages",
            "are off: access to rows needs more TLB entries",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"),
    ]  # fmt: skip


def _disk(facts: Facts) -> Iterator[Check]:
    yield (not facts.io_uring, Level.NOTE, "io_uring",
        "the kernel or the container forbids it; threads read instead",
        "nothing, or allow it in the seccomp profile of the container")  # fmt: skip
    yield (facts.filesystem in _NETWORK, Level.SLOW, "disk",
        f"{facts.filesystem} is a network file system: locks and syncs go over the network",
        "use a folder on a local disk, and checkpoint.copy_to for copies elsewhere")  # fmt: skip
    yield (facts.filesystem == "tmpfs", Level.FAILS, "disk",
        "tmpfs is memory: commits are lost when the machine stops",
        "use a folder on a disk")  # fmt: skip
    disk = facts.disk
    if disk is None or facts.filesystem == "tmpfs":
        return
    yield (not disk.direct, Level.SLOW, "disk",
        f"{facts.filesystem} has no direct I/O: the rates are those of the page cache",
        "use a folder on ext4 or xfs")  # fmt: skip
    for name, rate, least, unit in (
        ("reads", disk.read_bytes_per_s / 1e6, _SLOW_READ / 1e6, "MB/s in sequence"),
        ("writes", disk.write_bytes_per_s / 1e6, _SLOW_WRITE / 1e6, "MB/s in sequence"),
        ("reads", disk.random_reads_per_s, _SLOW_RANDOM, "random pages of 4 KiB per second"),
    ):
        yield (rate < least, Level.SLOW, "disk",
            f"it {name} {rate:,.0f} {unit}; an SSD {name} {least:,.0f} or more",
            "use an NVMe drive for the run dir, or a larger mem.budget_bytes")  # fmt: skip
    yield (disk.fsync_s > _SLOW_SYNC_S, Level.SLOW, "disk",
        f"a sync takes {disk.fsync_s * 1e3:.0f} ms: short passes wait for it",
        "use larger passes, or checkpoint.every: 10")  # fmt: skip


def _open_files(facts: Facts) -> list[Check]:
    if facts.disk is None or facts.filesystem == "tmpfs" or not facts.open_files:
        return []
    limit, segments = facts.open_files, facts.disk.free_bytes // _SEGMENT_BYTES + _OTHER_FILES
    return [
        (limit < _OTHER_FILES, Level.FAILS, "open files",
            f"the limit is {limit}, expected at least {_OTHER_FILES}", "ulimit -Hn 65536"),
        (_OTHER_FILES <= limit < segments, Level.NOTE, "open files",
            f"the limit is {limit}; a store that fills this disk opens {segments:,}",
            "ulimit -Hn 65536, or a larger ssd.max_segment_bytes"),
    ]  # fmt: skip
