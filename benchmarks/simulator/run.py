"""Instructions a second of the simulator's clock: a pipeline-like program on 4 to 1024 devices."""

from __future__ import annotations

import time

import numpy as np

from partita.simulator.activities import Activities, Demands, Places, Resources, assemble
from partita.simulator.clock import advance


def program(devices: int, rounds: int, *, shared: bool) -> tuple[Activities, Resources]:
    """Every round each device computes and sends to its right neighbour, which waits for it two rounds later.

    Lane d computes, lane devices + d sends. If `shared`, a message takes both devices' CPUs, which may burst, besides
    the two links, so that computing and messages slow each other down; else all have what they need to themselves.
    """
    draw = np.random.default_rng(0)
    cells = np.arange(devices * rounds, dtype=np.int32)
    device, turn = cells % devices, cells // devices
    compute, send = 2 * cells, 2 * cells + 1
    late = cells[turn >= 2]
    source = (turn[late] - 2) * devices + (device[late] - 1) % devices
    own = cells[turn >= 1]
    edges = (
        np.concatenate([compute, compute[own - devices], send[source]]),
        np.concatenate([send, compute[own], compute[late]]),
    )
    places = Places(np.concatenate([compute, send]), np.concatenate([device, devices + device]))
    work, size = draw.uniform(0.5e-3, 1.5e-3, len(cells)), draw.uniform(0.2e5, 1.0e5, len(cells))
    right = (device + 1) % devices
    if shared:
        demands = Demands(
            np.concatenate([compute, send, send, send, send]),
            np.concatenate([device, device, right, devices + device, 2 * devices + right]),
            np.concatenate([work, size * 1e-9, size * 1e-9, size, size]),
        )
    else:
        demands = Demands(places.activity, places.lane, np.concatenate([work, size]))
    latency = np.full(2 * len(cells), 5e-5)
    activities = assemble(2 * len(cells), edges=edges, places=places, demands=demands, latency=latency)
    rate = np.repeat([0.5, 1.25e8, 1.25e8], devices)
    peak = rate * np.repeat([2.0, 1.0, 1.0], devices) if shared else rate
    return activities, Resources(rate, peak, np.repeat([5e-3, 0.0, 0.0], devices))


def main() -> None:
    begin = time.process_time()
    advance(*program(2, 2, shared=True))
    print(f"first call, compiled or read from disk, {time.process_time() - begin:6.2f} s")
    for shared in (False, True):
        for devices in (4, 64, 1024):
            activities, resources = program(devices, 250_000 // devices, shared=shared)
            best = min(_processor_seconds(activities, resources) for _ in range(3))
            label = "shared" if shared else "unshared"
            print(f"{label:8} {devices:5} devices {activities.size / best / 1e6:6.2f} M instructions/s")


def _processor_seconds(activities: Activities, resources: Resources) -> float:
    begin = time.process_time()
    advance(activities, resources)
    return time.process_time() - begin


if __name__ == "__main__":
    main()
