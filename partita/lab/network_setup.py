"""A cluster as input for `ip -batch` and `tc -batch`.

namespace 0    b0 ──── u1═c1 ── b1 ──── d0 ═ eth0   namespace 1 (rank 0)      bK: the bridge of a switch
(switches)      \\               └────── d1 ═ eth0   namespace 2 (rank 1)      ═ : a veth pair, a token bucket
                 └──── u2═c2 ── b2 ──── d2 ═ eth0   namespace 3 (rank 2)          at both ends: each way its own
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from partita.cluster.cluster import Cluster, Group, Link
from partita.cluster.text import default_burst
from partita.errors import ClusterError

INTERFACE: Final = "eth0"
NETWORK: Final = "10.77"
QUEUE_SECONDS: Final = 0.01
LEAST_QUEUE: Final = 1 << 18
MOST_QUEUE: Final = 1 << 31
PACKET: Final = 1448  # bytes that a packet of Ethernet brings, and those that stand before them
HEADERS: Final = 66
MOST_DEVICES: Final = 4096


@dataclass(frozen=True, slots=True)
class NetworkSetup:
    """Lines for `ip` and for `tc` by namespace; 0 holds the switches, rank r is in r + 1."""

    ip: tuple[tuple[str, ...], ...]
    tc: tuple[tuple[str, ...], ...]


def address(rank: int) -> str:
    """The address of a rank inside its lab; labs cannot see each other, so all use the same ones."""
    return f"{NETWORK}.{(rank + 1) // 256}.{(rank + 1) % 256}"


def wire_up(cluster: Cluster, paths: tuple[str, ...], netem: bool) -> NetworkSetup:
    """The wiring of a cluster whose rank r lives in the network namespace at `paths[r + 1]`.

    Raises ClusterError for more devices than a lab can hold.
    """
    if cluster.size > MOST_DEVICES:
        raise ClusterError(f"cluster {cluster.name} has {cluster.size} devices; a lab holds {MOST_DEVICES} at most")
    ip: list[list[str]] = [["link set lo up"] for _ in paths]
    tc: list[list[str]] = [[] for _ in paths]
    rank = bridges = 0

    def switch(group: Group) -> str:
        nonlocal rank, bridges
        bridge = f"b{bridges}"
        bridges += 1
        ip[0] += [f"link add {bridge} type bridge mcast_snooping 0", f"link set {bridge} addrgenmode none up"]
        for member, port in zip(group.members, group.ports, strict=True):
            if isinstance(member, Group):
                inner = switch(member)
                up, down = f"u{inner[1:]}", f"c{inner[1:]}"
                ip[0] += [f"link add {up} type veth peer name {down}", *_plug(up, bridge), *_plug(down, inner)]
                tc[0] += shape(up, port, netem) + shape(down, port, netem)
                continue
            end, place = f"d{rank}", rank + 1
            ip[0] += [f"link add {end} type veth peer name {INTERFACE} netns {paths[place]}", *_plug(end, bridge)]
            ip[place] += [f"link set {INTERFACE} addrgenmode none up", f"addr add {address(rank)}/16 dev {INTERFACE}"]
            tc[0] += shape(end, port, netem)
            tc[place] += shape(INTERFACE, port, netem)
            rank += 1
        return bridge

    switch(cluster.root)
    return NetworkSetup(tuple(map(tuple, ip)), tuple(map(tuple, tc)))


def _plug(end: str, bridge: str) -> list[str]:
    return [f"link set {end} addrgenmode none master {bridge} up"]


def shape(interface: str, link: Link, netem: bool, verb: str = "add") -> list[str]:
    """Lines that limit `interface` to the link's rate, and add its latency if the kernel has netem.

    The queue holds 10 ms, and no less than 256 KiB, so that bursts of several senders into one port are delayed rather
    than dropped. In a longer one what TCP confirms stands behind what goes the same way, and who sends the other way
    waits for it: with 50 ms, ports that many use both ways at once were idle for a tenth to a third of the time.

    A port's burst is of what packets bring, the bucket's also of their headers. A socket hands up to 64 KiB over at
    once, which count as 46 packets, each with its headers; a bucket that is smaller takes them apart, and either end
    then spends 30 us of its core on every 1,448 bytes.
    """
    burst = min(link.burst or default_burst(link.bandwidth), MOST_QUEUE // 2)
    burst += (burst // PACKET + 2) * HEADERS
    queue = min(burst + max(LEAST_QUEUE, round(QUEUE_SECONDS * link.bandwidth)), MOST_QUEUE)
    rate = max(8, round(link.bandwidth * 8))
    lines = [f"qdisc {verb} dev {interface} root handle 1: tbf rate {rate}bit burst {burst}b limit {queue}b"]
    if netem and link.latency:
        packets = 1000 + round(link.bandwidth * link.latency / 500)
        delay = f"delay {link.latency * 1e6:.3f}us limit {packets}"
        lines.append(f"qdisc {verb} dev {interface} parent 1:1 handle 10: netem {delay}")
    return lines
