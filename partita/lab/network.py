"""Opening the emulated cluster: one network namespace and control group a device, on this machine.

with open_lab(cluster) as lab:
    worker = lab.spawn(0, ["python", "train.py"])
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from partita.cluster.cluster import Cluster, Group
from partita.cluster.interfaces import check_interface
from partita.errors import ClusterError
from partita.lab.keeper_client import KeeperClient, NamespacesRefused, start_keeper
from partita.lab.lab import Lab, find_tool
from partita.lab.network_setup import wire_up
from partita.lab.quota import DeviceGroup, find_hierarchy, make_group, name_group
from partita.lab.record import new_run, reap, state_directory, write_record
from partita.units import Bytes

PORT: Final = 29500
# The same on all hosts. A host may prefer BBR, whose flows leave a third of a port unused where many share it by turns;
# and after a pause between two steps nobody should begin slowly on a link that is always there.
TRANSPORT: Final = (
    "echo reno > /proc/sys/net/ipv4/tcp_congestion_control",
    "echo 0 > /proc/sys/net/ipv4/tcp_slow_start_after_idle",
)
NO_GROUP: Final = DeviceGroup(2, None, None)
UNLIMITED: Final = "the memory of devices is no limit here: control groups for memory are refused"
NETEM_TRIAL: Final = ("qdisc add dev lo root netem delay 1us", "qdisc del dev lo root")


@contextmanager
def open_lab(cluster: Cluster, *, beside: Bytes | None = None) -> Iterator[Lab]:
    """A lab of the cluster, closed on every way out: namespaces as root, user namespaces without, loopback else.

    With `beside`, the kernel kills what takes more than its device's memory and so many bytes beside it, which are for
    the process itself. A cluster that is not emulated runs on loopback. Raises ClusterError for a cluster of machines
    that are not here.
    """
    check_here(cluster)
    reap()
    lab = _emulate(cluster, beside) if cluster.emulated else _loopback(cluster)
    try:
        yield lab
    finally:
        lab.close()


def check_here(cluster: Cluster) -> None:
    """Raises ClusterError for a cluster of machines that are not here."""
    if sys.platform != "linux":
        raise ClusterError(f"cluster {cluster.name} runs in the lab, which needs Linux; this is {sys.platform}")
    groups = sum(isinstance(member, Group) for member in cluster.root.members)
    if groups > 1 and not cluster.emulated:
        raise ClusterError(
            f"cluster {cluster.name} is more than one machine; start it there under torchrun, or set emulated = true "
            "in a copy to rehearse it here"
        )
    real = any(device.backend == "cuda" and not device.ghost for device in cluster.devices)
    if real and not Path("/dev/nvidiactl").exists():
        raise ClusterError(
            f"cluster {cluster.name} has cuda devices and this machine has none; take a cluster of cpu devices, "
            "or a copy of it with ghost = true for each, whose computing is then a timed wait"
        )
    if real and cluster.emulated:
        raise ClusterError(
            f"cluster {cluster.name} is emulated, and its cuda devices would be one card here; take emulated = false, "
            "or ghost = true for each, whose computing is then a timed wait"
        )
    if cluster.interface and not cluster.emulated:
        check_interface(cluster.interface, f"cluster {cluster.name}", ClusterError)


def _emulate(cluster: Cluster, beside: Bytes | None) -> Lab:
    """The first kind of lab that this machine allows."""
    reasons = dict[str, None]()
    for kind in ("namespaces", "user namespaces") if os.geteuid() == 0 else ("user namespaces",):
        try:
            return _namespaces(cluster, kind, beside)
        except NamespacesRefused as refusal:
            reasons[str(refusal)] = None  # both kinds may have the same one
    why = "; ".join(reasons)
    return _loopback(
        cluster, f"network namespaces are refused here ({why}): plain processes on loopback, no bandwidth, no quota"
    )


def _namespaces(cluster: Cluster, kind: str, beside: Bytes | None) -> Lab:
    run = new_run()
    record = state_directory() / f"lab-{run}.json"
    user = kind == "user namespaces"
    tools = find_tool("ip"), find_tool("tc")
    limits = tuple(one.memory + beside if one.memory and beside is not None else 0 for one in cluster.devices)
    keeper = start_keeper(run, record, "user" if user else "root", cluster.size + 1)
    try:
        netem, same = _connect(cluster, keeper, *tools), _same_transport(cluster, keeper)
        groups, without = (
            ((), "without root there are no CPU quotas: times mean nothing")
            if user
            else _control_groups(cluster, keeper, limits)
        )
        write_record(record, run, tuple(each for group in groups for each in group.directories))
    except BaseException:
        keeper.release()
        raise
    made = cluster if netem else without_latency(cluster)
    unlimited = any(limits) and not all(group.memory for group in groups or (NO_GROUP,))
    notes = (*_notes(cluster, netem, same, without), *((UNLIMITED,) if unlimited else ()))
    return Lab(made, kind, notes, keeper, groups, PORT, limits=() if unlimited else limits)


def without_latency(cluster: Cluster) -> Cluster:
    """The cluster with links that take their bytes' time alone."""
    return cluster.rewired(lambda link: replace(link, latency=0.0))


