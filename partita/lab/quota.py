"""Control groups of the devices: their quota of the cores and their memory limit, in both versions of the kernel's
interface.

A device's group is below the group of this process, so limits that were set from outside still hold.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from partita.simulator.ports import QUOTA_PERIOD
from partita.units import Bytes

PERIOD: Final = round(QUOTA_PERIOD * 1e6)
LEAST_QUOTA: Final = 1_000
NO_LIMIT: Final = -1


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where new control groups may be made; `cpu` or `memory` is None where that is refused."""

    version: int
    cpu: Path | None
    memory: Path | None


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """The directories of one device's control group; in version 2 they are the same."""

    version: int
    cpu: Path | None
    memory: Path | None

    @property
    def directories(self) -> tuple[str, ...]:
        """The directories of the group."""
        return tuple(dict.fromkeys(str(each) for each in (self.cpu, self.memory) if each))


def find_hierarchy(proc: Path = Path("/proc/self")) -> Hierarchy:
    """The control group hierarchies that this process may extend, by `proc`'s tables of mounts and groups."""
    own = {tuple(line.split(":")[1].split(",")): line.split(":", 2)[2] for line in _lines(proc / "cgroup")}
    found: dict[str, Path] = {}
    unified: Path | None = None
    for line in _lines(proc / "mountinfo"):
        left, _, right = line.partition(" - ")
        root, mount = left.split()[3:5]
        kind, _, options = right.split()[:3]
        for names, path in own.items():
            inside = path.removeprefix(root if root != "/" else "")
            place = Path(mount) / inside.lstrip("/")
            if kind == "cgroup" and set(names) <= set(options.split(",")) and names != ("",):
                found |= dict.fromkeys(names, place)
            elif kind == "cgroup2" and names == ("",):
                unified = _unified(place, Path(mount))
    if unified and "cpu" not in found:
        return Hierarchy(2, unified, unified if "memory" in _words(unified / "cgroup.subtree_control") else None)
    cpu, memory = found.get("cpu"), found.get("memory")
    return Hierarchy(1, *(each if each and os.access(each, os.W_OK) else None for each in (cpu, memory)))


def _unified(own: Path, mount: Path) -> Path | None:
    """The nearest group from `own` upwards whose children may have CPU quotas (a group with processes may not)."""
    for place in (own, *own.parents):
        if "cpu" in _words(place / "cgroup.subtree_control") and os.access(place, os.W_OK):
            return place
        if place == mount:
            break
    try:
        (mount / "cgroup.subtree_control").write_text("+cpu +memory")
    except OSError:
        return None
    return mount if "cpu" in _words(mount / "cgroup.subtree_control") else None


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _words(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def name_group(hierarchy: Hierarchy, name: str) -> DeviceGroup:
    """The group called `name`, not made yet: its directories are recorded first, then made."""
    cpu, memory = (each / name if each else None for each in (hierarchy.cpu, hierarchy.memory))
    return DeviceGroup(hierarchy.version, cpu, memory)


def make_group(group: DeviceGroup, cores: float, memory: Bytes) -> None:
    """Makes the group with a quota of `cores` (0: none) and a limit of `memory` bytes (0: none). Raises OSError."""
    for directory in group.directories:
        Path(directory).mkdir()
    if cores:
        set_cores(group, cores)
    if memory:
        set_memory(group, memory)


def set_memory(group: DeviceGroup, memory: Bytes) -> None:
    """The bytes that the group's processes may have in memory; 0 lifts the limit. Raises OSError, in version 1 also
    where they have more already."""
    if group.memory:
        none = NO_LIMIT if group.version == 1 else "max"
        place = group.memory / ("memory.limit_in_bytes" if group.version == 1 else "memory.max")
        place.write_text(str(memory or none))


def set_cores(group: DeviceGroup, cores: float) -> None:
    """Cores that the group may use on average over 20 ms; 0 lifts the quota. Raises OSError.

    What it leaves unused in one period it may use in the next, where the kernel can (5.14 and later): a device that
    waited for others goes on at once, and what a round takes is not rounded up to whole periods."""
    if group.cpu is None:
        raise OSError("there is no control group for cpu here")
    quota = max(LEAST_QUOTA, round(cores * PERIOD)) if cores else NO_LIMIT
    _carry(group.cpu, group.version, 0)
    if group.version == 1:
        (group.cpu / "cpu.cfs_period_us").write_text(str(PERIOD))
        (group.cpu / "cpu.cfs_quota_us").write_text(str(quota))
    else:
        (group.cpu / "cpu.max").write_text(f"{'max' if quota == NO_LIMIT else quota} {PERIOD}")
    _carry(group.cpu, group.version, max(quota, 0))


def _carry(cpu: Path, version: int, burst: int) -> None:
    """Microseconds that a period may leave to the next: no more than the quota, whenever one of the two is written."""
    with suppress(OSError):
        (cpu / ("cpu.cfs_burst_us" if version == 1 else "cpu.max.burst")).write_text(str(burst))


def memory_peak(group: DeviceGroup) -> Bytes:
    """The most bytes that the group's processes had in memory at once, page cache included; 0 where it is not known."""
    if group.memory is None:
        return 0
    path = group.memory / ("memory.max_usage_in_bytes" if group.version == 1 else "memory.peak")
    return int(path.read_text()) if path.exists() else 0


def reset_memory_peak(group: DeviceGroup) -> bool:
    """Starts the peak anew from what is in memory now; False where the kernel cannot."""
    if group.memory is None:
        return False
    try:
        (group.memory / ("memory.max_usage_in_bytes" if group.version == 1 else "memory.peak")).write_text("0")
    except OSError:
        return False
    return group.version == 1


def killed_for_memory(group: DeviceGroup) -> bool:
    """Whether the kernel killed a process of the group because its memory limit was reached."""
    if group.memory is None:
        return False
    words = _words(group.memory / ("memory.oom_control" if group.version == 1 else "memory.events"))
    return any(key == "oom_kill" and value != "0" for key, value in zip(words[::2], words[1::2], strict=False))


def process_files(group: DeviceGroup) -> tuple[str, ...]:
    """The files into which a process writes 0 to join the group."""
    return tuple(f"{directory}/cgroup.procs" for directory in group.directories)
