"""Costs of devices that are unlike, each by its own data sheet.

    h100 h100 t4 t4     sheets  (h100's costs, t4's costs)     sheet  0 0 1 1

What a device computes, copies, updates and leaves idle between kernels goes by its own sheet; what messages take is of
the cluster. So it does not matter which device comes first. Formulas and bounds of a search know one list of prices and
a speed of each device (`cost/unlike`): `least` has the prices for which no device takes less than these say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache

from partita.cluster.cluster import Cluster, Device
from partita.cost.costs import Costs
from partita.cost.fabric import of_hosts
from partita.cost.launching import hosts_of
from partita.cost.touch import Touch


def without_quota(device: Device) -> Device:
    """The whole core of which a processor with a quota below one has a part. A data sheet says what the part does, and
    costs are seconds of the whole."""
    if device.backend == "cuda" or not 0 < device.cores < 1:
        return device
    flops = tuple((dtype, speed / device.cores) for dtype, speed in device.flops)
    return replace(device, cores=1.0, flops=flops, memory_bandwidth=device.memory_bandwidth / device.cores)


@cache
def sheet_of(device: Device) -> Device:
    """A device with nothing but what its prices go by."""
    whole = without_quota(device)
    return Device(
        backend=whole.backend, flops=whole.flops, sustained=whole.sustained, memory_bandwidth=whole.memory_bandwidth,
        multiprocessors=whole.multiprocessors, power=whole.power if whole.backend == "cuda" else 0.0,
    )  # fmt: skip


def by_sheets(cluster: Cluster, priced: Callable[[Device], Costs]) -> Costs:
    """What `priced` says of the cluster's first sheet, with those of the others beside it where the cluster is levelled
    (`cost/unlike`). A processor is its own host, which launches nothing."""
    if not any(device.stated for device in cluster.devices):
        return priced(sheet_of(cluster.devices[0]))
    found = {sheet: priced(sheet) for sheet in dict.fromkeys(map(sheet_of, cluster.devices))}
    places = {sheet: k for k, sheet in enumerate(found)}
    first, own = found[sheet_of(cluster.devices[0])], tuple(places[sheet_of(device)] for device in cluster.devices)
    stated = cluster.changed(lambda device: replace(device, speed=device.handling, stated=0.0))
    each = tuple(replace(one, cluster=stated, _sums={}) for one in found.values())
    launching = next((one.launching for one in each if one.launching), None)
    if launching and any(one.launching is None for one in each):
        hosts = tuple(one.launching or one for one in each)
        launching = replace(
            launching, cluster=hosts_of(cluster), wiring=of_hosts(first.wiring), sheets=hosts, sheet=own, _sums={}
        )
    return replace(first, launching=launching, sheets=each, sheet=own, _sums={})


def least(costs: Costs) -> Costs:
    """The prices, in core-seconds of the first device, of which every device at its speed in the cluster takes these or
    more; the costs themselves where devices are alike."""
    if not costs.sheets:
        return costs
    devices, factors = costs.cluster.devices, dict[int, float]()
    for rank, k in enumerate(costs.sheet):
        factors[k] = min(factors.get(k, float("inf")), devices[rank].speed / costs.sheets[k].speed(rank))
    known = [(costs.sheets[k].behind, factor) for k, factor in factors.items()]

    def of(touches: Iterable[Touch]) -> Touch:
        scaled = [one.times(factor) for one, (_, factor) in zip(touches, known, strict=True)]
        found = scaled[0]
        for one in scaled[1:]:
            found = found.least(one)
        return found

    names = known[0][0].operators
    return replace(
        costs, operators={name: min(factor * one.operators[name] for one, factor in known) for name in names},
        copy=of(one.copy for one, _ in known), add=of(one.add for one, _ in known),
        update=of(one.update for one, _ in known), load=of(one.load for one, _ in known),
        instruction=min(factor * one.instruction for one, factor in known), sheets=(), sheet=(), _sums={},
    )  # fmt: skip


def paced(costs: Costs, factor: float) -> Costs:
    """The costs with operators that take `factor` times as long."""
    operators = {name: seconds * factor for name, seconds in costs.operators.items()}
    return replace(costs, operators=operators, sheets=tuple(paced(one, factor) for one in costs.sheets), _sums={})
