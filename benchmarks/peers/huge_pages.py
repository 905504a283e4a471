"""Huge pages for the memory of the peers, because our table asks the system for them.

The peers allocate with malloc, which asks for none where they are given on request ("madvise" in
/sys/kernel/mm/transparent_hugepage/enabled). GLIBC_TUNABLES makes malloc ask, from glibc 2.35 on.

Milliseconds of processor time a batch of setting (a) of hot_path.py, medians of three runs each in
turns, 10 M rows, one thread of an Intel Xeon with other work:

    subject                        pull, small and huge pages     push
    FBGEMM, row-wise Adagrad       7.4 and 4.1                    35.9 and 28.2
    FBGEMM, exact Adagrad          6.5 and 4.8                    20.5 and 18.3
    PyTorch's EmbeddingBag         5.9 and 2.9                    49.8 and 34.5
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_NAME, _TUNABLE = "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"
ENV = {_NAME: _TUNABLE}


def use_here() -> None:
    """Starts this program again with ENV, which is read at the start of a process, unless it has
    it. For programs in which peers run in the same process as the table."""
    if _TUNABLE not in os.environ.get(_NAME, ""):
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **ENV})


def share(process: int | str = "self") -> float:
    """The share of a process's resident memory that is on huge pages."""
    sizes = {}
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, value = line.partition(":")
        sizes[name] = int(value.split()[0])
    return sizes["AnonHugePages"] / max(sizes["Rss"], 1)
