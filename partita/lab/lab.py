"""An open lab: its devices and links, and the processes on them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from partita.cluster.cluster import Cluster, Link
from partita.cost.costs import Host
from partita.errors import ClusterError, RunError
from partita.lab import enter
from partita.lab.fork_client import ONE_THREAD, WORKER, Forked, fork_worker
from partita.lab.keeper import MARK
from partita.lab.keeper_client import KeeperClient, NamespacesRefused
from partita.lab.network_setup import INTERFACE, address, shape
from partita.lab.quota import (
    DeviceGroup,
    killed_for_memory,
    memory_peak,
    process_files,
    reset_memory_peak,
    set_cores,
    set_memory,
)
from partita.runs.listener import LISTENER
from partita.units import Bytes, BytesPerSecond, Seconds

EXIT_TIMEOUT: Final[Seconds] = 5.0  # of a process that was killed
TOOLS: Final = os.pathsep.join((os.defpath, "/usr/sbin", "/sbin"))


@dataclass
class Lab:
    """An open lab. `cluster` is the one that it emulates, without latency where the kernel has none; `kind` is
    'namespaces', 'user namespaces' or 'loopback'; `notes` say what is not emulated. `limits` are the bytes in memory at
    which the kernel kills a process of each device, 0 where it does not.

    Processes die with the thread that spawned them (the kernel's parent-death signal), workers that were forked with
    this process, so open and use a lab from a thread that lives as long as the run. MASTER_PORT is free inside
    namespaces; on loopback `listener` holds it.
    """

    cluster: Cluster
    kind: str
    notes: tuple[str, ...]
    keeper: KeeperClient
    groups: tuple[DeviceGroup, ...]
    port: int
    listener: socket.socket | None = None
    limits: tuple[Bytes, ...] = ()
    processes: list[subprocess.Popen[Any] | Forked] = field(default_factory=list)
    watches: list[int] = field(default_factory=list)

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The cores of this machine that the devices share."""
        return hosts_of(self.cluster, sorted(os.sched_getaffinity(0)), bool(self.groups))

    @property
    def addresses(self) -> tuple[str, ...]:
        """The address of each rank; loopback's for all if there are no namespaces."""
        if self.kind == "loopback":
            return ("127.0.0.1",) * self.cluster.size
        return tuple(address(rank) for rank in range(self.cluster.size))

    @property
    def interface(self) -> str:
        """The network interface of each device."""
        return "lo" if self.kind == "loopback" else INTERFACE

    def environment(self, rank: int) -> dict[str, str]:
        """What torch.distributed reads, one thread a device, freed memory kept, and the lab's mark."""
        local, locals_ = _place(self.cluster, rank)
        return {
            "RANK": str(rank), "WORLD_SIZE": str(self.cluster.size),
            "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(locals_),
            "MASTER_ADDR": self.addresses[0], "MASTER_PORT": str(self.port),
            "GLOO_SOCKET_IFNAME": self.interface, **ONE_THREAD, MARK: self.keeper.run,
        }  # fmt: skip

    def spawn(
        self, rank: int, argv: Sequence[str], env: Mapping[str, str] | None = None, *, listen: bool = False,
        **popen: Any,
    ) -> subprocess.Popen[Any]:  # fmt: skip
        """Starts a process on a device, in a session of its own; `env` adds to this process's environment, `popen`
        goes to subprocess.Popen. It dies with this process. With `listen`, on loopback, it inherits a socket that
        listens at MASTER_PORT on 127.0.0.1 alone, its number in LISTENER."""
        shim = [sys.executable, "-I", "-S", str(enter.__file__), json.dumps(self._settings(rank)), *argv]
        whole = {**os.environ, **self.environment(rank), **(env or {})}
        if listen and self.listener:
            whole[LISTENER] = str(self.listener.fileno())
            popen["pass_fds"] = (*popen.get("pass_fds", ()), self.listener.fileno())
        process = subprocess.Popen(shim, env=whole, start_new_session=True, **popen)
        self.processes.append(process)
        return process

    def fork(self, rank: int, env: Mapping[str, str], error: int, *, listen: bool = False) -> Forked:
        """Starts a worker (`partita.lab.serve`) on a device as `spawn` would, `error` its standard error, without
        loading anything anew. Raises RunError."""
        listener = self.listener.fileno() if listen and self.listener else None
        marked = {} if listener is None else {LISTENER: "3"}
        whole = {**os.environ, **self.environment(rank), **WORKER, **env, **marked}
        worker = fork_worker(whole, self._settings(rank), error, listener)
        self.processes.append(worker)
        return worker

    def _settings(self, rank: int) -> dict[str, Any]:
        """What `enter` is told."""
        return {
            "parent": os.getpid(),
            "namespaces": self.keeper.entrance(rank + 1),
            "groups": process_files(self.groups[rank]) if self.groups else [],
            "core": core_of(self.cluster, rank, sorted(os.sched_getaffinity(0))) if self.groups else -1,
        }

    def watch(self, process: subprocess.Popen[Any] | Forked) -> int:
        """A descriptor that becomes readable when the process ends; closed with the lab."""
        self.watches.append(os.pidfd_open(process.pid))
        return self.watches[-1]

    def counters(self, rank: int) -> tuple[Bytes, Bytes]:
        """Bytes (sent, received) by the device's interface since the lab opened, headers included.

        Raises ClusterError on loopback, where devices share one interface.
        """
        if self.kind == "loopback":
            raise ClusterError(
                f"{self.cluster.name} runs on loopback, where bytes of one device are not counted; use a lab"
            )
        sent, received = self.keeper.ask({"count": rank + 1})["count"][INTERFACE]
        return sent, received

    def memory_peak(self, rank: int, *, reset: bool = False) -> Bytes:
        """The control group's peak, page cache included; 0 where not known. `reset` starts it anew after reading."""
        peak = memory_peak(self.groups[rank]) if self.groups else 0
        if reset and self.groups:
            reset_memory_peak(self.groups[rank])
        return peak

    def killed_for_memory(self, rank: int) -> bool:
        """Whether the kernel killed a process of the device at its memory limit."""
        return bool(self.groups) and killed_for_memory(self.groups[rank])

    def set_bandwidth(self, rank: int, bandwidth: BytesPerSecond) -> None:
        """Both directions of the device's port, from now on. Raises ClusterError on loopback, RunError if refused."""
        if self.kind == "loopback":
            raise ClusterError(f"cluster {self.cluster.name} runs on loopback; its bandwidth cannot be set")
        if not bandwidth > 0:
            raise ClusterError(f"bandwidth {bandwidth!r} for rank {rank} is not above zero; give bytes a second")
        link = Link(bandwidth)
        batches: list[tuple[str, ...]] = [()] * (self.cluster.size + 1)
        batches[0] = tuple(shape(f"d{rank}", link, False, "change"))
        batches[rank + 1] = tuple(shape(INTERFACE, link, False, "change"))
        self._change(rank, "tc", tuple(batches))

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Within it no device has a quota or a limit of memory, if any has one: what is no part of a step, such as
        loading torch, need neither wait nor fit."""
        devices = self.cluster.devices if self.groups else ()
        limited = [(group, one.cores) for group, one in zip(self.groups, devices, strict=True) if one.cores]
        filled = [(group, limit) for group, limit in zip(self.groups, self.limits, strict=False) if limit]
        for group, _ in limited:
            set_cores(group, 0.0)
        for group, _ in filled:
            set_memory(group, 0)
        try:
            yield
        finally:
            for group, cores in limited:
                set_cores(group, cores)
            for group, limit in filled:
                with suppress(OSError):  # it has more than that by now
                    set_memory(group, limit)

    def set_link(self, rank: int, up: bool) -> None:
        """Takes the device's link down, or up again. Raises ClusterError on loopback, RunError if refused."""
        if self.kind == "loopback":
            raise ClusterError(f"cluster {self.cluster.name} runs on loopback; it has no links to take down")
        batches: list[tuple[str, ...]] = [()] * (self.cluster.size + 1)
        batches[rank + 1] = (f"link set {INTERFACE} {'up' if up else 'down'}",)
        self._change(rank, "ip", tuple(batches))

    def _change(self, rank: int, tool: str, batches: tuple[tuple[str, ...], ...]) -> None:
        """Change a link of the open lab by the lines for each namespace. Raises RunError if the machine refuses."""
        try:
            self.keeper.carry_out(find_tool(tool), batches)
        except NamespacesRefused as refusal:
            raise RunError(
                f"the link of rank {rank} cannot be changed ({refusal}); open the lab again", rank=rank
            ) from None

    def set_quota(self, rank: int, cores: float) -> None:
        """The device's share of the cores from now on; 0 lifts it. Raises ClusterError without control groups."""
        if not self.groups:
            raise ClusterError(f"cluster {self.cluster.name} runs without control groups; its quotas cannot be set")
        set_cores(self.groups[rank], cores)

    def free_port(self) -> None:
        """Gives MASTER_PORT up on loopback, for a program that binds it by itself."""
        if self.listener:
            self.listener.close()
            self.listener = None

    def close(self) -> None:
        """Kills every process of the lab, waits for them, and removes what the lab made."""
        for process in self.processes:
            _kill(process)
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(EXIT_TIMEOUT)
        while self.watches:
            os.close(self.watches.pop())
        self.free_port()
        self.keeper.release()


def _kill(process: subprocess.Popen[Any] | Forked) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()


def core_of(cluster: Cluster, rank: int, cores: Sequence[int]) -> int:
    """The core that a device's quota is a part of: the least loaded one, lower ranks first (-1: any).

    The kernel hands a quota out in slices, one core at a time; threads on two cores each hold a slice that the other
    one lacks, and the device gets less than its share. Where devices ask for more cores than there are, those of one
    core share it evenly, and which ones is known; left to wander, they would share by luck.
    """
    load = dict.fromkeys(cores, 0.0)
    for device in cluster.devices[: rank + 1]:
        if device.ghost or not 0 < device.cores <= 1:
            chosen = -1
            continue
        chosen = min(load, key=lambda core: load[core])
        load[chosen] += device.cores
    return chosen


def hosts_of(cluster: Cluster, cores: Sequence[int], quotas: bool) -> tuple[Host, ...]:
    """Which devices stand on the same cores: those on one core each by core, otherwise all on all `cores`."""
    computing = [rank for rank, device in enumerate(cluster.devices) if device.hosted]
    chosen = {rank: core_of(cluster, rank, cores) if quotas else -1 for rank in computing}
    if -1 in chosen.values():
        return (Host(tuple(computing), float(len(cores))),)
    by_core = {core: tuple(r for r in computing if chosen[r] == core) for core in sorted(set(chosen.values()))}
    return tuple(Host(ranks, 1.0) for ranks in by_core.values())


def find_tool(name: str) -> str:
    """The path of `ip` or `tc`. Raises NamespacesRefused where it is not installed."""
    found = shutil.which(name) or shutil.which(name, path=TOOLS)
    if not found:
        raise NamespacesRefused(f"the program {name} of iproute2 is not installed")
    return found


def _place(cluster: Cluster, rank: int) -> tuple[int, int]:
    """(rank inside its node, devices of the node): a device right at the root of an emulated cluster is a node."""
    path = cluster.climbs[rank][-1].path[:-1]
    if not path and cluster.emulated:
        return 0, 1
    mates = [other for other, climb in enumerate(cluster.climbs) if climb[-1].path[:-1] == path]
    return mates.index(rank), len(mates)
