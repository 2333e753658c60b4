"""The clusters that need no file: the catalogue's, `-xN` for N nodes of a planning one, and `local:N`."""

from __future__ import annotations

import os
import re
from importlib.resources import files
from typing import Final

from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.errors import ClusterError

LOOPBACK: Final = Link(bandwidth=1e12, latency=5e-6)
MOST_LOCAL: Final = 1024


def catalogue_names() -> tuple[str, ...]:
    found = (files("partita.cluster") / "catalogue").iterdir()
    return tuple(sorted(each.name.removesuffix(".toml") for each in found if each.name.endswith(".toml")))


def catalogue_text(spec: str) -> tuple[str, int] | None:
    """The TOML text that `spec` names and the nodes that its suffix `-xN` asks for (0: no suffix); None if unknown.

    Raises ClusterError where the suffix does not fit: a lab cluster, no node.
    """
    names = catalogue_names()
    suffix = re.fullmatch(r"(.+)-x([0-9]{1,7})", spec)
    base = suffix[1] if suffix and spec not in names else spec
    if base not in names:
        return None
    nodes = int(suffix[2]) if suffix and base != spec else 0
    if base != spec and (base.startswith("lab-") or nodes < 1):
        allowed = "take a lab cluster as it is" if base.startswith("lab-") else f"such as {base}-x2"
        raise ClusterError(f"cluster {spec!r} asks for {nodes} nodes of {base}; give one node or more, {allowed}")
    return (files("partita.cluster") / "catalogue" / f"{base}.toml").read_text(encoding="utf-8"), nodes


def local_cluster(spec: str) -> Cluster:
    """`local:N`: N devices on this machine's loopback, sharing its memory; their links are as good as not there."""
    number = spec.removeprefix("local:")
    devices = int(number) if re.fullmatch(r"[0-9]{1,6}", number) else 0
    if not 1 <= devices <= MOST_LOCAL:
        raise ClusterError(f"{spec!r} asks for {number!r} devices; give 1 to {MOST_LOCAL}, such as local:2")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    device = Device(kind="cpu", memory=memory // devices, host_memory=memory)
    return Cluster(spec, Group(spec, (device,) * devices, (LOOPBACK,) * devices))
