"""What a cluster file says and nothing would come of: refused, for whoever wrote it meant something by it.

Not refused are names, `host_memory`, `power` and `price`, which tables and objectives read, and what is the default.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from partita.cluster.cluster import Cluster, Device, Group
from partita.errors import ClusterError


def check_heeded(cluster: Cluster, raw: dict[str, Any]) -> None:
    """Raises ClusterError for what stands in the tables `raw` of a file and does nothing for the cluster that they
    describe."""
    for each in _each(cluster.root, set()):
        _check_device(each) if isinstance(each, Device) else _check_switch(each, each is cluster.root)
    _check_links(raw["network"], "network")
    named = _named(raw["network"])
    if idle := next((kind for kind in raw.get("device", ()) if kind not in named), ""):
        raise ClusterError(
            f"device {idle!r} is described and no member names it; write device = {idle!r} in members, or leave its "
            "table out"
        )
    if cluster.emulated and cluster.interface:
        raise ClusterError(
            f"the file has interface = {cluster.interface!r} and emulated = true, and the lab makes interfaces of its "
            "own; leave one of the two out"
        )


def _each(group: Group, known: set[int]) -> Iterator[Group | Device]:
    """The switch, and all switches and devices below it; what is one object to many, once."""
    yield group
    for member in group.members:
        if id(member) not in known:
            known.add(id(member))
            yield from _each(member, known) if isinstance(member, Group) else (member,)


def _check_device(device: Device) -> None:
    if device.backend == "cpu" and (device.sustained or device.multiprocessors):
        key = "sustained" if device.sustained else "multiprocessors"
        raise ClusterError(
            f"device {device.kind!r} has {key} and backend = 'cpu', of which nothing is predicted from it; give "
            f"backend = 'cuda', or leave {key} out"
        )


def _check_switch(group: Group, root: bool) -> None:
    """Devices directly below the root are machines, and NCCL takes what lies between machines as a network."""
    cards = all(isinstance(member, Device) and member.backend == "cuda" for member in group.members)
    if (key := "sums" if group.sums else "mesh" if group.mesh else "") and (root or not cards):
        raise ClusterError(
            f"the switch {group.name!r} has {key}, from which something is predicted only within a machine of cuda "
            f"devices, which is a group below the root; leave {key} out, or give it to such a group"
        )
    if group.sums and group.mesh:
        raise ClusterError(f"the group {group.name!r} has a mesh, and sums of a switch; give one of the two")


def _check_links(group: dict[str, Any], where: str) -> None:
    if "link" in group and all("port" in member for member in group["members"]):
        raise ClusterError(f"{where} has a link, and every member a port of its own; leave the link out, or a port")
    for i, member in enumerate(group["members"]):
        if "members" in member:
            _check_links(member, f"{where}, member {i + 1}")


def _named(group: dict[str, Any]) -> set[str]:
    """The kinds of devices that members of a group name, those of inner groups among them."""
    inner = (_named(member) for member in group["members"] if "members" in member)
    return {member["device"] for member in group["members"] if "device" in member}.union(*inner)
