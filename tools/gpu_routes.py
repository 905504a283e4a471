#!/usr/bin/env python3
"""Prints the routes of rows between the GPUs of a machine: nvidia-smi topo -m | tools/gpu_routes.py

There is a line for each GPU and a column for each other one: "link" if NVLink connects them, "by 3"
for a route through GPU 3, "host" if there is no route over NVLink. Needs neither a GPU nor CUDA.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from paddlebox.errors import PaddleBoxError
from paddlebox.launch import sigpipe
from paddlebox.ranks.routes import Route, Topology, busy, choose_routes


def cell(route: Route | None) -> str:
    if route is None:
        return "-"
    return {"one hop": "link", "host": "host"}.get(route.kind, f"by {route.gpus[1]}")


def main() -> int:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    try:
        topology = Topology.parse(sys.stdin.read())
    except PaddleBoxError as error:
        print(f"gpu_routes: {error}", file=sys.stderr)
        return 1
    routes, gpus = choose_routes(topology), range(len(topology.links))
    print("      " + "".join(f"GPU{b:<4}" for b in gpus))
    for a in gpus:
        print(f"GPU{a:<3}" + "".join(f"{cell(routes.get((a, b))):<7}" for b in gpus))
    kinds = [route.kind for route in routes.values()]
    print(", ".join(f"{kind} {kinds.count(kind)}" for kind in ("one hop", "two hops", "host")))
    load = busy(topology, routes)
    if load:
        print(f"all-to-all, one unit per pair: the busiest NVLink carries {max(load.values()):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(sigpipe.run(main))
