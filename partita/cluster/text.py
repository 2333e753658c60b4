"""Clusters as TOML, both ways, and the three ways to name one.

schema = 1
name = "two-boxes"
emulated = false                                      # true: runs in the lab of this machine
interface = "eth1"                                    # what processes may bind; loopback without it

[device.gpu]                                          # device kinds by name
backend = "cuda"
flops = { fp32 = "19.5 TFLOP/s", bf16 = "312 TFLOP/s" }
sustained = { bf16 = "265 TFLOP/s" }                  # what large products reach for long; without it a rule guesses
memory = "40 GiB"
multiprocessors = 108                                 # what computes side by side on it; 100 are assumed without
[device.half]                                         # a part that partita knows, but for what else the table says
like = "a100-sxm"                                     # members may also name such a part (device = "a100-sxm")
memory = "40 GiB"

[network]                                             # the root switch
link = { bandwidth = "10 Gbit/s", latency = "15 us" } # every member's port into it
[[network.members]]                                   # box0 and box1, each a switch with two devices
name = "box"
count = 2
link = { bandwidth = "31 GB/s", latency = "2 us" }
sums = 0.85                                           # its switch adds up what members send, at 85 % of their bandwidth
mesh = [[0, 2], [2, 0]]                               # no switch, but so many wires from each member to each
members = [{ device = "gpu", count = 2 }]
[[network.members]]                                   # a third one, unequal, with a port of its own
name = "old"
port = { bandwidth = "1 Gbit/s" }
link = { bandwidth = "15 GB/s" }
members = [{ device = "gpu" }]
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from dataclasses import replace
from os.path import exists
from pathlib import Path
from typing import Any, Final

from partita.cluster import quantity
from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.cluster.idle import check_heeded
from partita.cluster.parts import part_table, parts
from partita.cluster.quantity import Reader
from partita.cluster.shipped import catalogue_names, catalogue_text, local_cluster
from partita.errors import ClusterError, check_schema, did_you_mean
from partita.files import read_toml, read_whole
from partita.units import FlopsPerSecond

SCHEMA: Final = 1
MISSING: Final = {  # what is said of a key that is not there
    "schema": f"schema = {SCHEMA}",
    "network": "a [network] table; `partita cluster show lab-2x2 -o mine.toml` writes a file to begin with",
    "members": "one, such as [{ device = 'gpu', count = 2 }]",
    "bandwidth": "bandwidth = '10 Gbit/s'",
}
MOST_WIRED: Final = 16
SPEEDS: Final = ("flops", "sustained")  # tables of a device: FLOP/s by dtype
FASTEST: Final = 2e13  # FLOP/s, and bytes a second of memory, that no processor of today has
WIDEST: Final = 1e12
LEAST_BURST: Final = 64 * 1024
BURST_SECONDS: Final = 2e-3
BACKENDS: Final = ("cpu", "cuda")
MOST_DEVICES: Final = 1_000_000


def table(value: Any, where: str) -> dict[str, Any]:
    """A reader of TOML tables."""
    if not isinstance(value, dict):
        raise ClusterError(f"{where} is {value!r}; give a table, such as {{ ... }}")
    return value


def tables(value: Any, where: str) -> list[dict[str, Any]]:
    """A reader of arrays of TOML tables."""
    if not isinstance(value, list) or not value or not all(isinstance(each, dict) for each in value):
        raise ClusterError(f"{where} is {value!r}; give at least one member, such as [{{ device = 'gpu' }}]")
    return value


def _backend(value: Any, where: str) -> str:
    if value not in BACKENDS:
        raise ClusterError(f"{where} is {value!r}; allowed are {' and '.join(BACKENDS)}")
    return str(value)


def _mesh(value: Any, where: str) -> tuple[tuple[int, ...], ...]:
    rows = value if isinstance(value, list) and all(isinstance(row, list) for row in value) else [[None]]
    if not all(type(wires) is int and wires >= 0 for row in rows for wires in row):
        raise ClusterError(f"{where} is {value!r}; give rows of whole numbers, such as [[0, 2], [2, 0]]")
    return tuple(tuple(row) for row in rows)


def _wired(mesh: tuple[tuple[int, ...], ...], size: int, where: str) -> tuple[tuple[int, ...], ...]:
    """A mesh that is a symmetric matrix over `size` members, with a zero diagonal and at least one wire for each
    member. Raises ClusterError."""
    square = len(mesh) == size and all(len(row) == size for row in mesh)
    if len(mesh) > MOST_WIRED:
        raise ClusterError(f"{where}, mesh has {len(mesh)} members; wires between up to {MOST_WIRED} can be described")
    if mesh and not (square and all(row == column for row, column in zip(mesh, zip(*mesh, strict=True), strict=True))):
        raise ClusterError(
            f"{where}, mesh is not {size} rows with the same wires both ways; give a row for each member"
        )
    if any(row[i] or not sum(row) for i, row in enumerate(mesh)):
        raise ClusterError(f"{where}, mesh has a member with wires to itself or to none; give it wires to others")
    joined = {0} if mesh else set[int]()
    while more := {j for i in joined for j, wires in enumerate(mesh[i]) if wires} - joined:
        joined |= more
    if len(joined) < len(mesh):
        apart = min({*range(len(mesh))} - joined)
        raise ClusterError(
            f"{where}, mesh has no way from member 0 to member {apart}; make each part that is wired a group, and give "
            "the link that joins them"
        )
    return mesh


FILE: Final[dict[str, Reader]] = {
    "schema": quantity.count, "name": quantity.word, "emulated": quantity.truth, "interface": quantity.text,
    "device": table, "network": table,
}  # fmt: skip
DEVICE: Final[dict[str, Reader]] = {
    "like": quantity.word, "kind": quantity.word, "backend": _backend, "flops": table, "sustained": table,
    "memory": quantity.size, "memory_bandwidth": quantity.bandwidth, "multiprocessors": quantity.count,
    "cores": quantity.number("0.5", zero=True), "speed": quantity.number("1.0"), "ghost": quantity.truth,
    "host_memory": quantity.size, "power": quantity.power, "price": quantity.number("2.5", zero=True),
}  # fmt: skip
LINK: Final[dict[str, Reader]] = {
    "bandwidth": quantity.bandwidth, "latency": quantity.latency, "burst": quantity.burst, "duplex": quantity.truth,
}  # fmt: skip
GROUP: Final[dict[str, Reader]] = {
    "name": quantity.word, "link": table, "members": tables, "sums": quantity.part("0.85"),
    "mesh": _mesh,
}  # fmt: skip
MEMBER: Final[dict[str, Reader]] = GROUP | {"device": quantity.word, "count": quantity.count, "port": table}


_LOCAL: Final = "local:2"  # one of the names that are not in the catalogue


def load_cluster(spec: str) -> Cluster:
    """The cluster that a TOML file, a catalogue name (`h100-dgx-x16`: 16 nodes) or `local:N` stands for.

    Raises ClusterError with one sentence for anything that does not lead to a cluster.
    """
    if spec.startswith("local:"):
        return local_cluster(spec)
    found = catalogue_text(spec)
    if spec.endswith(".toml") or "/" in spec or (found is None and exists(spec)):
        return read_cluster(_file_text(spec), spec, strict=True)
    if found is not None:
        base, nodes = found
        if nodes > (most := MOST_DEVICES // read_cluster(base, spec, 1).size if nodes else 0):
            raise ClusterError(f"cluster {spec!r} asks for {nodes} nodes; give 1 to {most} behind its -x")
        return replace(read_cluster(base, spec, nodes), name=spec)
    wanted = {*spec.lower().split("-")}
    alike = [known for known in catalogue_names() if wanted <= {*known.split("-")}]  # h100, dgx-h100
    nearest = f"did you mean {' or '.join(alike)}?" if alike else did_you_mean(spec, (*catalogue_names(), _LOCAL))
    hint = nearest or f"the catalogue has {', '.join(catalogue_names())}"
    name = "a catalogue name (with -x4 behind it: four nodes)"
    raise ClusterError(f"there is no cluster {spec!r}; give a .toml file, local:N or {name}: {hint}")


def _file_text(spec: str) -> str:
    try:
        return read_whole(Path(spec))
    except UnicodeDecodeError:
        raise ClusterError(f"{spec} is not text in UTF-8; give a TOML file") from None
    except OSError as error:
        raise ClusterError(f"{spec} cannot be read ({error.strerror}); give an existing TOML file") from None


def read_cluster(text: str, name: str, nodes: int = 0, *, strict: bool = False) -> Cluster:
    """The cluster of a TOML `text`; `name` stands in errors and where the file names none.

    `nodes` above 0 overrides the count of the first member of the network. What would do nothing is refused if it is
    `strict`. Raises ClusterError.
    """
    try:
        raw = read_toml(text)
    except ValueError as error:
        raise ClusterError(f"{name} is not valid TOML: {error}; mend the file there") from None
    try:
        found = _cluster(raw, Path(name).stem, nodes)
        if strict:
            check_heeded(found, raw)
        return found
    except ClusterError as error:
        raise ClusterError(f"in cluster {name}, {error}") from None


def _cluster(raw: dict[str, Any], name: str, nodes: int) -> Cluster:
    check_schema(raw.get("schema", SCHEMA), SCHEMA, "the file", "write it as that has it", ClusterError)
    file = fields(raw, "the file", FILE, ("schema", "network"))
    emulated = file.get("emulated", False)
    kinds = {kind: _device(kind, table(each, f"device {kind!r}")) for kind, each in file.get("device", {}).items()}
    top = file["network"]
    if nodes:
        first, *rest = tables(top.get("members"), "network, members")
        top = top | {"members": [first | {"count": nodes}, *rest]}
    group = fields(top, "network", GROUP, ("members",))
    name = file.get("name", name)
    root = _group(group.get("name", name), group, "network", kinds, emulated)
    if (size := _size(root, {})) > MOST_DEVICES:
        raise ClusterError(f"network has {size} devices in all; give {MOST_DEVICES} or fewer")
    return Cluster(name, root, emulated, file.get("interface", ""))


def _size(group: Group, known: dict[int, int]) -> int:
    """The devices below a switch, without going to each: members that are alike are one tuple, counted once."""
    if id(group.members) not in known:
        known[id(group.members)] = sum(
            _size(member, known) if isinstance(member, Group) else 1 for member in group.members
        )
    return known[id(group.members)]


def fields(
    raw: dict[str, Any], where: str, readers: dict[str, Reader], required: tuple[str, ...] = ()
) -> dict[str, Any]:
    """`raw` with every value read by its reader; unknown and missing keys raise ClusterError."""
    for key in raw:
        if key not in readers:
            hint = did_you_mean(key, readers) or f"allowed are {', '.join(readers)}"
            raise ClusterError(f"{where} has an unknown key {key!r}; {hint}")
    for key in required:
        if key not in raw:
            raise ClusterError(f"{where} lacks {key!r}; add {MISSING[key]}")
    return {key: readers[key](value, f"{where}, {key}") for key, value in raw.items()}


def _device(kind: str, raw: dict[str, Any]) -> Device:
    where = f"device {kind!r}"
    read = fields(raw, where, DEVICE)
    if "like" in read:
        part = fields(part_table(read.pop("like"), f"{where}, like"), where, DEVICE)
        read = part | read | {key: part.get(key, {}) | read.get(key, {}) for key in SPEEDS}
    speeds = {key: _speeds(read.get(key, {}), f"{where}, {key}") for key in SPEEDS}
    fast = max((each for _, each in speeds["flops"]), default=0.0) > FASTEST
    fast = fast or read.get("memory_bandwidth", 0.0) > WIDEST
    backend = "cuda" if fast or read.get("multiprocessors") else "cpu"  # unless it is given
    return Device(**({"kind": kind, "backend": backend} | read | speeds))


def _speeds(raw: dict[str, Any], where: str) -> tuple[tuple[str, FlopsPerSecond], ...]:
    if odd := next((dtype for dtype in raw if dtype not in quantity.DTYPES), ""):
        raise ClusterError(f"{where} has {odd!r}; allowed are {', '.join(quantity.DTYPES)}")
    return tuple((dtype, quantity.speed(each, f"{where}, {dtype}")) for dtype, each in raw.items())


def shipped_device(part: str) -> Device:
    """The device that a part is. Raises ClusterError where there is none of that name."""
    return _device(part, {"like": part})


def _link(raw: dict[str, Any], where: str, emulated: bool) -> Link:
    read = fields(raw, where, LINK, ("bandwidth",))
    if emulated:
        read.setdefault("burst", default_burst(read["bandwidth"]))
    return Link(**read)


def default_burst(bandwidth: float) -> int:
    """Bytes that an emulated port of `bandwidth` bytes a second lets pass at once: 2 ms, never below 64 KiB."""
    return max(LEAST_BURST, round(BURST_SECONDS * bandwidth))


def _group(name: str, read: dict[str, Any], where: str, kinds: dict[str, Device], emulated: bool) -> Group:
    inner = _link(read["link"], f"{where}, link", emulated) if "link" in read else None
    members: list[Device | Group] = []
    ports: list[Link] = []
    for i, raw in enumerate(read["members"]):
        place = f"{where}, member {i + 1}"
        member = fields(raw, place, MEMBER)
        port = _link(member["port"], f"{place}, port", emulated) if "port" in member else inner
        if port is None:
            raise ClusterError(f"{place} has no link; give {where} a 'link' or the member a 'port'")
        made = _members(member, place, kinds, emulated)
        members += made
        ports += [port] * len(made)
    names = Counter(each.name for each in members if isinstance(each, Group))
    if twice := next((name for name, times in names.items() if times > 1), ""):
        raise ClusterError(f"{where} has two members named {twice!r}; give each a name of its own")
    return Group(
        name, tuple(members), tuple(ports), read.get("sums", 0.0), _wired(read.get("mesh", ()), len(members), where)
    )


def _members(member: dict[str, Any], where: str, kinds: dict[str, Device], emulated: bool) -> list[Device | Group]:
    many = member.get("count", 1)
    if ("device" in member) == ("members" in member):
        raise ClusterError(f"{where} must have either 'device' or 'members'; give one of the two")
    if "device" not in member:
        stem = member.get("name", "node")
        names = [f"{stem}{i}" for i in range(many)] if "count" in member else [stem]
        first = _group(names[0], member, where, kinds, emulated)
        if (size := many * _size(first, {})) > MOST_DEVICES:
            raise ClusterError(f"{where} has {size} devices in all; give {MOST_DEVICES} or fewer")
        return [replace(first, name=each) for each in names]
    if odd := next((key for key in ("name", "link", "sums", "mesh") if key in member), ""):
        raise ClusterError(f"{where} is a device and has {odd!r}; use 'port' for its link, and name switches only")
    kind = member["device"]
    if kind not in kinds and kind not in (known := parts()):
        close = difflib.get_close_matches(kind.lower().replace(" ", "-"), [*kinds, *known], 1)
        key = kind if re.fullmatch(r"[A-Za-z0-9_-]+", kind) else json.dumps(kind)
        raise ClusterError(
            f"{where} has device {kind!r} and the file describes {', '.join(kinds) or 'none'}; add a table "
            f"[device.{key}], or name a part that partita knows, such as {(close or ['a100-sxm'])[0]}"
        )
    return [kinds.get(kind) or shipped_device(kind)] * many
