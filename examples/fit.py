"""Does a model fit, and what would make it fit? Nothing is run and no weights are allocated.

python examples/fit.py [TASK [CLUSTER ...]]
"""

from __future__ import annotations

import sys

import partita as pt
from partita import api
from partita.units import show_bytes


def main(task: str = "llama3-8b", *places: str) -> None:
    """Say for each cluster whether data parallelism over all of it fits, and the change that costs least if not."""
    graph = pt.capture(task)
    for place in places or ("rtx4090-10gbe", "h100-dgx"):
        found = api.fit(graph, pt.Cluster.load(place))
        room = f"{show_bytes(abs(found.margin))} {'to spare' if found.fits else 'too much'}"
        print(f"{place}: {found.plan.name} {'fits' if found.fits else 'does not fit'}, {room}")
        print("   " + ", ".join(f"{name} {show_bytes(size)}" for name, size in found.parts.items() if size))
        if found.change:
            print(f"   {found.change}")


if __name__ == "__main__":
    main(*sys.argv[1:])
