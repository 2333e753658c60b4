"""The machines as a value: a tree of switches with devices for leaves.

lab-2x2            switch                       each member has one port into its group's switch;
             1 Gbit/s  |  1 Gbit/s              a message climbs from port to port to the lowest
                node 0   node 1                 common group and down again
       10 Gbit/s / \\       / \\ 10 Gbit/s
               0   1     2   3                  ranks count leaves from left to right
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from partita.units import Bytes, BytesPerSecond, FlopsPerSecond, Seconds


@dataclass(frozen=True, slots=True)
class Device:
    """A processor that computes.

    `flops` maps dtype to peak FLOP/s, and `sustained` to what large products reach for long, where that is known (a
    clock that power does not sustain, lanes that are not all fed); `memory` is in bytes, `memory_bandwidth` in bytes a
    second; `cores` is the share of host cores that the device may use (0.5 is half a core; 0: not limited); the
    computing of a `ghost` is a timed wait; `speed` is a factor on everything that it computes; `power` is in watts
    under load, `price` in dollars an hour; `multiprocessors` counts those of an accelerator (0: unknown). `host_memory`
    is what its machine has for it, as cluster files state it; nothing is predicted from it yet. Where `speed` makes up
    for another data sheet (`cost/unlike`), `stated` is the one without that (0: `speed` is).
    """

    kind: str = "cpu"
    backend: str = "cpu"
    flops: tuple[tuple[str, FlopsPerSecond], ...] = ()
    memory: Bytes = 0
    memory_bandwidth: BytesPerSecond = 0.0
    cores: float = 0.0
    speed: float = 1.0
    ghost: bool = False
    host_memory: Bytes = 0
    power: float = 0.0
    price: float = 0.0
    multiprocessors: int = 0
    sustained: tuple[tuple[str, FlopsPerSecond], ...] = ()
    stated: float = 0.0

    @property
    def handling(self) -> float:
        """The factor on what messages ask of it, of which no data sheet says anything."""
        return self.stated or self.speed

    @property
    def pace(self) -> float:
        """Core-seconds that one thread gets in a second: the speed, times the quota if that is below one core."""
        return self.speed * (self.cores if 0 < self.cores < 1 else 1.0)

    @property
    def hosted(self) -> bool:
        """Whether it computes on cores of its machine: it is no accelerator and no ghost."""
        return self.backend == "cpu" and not self.ghost


def in_all(stated: Iterable[float]) -> float:
    """The sum over devices of what each states of itself: watts, dollars an hour, FLOP/s. 0, unknown, unless all do."""
    values = tuple(stated)
    return sum(values) if all(values) else 0.0


@dataclass(frozen=True, slots=True)
class Link:
    """A port: `bandwidth` in bytes a second, each way if `duplex`, otherwise for both ways together; `latency` in
    seconds one way; `burst` is the bytes that a token bucket lets pass at once after an idle time."""

    bandwidth: BytesPerSecond
    latency: Seconds = 50e-6
    burst: Bytes = 0
    duplex: bool = True


@dataclass(frozen=True, slots=True)
class Group:
    """A switch and its members.

    `members` are devices or smaller groups; `ports[i]` is the link of member i into this switch. `sums` is the fraction
    of their bandwidth at which the switch itself adds up what its members send (NVLink SHARP; 0: it cannot). With a
    `mesh` there is no switch: `mesh[i][j]` wires go from member i to member j, and a member's bandwidth is divided
    among its wires.
    """

    name: str
    members: tuple[Device | Group, ...]
    ports: tuple[Link, ...]
    sums: float = 0.0
    mesh: tuple[tuple[int, ...], ...] = ()

    def devices(self) -> Iterator[Device]:
        """All devices below this switch, in the order of ranks."""
        for member in self.members:
            if isinstance(member, Group):
                yield from member.devices()
            else:
                yield member


@dataclass(frozen=True, slots=True)
class Port:
    """A link and its place in the tree: `path` has the member index at each level, so `(1,)` is node 1 and `(1, 0)` its
    device 0."""

    path: tuple[int, ...]
    link: Link


@dataclass(frozen=True)
class Cluster:
    """A tree of switches and devices. An `emulated` cluster runs in the lab of this machine; `interface` is the network
    interface that processes bind ("": loopback)."""

    name: str
    root: Group
    emulated: bool = False
    interface: str = ""

    @staticmethod
    def load(spec: str | Path) -> Cluster:
        """The cluster of a TOML file, a catalogue name or `local:N`. Raises ClusterError."""
        from partita.cluster.text import load_cluster

        return load_cluster(str(spec))

    def __repr__(self) -> str:
        return f"<Cluster {self.name} of {self.size} devices{', emulated' if self.emulated else ''}>"

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """The device of each rank."""
        return tuple(self.root.devices())

    def changed(self, change: Callable[[Device], Device]) -> Cluster:
        """The cluster with every device as `change` makes it; what is one group or device before is one after."""
        made = dict[int, Group | Device]()

        def below(group: Group) -> Group:
            for m in group.members:
                if id(m) not in made:
                    made[id(m)] = below(m) if isinstance(m, Group) else change(m)
            return replace(group, members=tuple(made[id(m)] for m in group.members))

        return replace(self, root=below(self.root))

    def rewired(self, change: Callable[[Link], Link]) -> Cluster:
        """The cluster with every link as `change` makes it."""

        def below(group: Group) -> Group:
            members = tuple(below(member) if isinstance(member, Group) else member for member in group.members)
            return replace(group, members=members, ports=tuple(map(change, group.ports)))

        return replace(self, root=below(self.root))

    @property
    def size(self) -> int:
        """The number of devices."""
        return len(self.devices)

    @cached_property
    def narrowest(self) -> BytesPerSecond:
        """The bandwidth of its narrowest link, by which a message across it is bound; 0 without links."""
        return min((port.link.bandwidth for climb in self.climbs for port in climb), default=0.0)

    @cached_property
    def climbs(self) -> tuple[tuple[Port, ...], ...]:
        """For each rank its ports, from the root of the tree down to the device."""
        return tuple(_climbs(self.root, (), ()))

    @cached_property
    def switches(self) -> tuple[Group, ...]:
        """For each rank the group that its device is directly in."""
        return tuple(_switches(self.root))

    @cached_property
    def machines(self) -> tuple[int, ...]:
        """For each rank the number of its machine; ranks of one machine share its memory. The lowest group
        above a device is its machine; a device directly below the root is one by itself. All devices of `local:N` and
        `local:cuda:N` are of one machine."""
        if self.name.startswith("local:"):
            return (0,) * self.size
        parents = [climb[-1].path[:-1] or climb[-1].path for climb in self.climbs]
        known = {path: number for number, path in enumerate(dict.fromkeys(parents))}
        return tuple(known[path] for path in parents)

    @cached_property
    def inside(self) -> frozenset[tuple[int, ...]]:
        """The paths of device ports within machines that have several devices."""
        many = Counter(self.machines)
        climbs = zip(self.climbs, self.machines, strict=True)
        return frozenset(climb[-1].path for climb, machine in climbs if many[machine] > 1)

    def route(self, source: int, target: int) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
        """The ports that a message from rank `source` to rank `target` climbs, and those that it descends."""
        up, down = self.climbs[source], self.climbs[target]
        common = 0
        while common < min(len(up), len(down)) and up[common].path == down[common].path:
            common += 1
        return tuple(reversed(up[common:])), down[common:]

    def way(self, source: int, target: int) -> Seconds:
        """The latency of the links from rank `source` to rank `target`."""
        return sum(port.link.latency for ports in self.route(source, target) for port in ports)


def _climbs(group: Group, path: tuple[int, ...], above: tuple[Port, ...]) -> Iterator[tuple[Port, ...]]:
    """The ports down to each device of a group, from those `above` it."""
    for i, (member, link) in enumerate(zip(group.members, group.ports, strict=True)):
        here = (*above, Port((*path, i), link))
        if isinstance(member, Group):
            yield from _climbs(member, (*path, i), here)
        else:
            yield here


def _switches(group: Group) -> Iterator[Group]:
    """The group that each device below a group is directly in."""
    for member in group.members:
        if isinstance(member, Group):
            yield from _switches(member)
        else:
            yield group
