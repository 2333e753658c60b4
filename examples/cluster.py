"""Machines as a file: write a cluster down, look at it, and run a command on every device of its emulation.

python examples/cluster.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import partita as pt
from partita import api
from partita.cluster.show import show_cluster
from partita.units import show_bandwidth

TEXT = """
schema = 1
name = "old-and-new"
emulated = true                      # devices become network namespaces of this machine

[device.fast]
backend = "cpu"
flops = { fp32 = "32 GFLOP/s" }
memory = "4 GiB"
memory_bandwidth = "6 GB/s"
cores = 0.5                          # half a core of this machine

[device.slow]
backend = "cpu"
flops = { fp32 = "16 GFLOP/s" }
memory = "2 GiB"
memory_bandwidth = "3 GB/s"
cores = 0.25

[network]
link = { bandwidth = "1 Gbit/s", latency = "0 us" }
members = [{ device = "fast", count = 2 }, { device = "slow" }]
"""
HELLO = "import os; print('I am rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])"


def main() -> int:
    """Print the tree and a route, then let every device say hello."""
    with TemporaryDirectory() as place:
        path = Path(place, "old-and-new.toml")
        path.write_text(TEXT)
        cluster = pt.Cluster.load(str(path))
    print(show_cluster(cluster))
    up, down = cluster.route(0, 2)
    narrowest = min(port.link.bandwidth for port in (*up, *down))
    print(f"from rank 0 to rank 2: {len(up)} port up, {len(down)} down, {show_bandwidth(narrowest)}", flush=True)
    return api.lab(cluster, [sys.executable, "-c", HELLO])


if __name__ == "__main__":
    sys.exit(main())