def _connect(cluster: Cluster, keeper: KeeperClient, ip: str, tc: str) -> bool:
    """Makes the links, first the switches' side, and shapes them; whether latency is emulated."""
    netem = False
    if any(port.link.latency for climb in cluster.climbs for port in climb):
        trial = keeper.ask({"run": [(0, [tc, "-batch", "-"], "\n".join(NETEM_TRIAL))]})
        netem = trial["run"][0][0] == 0
    wiring = wire_up(cluster, keeper.paths(), netem)
    keeper.carry_out(ip, (wiring.ip[0],))
    keeper.carry_out(ip, ((), *wiring.ip[1:]))
    keeper.carry_out(tc, wiring.tc)
    return netem


def _same_transport(cluster: Cluster, keeper: KeeperClient) -> bool:
    """Whether every device speaks TCP as `TRANSPORT` says; another host's preferences would give other times."""
    work = [(place, ["sh", "-ec", "\n".join(TRANSPORT)], "") for place in range(1, cluster.size + 1)]
    return not any(code for code, _ in keeper.ask({"run": work})["run"])


def _control_groups(
    cluster: Cluster, keeper: KeeperClient, limits: tuple[Bytes, ...]
) -> tuple[tuple[DeviceGroup, ...], str]:
    """The group of each rank, or none and the reason. Recorded and told to the keeper before they are made."""
    hierarchy = find_hierarchy()
    groups = tuple(name_group(hierarchy, f"partita-{keeper.run}-{rank}") for rank in range(cluster.size))
    directories = [each for group in groups for each in group.directories]
    write_record(keeper.record, keeper.run, tuple(directories))
    keeper.ask({"groups": directories})
    try:
        for group, device, limit in zip(groups, cluster.devices, limits, strict=True):
            make_group(group, 0.0 if device.ghost else device.cores, limit)
    except OSError as error:
        return (), f"control groups are refused here ({error}): no CPU quotas, so times mean nothing"
    return groups, ""


def _notes(cluster: Cluster, netem: bool, same: bool, without: str) -> tuple[str, ...]:
    links = [port.link for climb in cluster.climbs for port in climb]
    asked = sum(device.cores for device in cluster.devices if not device.ghost)
    here = len(os.sched_getaffinity(0))
    ghosts = sum(device.ghost for device in cluster.devices)
    notes = {
        without: bool(without),
        "latency is not emulated, the kernel has no netem: in runs and predictions messages take some 20 us": (
            not netem and any(link.latency for link in links)
        ),
        "the host does not let the lab choose how TCP avoids congestion: messages go as the host prefers": not same,
        "half-duplex links are emulated as full duplex": not all(link.duplex for link in links),
        f"the devices ask for {asked:g} cores and this machine has {here}: times are longer than the cluster's": (
            asked > here
        ),
        f"{ghosts} of {cluster.size} devices are ghosts: their computing is a timed wait, their messages are real": (
            ghosts > 0
        ),
    }
    return tuple(note for note, holds in notes.items() if holds)


def _loopback(cluster: Cluster, reason: str = "") -> Lab:
    """Plain processes, and a socket that listens on 127.0.0.1 alone, so that no store need be open to the network."""
    run = new_run()
    record = state_directory() / f"lab-{run}.json"
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=max(128, cluster.size)))
        keeper = start_keeper(run, record, "plain", 0)
        stack.callback(keeper.release)
        write_record(record, run, ())
        stack.pop_all()
    notes = (reason,) if reason else ()
    return Lab(without_latency(cluster), "loopback", notes, keeper, (), listener.getsockname()[1], listener)
