"""Huge pages for the memory of the peers, because our table asks the system for them.

The peers allocate with malloc, which asks for none where they are given on request ("madvise" in
/sys/kernel/mm/transparent_hugepage/enabled). GLIBC_TUNABLES makes malloc ask, from glibc 2.35 on.
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
