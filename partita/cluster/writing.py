"""A cluster written as the TOML that reads back equal."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any, Final

import tomli_w

from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.cluster.quantity import write_bandwidth, write_bytes, write_flops, write_seconds, write_watts
from partita.cluster.text import SCHEMA, default_burst

WRITERS: Final[dict[str, Callable[[Any], str]]] = {
    "memory": write_bytes, "memory_bandwidth": write_bandwidth, "host_memory": write_bytes, "power": write_watts,
}  # fmt: skip


def write_cluster(cluster: Cluster) -> str:
    """TOML text; `read_cluster(write_cluster(c), c.name) == c`."""
    names = _device_names(cluster)
    kinds = {name: _device(device, name) for device, name in names.items()}
    file: dict[str, Any] = {"schema": SCHEMA, "name": cluster.name}
    if cluster.emulated:
        file["emulated"] = True
    if cluster.interface:
        file["interface"] = cluster.interface
    return tomli_w.dumps(file | {"device": kinds, "network": _group(cluster.root, names, cluster.emulated)})


def _device_names(cluster: Cluster) -> dict[Device, str]:
    """A table name for each different device: its kind, numbered where several share one."""
    names: dict[Device, str] = {}
    for device in dict.fromkeys(cluster.devices):
        kind, turn = device.kind, 2
        while kind in names.values():
            kind, turn = f"{device.kind}-{turn}", turn + 1
        names[device] = kind
    return names


def _device(device: Device, name: str) -> dict[str, Any]:
    plain = Device()
    written: dict[str, Any] = {} if device.kind == name else {"kind": device.kind}
    written["backend"] = device.backend
    for key, speeds in (("flops", device.flops), ("sustained", device.sustained)):
        if speeds:
            written[key] = {dtype: write_flops(speed) for dtype, speed in speeds}
    for field, write in WRITERS.items():
        if value := getattr(device, field):
            written[field] = write(value)
    for field in ("multiprocessors", "cores", "speed", "ghost", "price"):
        if getattr(device, field) != getattr(plain, field):
            written[field] = getattr(device, field)
    return written


def _link(link: Link, emulated: bool) -> dict[str, Any]:
    written: dict[str, Any] = {"bandwidth": write_bandwidth(link.bandwidth), "latency": write_seconds(link.latency)}
    if link.burst != (default_burst(link.bandwidth) if emulated else 0):
        written["burst"] = write_bytes(link.burst)
    return written if link.duplex else written | {"duplex": False}


def _group(group: Group, names: dict[Device, str], emulated: bool) -> dict[str, Any]:
    """The most frequent port becomes the group's `link`, the others a `port` of their own; equal runs get a `count`."""
    common = max(dict.fromkeys(group.ports), key=group.ports.count)
    entries = [(*_body(each, names, emulated), port) for each, port in zip(group.members, group.ports, strict=True)]
    members: list[dict[str, Any]] = []
    for (stem, body, port), alike in groupby(entries, key=lambda entry: entry[1:]):
        run = [name for name, *_ in alike]
        own = body if port == common else body | {"port": _link(port, emulated)}
        if stem is None:
            members.append(own | {"count": len(run)})
        elif stem and run == [f"{stem}{i}" for i in range(len(run))]:
            members.append({"name": stem, "count": len(run)} | own)
        else:
            members += [{"name": name} | own for name in run]
    facts = {key: value for key, value in (("sums", group.sums), ("mesh", [list(row) for row in group.mesh])) if value}
    return {"name": group.name, "link": _link(common, emulated), **facts, "members": members}


def _body(member: Device | Group, names: dict[Device, str], emulated: bool) -> tuple[str, str | None, dict[str, Any]]:
    """The member's name, its name without a number (None for a device) and the rest of its table."""
    if isinstance(member, Device):
        return "", None, {"device": names[member]}
    body = _group(member, names, emulated)
    return member.name, member.name.rstrip("0123456789"), {key: value for key, value in body.items() if key != "name"}
