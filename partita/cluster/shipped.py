"""Clusters that need no file: those of the catalogue (`-xN`: N nodes of it), `local:N` and `local:cuda:N`."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from importlib.resources import files
from typing import Final

from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.cluster.parts import part_of, words_of
from partita.errors import ClusterError

CARDS: Final = "local:cuda:"
LOOPBACK: Final = Link(bandwidth=1e12, latency=5e-6)
MOST_LOCAL: Final = 1024


def catalogue_names() -> tuple[str, ...]:
    """The names of the clusters in the catalogue, sorted."""
    found = (files("partita.cluster") / "catalogue").iterdir()
    return tuple(sorted(each.name.removesuffix(".toml") for each in found if each.name.endswith(".toml")))


def catalogue_text(spec: str) -> tuple[str, int] | None:
    """(TOML text, nodes) of the catalogue's cluster that `spec` names; nodes is the N of a suffix `-xN`, 0 without one.
    None if the catalogue has no such cluster.

    Raises ClusterError for a suffix on a lab cluster, or for no nodes.
    """
    names = catalogue_names()
    suffix = re.fullmatch(r"(.+)-x([0-9]{1,99})", spec)
    base = suffix[1] if suffix and spec not in names else spec
    if base not in names:
        return None
    nodes = int(suffix[2]) if suffix and base != spec else 0
    if base != spec and base.startswith("lab-"):
        raise ClusterError(f"cluster {spec!r} asks for {nodes} of {base}, which is a whole lab; give {base}, or a file")
    if base != spec and nodes < 1:
        raise ClusterError(f"cluster {spec!r} asks for {nodes} nodes of {base}; give one or more, such as {base}-x2")
    return (files("partita.cluster") / "catalogue" / f"{base}.toml").read_text(encoding="utf-8"), nodes


def local_cluster(spec: str) -> Cluster:
    """`local:N`: N devices that share this machine's memory, over loopback, whose bandwidth hardly limits anything.
    `local:cuda:N`: the first N CUDA devices of this machine. Raises ClusterError for another number than 1 to
    MOST_LOCAL, and for more cards than there are."""
    cards = f"{spec}:".startswith(CARDS)
    kind = CARDS if cards else "local:"
    number = spec[len(kind) :]
    devices = int(number) if re.fullmatch(r"[0-9]{1,6}", number) else 0
    if not 1 <= devices <= MOST_LOCAL:
        raise ClusterError(f"{spec!r} asks for {number!r} devices; give 1 to {MOST_LOCAL}, such as {kind}2")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if cards:
        return Cluster(spec, Group(spec, cards_here(spec, devices, memory), (LOOPBACK,) * devices))
    device = Device(kind="cpu", memory=memory // devices, host_memory=memory)
    return Cluster(spec, Group(spec, (device,) * devices, (LOOPBACK,) * devices))


def cards_here(spec: str, wanted: int, host_memory: int) -> tuple[Device, ...]:
    """The first `wanted` CUDA devices of this machine, with the names and memory that nvidia-smi reports, and the other
    properties of the part that it is, if that is known. Raises ClusterError if there are fewer."""
    query = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
    try:
        lines = subprocess.run(query, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        lines = []
    if len(lines) < wanted:
        raise ClusterError(
            f"{spec!r} asks for {wanted} CUDA devices and nvidia-smi shows {len(lines)} here; take local:{wanted}, or "
            "plan for a cluster of the catalogue"
        )
    found = []
    for line in lines[:wanted]:
        name, _, size = line.rpartition(",")
        if not size.strip().isdecimal():
            raise ClusterError(
                f"{spec!r} needs the memory of each card, and nvidia-smi says {size.strip()!r} of {name}; describe the "
                "machine in a file, with its cards' memory"
            )
        found.append(replace(_like(name), memory=int(size) * 2**20, host_memory=host_memory))
    return tuple(found)


def _like(card: str) -> Device:
    """The part that a card is, by its name."""
    from partita.cluster.text import shipped_device

    part = part_of(card)
    return shipped_device(part) if part else Device(kind="-".join(words_of(card)), backend="cuda")
