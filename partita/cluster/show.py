"""A cluster as a drawing in text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from partita.cluster.cluster import Cluster, Device, Group, Link, in_all
from partita.units import show_bandwidth, show_bytes, show_flops, show_seconds


def show_cluster(cluster: Cluster) -> str:
    """The tree of switches and devices, ranks from top to bottom; alike neighbours share a line.

    lab-2x2: 4 devices, emulated
    └─ node0 and 1 more alike, to rank 3   [1 Gbit/s, no added latency]
       └─ ranks 0-1: 2 x half-core, 16 GFLOP/s fp64, ..., 0.5 cores   [10 Gbit/s, no added latency]
    """
    kind = ", emulated" if cluster.emulated else f", on interface {cluster.interface}" if cluster.interface else ""
    plural = "" if cluster.size == 1 else "s"
    power = in_all(device.power for device in cluster.devices)
    watts = f", {power / 1e3:.3g} kW" if power else ""
    return "\n".join([f"{cluster.name}: {cluster.size} device{plural}{kind}{watts}", *_lines(cluster.root, 0, "")])


def _lines(group: Group, rank: int, indent: str) -> Iterator[str]:
    runs = list(_runs(group))
    for i, (member, port, many) in enumerate(runs):
        last = i + 1 == len(runs)
        branch, deeper = ("└─ ", "   ") if last else ("├─ ", "│  ")
        if isinstance(member, Device):
            ranks = f"rank {rank}:" if many == 1 else f"ranks {rank}-{rank + many - 1}: {many} x"
            yield f"{indent}{branch}{ranks} {_device(member)}   [{_link(port)}]"
            rank += many
        else:
            size = sum(1 for _ in member.devices())
            alike = f" and {many - 1} more alike, to rank {rank + many * size - 1}" if many > 1 else ""
            facts = f"{', sums in its switch' if member.sums else ''}{', a mesh' if member.mesh else ''}"
            yield f"{indent}{branch}{member.name}{alike}{facts}   [{_link(port)}]"
            yield from _lines(member, rank, indent + deeper)
            rank += many * size


def _runs(group: Group) -> Iterator[tuple[Device | Group, Link, int]]:
    """Neighbours that differ in name at most, as (first, port, how many)."""
    first: tuple[Device | Group, Link] | None = None
    many = 0
    for member, port in zip(group.members, group.ports, strict=True):
        if first and _alike(first[0], member) and first[1] == port:
            many += 1
            continue
        if first:
            yield *first, many
        first, many = (member, port), 1
    if first:
        yield *first, many


def _alike(one: Device | Group, other: Device | Group) -> bool:
    if isinstance(one, Group) and isinstance(other, Group):
        return replace(one, name=other.name) == other
    return one == other


def _device(device: Device) -> str:
    lasting = {dtype: f" ({show_flops(speed)}/s sustained)" for dtype, speed in device.sustained}
    parts = [device.kind, *(f"{show_flops(speed)}/s {name}{lasting.get(name, '')}" for name, speed in device.flops)]
    parts += [show_bytes(device.memory)] if device.memory else []
    parts += [f"{device.memory_bandwidth / 1e9:.4g} GB/s memory"] if device.memory_bandwidth else []
    parts += [f"{device.cores:g} cores"] if device.cores else []
    parts += [f"speed {device.speed:g}"] if device.speed != 1 else []
    parts += ["ghost"] if device.ghost else []
    return ", ".join(parts)


def _link(link: Link) -> str:
    latency = show_seconds(link.latency) if link.latency else "no added latency"
    return f"{show_bandwidth(link.bandwidth)}, {latency}{'' if link.duplex else ', half duplex'}"
