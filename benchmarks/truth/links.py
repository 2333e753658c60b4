"""Published all-reduces against predictions from data sheets of links (`partita/cost/fabric.py`).

    links.py [--truth ../shared/truth] [--fit]

A line for each kind of node, decade of sizes and number of devices: mean, 90th percentile and bias of
|ln(predicted / measured)|, beside the null model, latency + a ring's bytes / bandwidth, whose two constants are fitted
to these very rows of the kind. Only the A100 rows of the first table were fitted to; `--fit` looks for the three
constants again, each power of two of the sizes counting alike.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import log10
from pathlib import Path

import numpy as np

from partita.arrays import Reals
from partita.cluster.cluster import Cluster, Group, Link
from partita.cluster.text import load_cluster
from partita.cost import fabric
from partita.cost.fabric import Fabric, fabric_of
from partita.cost.wiring import PASSES
from partita.program.space import Kind

FITTED = "a100"
EFA = 17.5e-6  # seconds of a port: aws-ofi-nccl tells NCCL 35 us a way on these machines
LINES = "{:<34} {:>9} {:>7} {:>6}   {:>6} {:>6} {:>7}   {:>6} {:>6} {:>7}"


@dataclass(frozen=True)
class Row:
    hardware: str
    kind: Kind
    ranks: int
    machines: int
    size: int
    seconds: float
    fabric: Fabric

    @property
    def sent(self) -> float:
        return PASSES.get(self.kind, 2) * (self.ranks - 1) / self.ranks * self.size


def across(name: str, bandwidth: float, latency: float, devices: int = 8) -> Cluster:
    """Nodes as in the catalogue with so many devices each, on another network."""
    node = load_cluster(name).root.members[0]
    assert isinstance(node, Group)
    small = replace(node, members=node.members[:devices], ports=node.ports[:devices], mesh=())
    return Cluster(name, Group("root", (small,) * 2, (Link(bandwidth, latency),) * 2))


def clusters() -> dict[str, Cluster]:
    """By how a table's hardware begins."""
    return {
        "a100": load_cluster("a100-dgx"), "v100": load_cluster("v100-dgx1"), "A100": load_cluster("a100-dgx"),
        "H200": load_cluster("h200-dgx"), "4x p5en": across("h200-dgx", 400e9, EFA),
        "B200": across("b200-dgx", 400e9, EFA), "JeanZay V100": across("v100-dgx1", 12.5e9, 1e-6, 4),
        "JeanZay A100": across("a100-dgx", 50e9, 1e-6),
    }  # fmt: skip


def rows_of(folder: Path) -> Iterator[Row]:
    fabrics = {name: fabric_of(cluster) for name, cluster in clusters().items()}
    for row in csv.DictReader((folder / "vtrain_allreduce_intranode.csv").open()):
        seconds = float(row["oop_time_ns"]) * 1e-9
        ranks, size = int(row["n_gpus"]), int(row["size_bytes"])
        yield Row(row["gpu"], Kind.ALL_REDUCE, ranks, 1, size, seconds, fabrics[row["gpu"]])
    for row in csv.DictReader((folder / "allreduce_measured.csv").open()):
        ranks, kind, size = int(row["ranks"]), Kind(row["collective"]), int(float(row["size_bytes"]))
        name = next(name for name in sorted(fabrics, reverse=True) if row["hardware"].startswith(name))
        links, machines = fabrics[name], int(row["nodes"])
        if "ENABLE=0" in row["method"] or "Ring" in row["method"]:
            links = replace(links, sums=0.0)
        if "nvlstree" in row["method"]:  # what NCCL does not choose
            continue
        moved = PASSES.get(kind, 2) * (ranks - 1) / ranks * size
        seconds = float(row["time_us"]) * 1e-6 if row["time_us"] else moved / float(row["busbw_GBps"]) / 1e9
        label = f"{name} node" if machines == 1 else f"{name} nodes"
        yield Row(label, kind, ranks, machines, size, seconds, links)


def predicted(rows: list[Row]) -> Reals:
    found = np.zeros(len(rows))
    keys = [(row.fabric, row.kind, row.ranks, row.machines) for row in rows]
    for key in set(keys):
        at = [i for i, one in enumerate(keys) if one == key]
        found[at] = fabric.fastest(*key, np.array([rows[i].size for i in at], np.float64))[0]
    return found


def null(rows: list[Row]) -> Reals:
    """Latency + bytes / bandwidth, least squares of the relative error on these rows; latency at least 0."""
    sent, seconds = (np.array([getattr(row, name) for row in rows]) for name in ("sent", "seconds"))
    terms = np.stack([np.ones(len(rows)), sent], axis=1)
    found = np.linalg.lstsq(terms / seconds[:, None], np.ones(len(rows)), rcond=None)[0]
    if found.min() <= 0:
        found = np.array([0.0, (sent / seconds).sum() / ((sent / seconds) ** 2).sum()])
    expected: Reals = terms @ found
    return expected


def line(hardware: str, decade: str, ranks: str, rows: list[Row], ours: Reals, theirs: Reals) -> None:
    seconds = np.array([row.seconds for row in rows])
    figures: list[str] = []
    for each in (ours, theirs):
        log = np.log(each / seconds)
        figures += [f"{abs(log).mean():.3f}", f"{np.quantile(abs(log), 0.9):.3f}", f"{log.mean():+.3f}"]
    print(LINES.format(hardware, decade, ranks, len(rows), *figures))


def show(rows: list[Row]) -> None:
    print(LINES.format("", "from", "devices", "rows", "mean", "p90", "bias", "null", "p90", "bias"))
    for hardware in dict.fromkeys(row.hardware for row in rows):
        mine = [row for row in rows if row.hardware == hardware]
        ours, theirs = predicted(mine), null(mine)
        decades, counts = (np.array([key(row) for row in mine]) for key in (decade_of, lambda row: row.ranks))
        parts = [(f"1e{k} B", "all", decades == k) for k in np.unique(decades)]
        parts += [("all", str(p), counts == p) for p in np.unique(counts)]
        for decade, ranks, some in (*parts, ("all", "all", decades >= 0)):
            at = np.flatnonzero(some)
            line(hardware, decade, ranks, [mine[i] for i in at], ours[at], theirs[at])


def decade_of(row: Row) -> int:
    return int(log10(row.size))


def fit(rows: Iterable[Row]) -> None:
    """The three fitted constants again, on the A100 rows whose sizes are nearest to quarters of powers of two."""
    near = set(np.round(2.0 ** np.arange(0, 10.01, 0.25)).astype(int).tolist())
    mine = [row for row in rows if row.hardware == FITTED and row.size // 2**20 in near]
    seconds, found = np.array([row.seconds for row in mine]), []
    grid = product(np.arange(15, 41, 2.5) * 1e-6, np.arange(0, 0.81, 0.1), (0.7, 0.75, 0.8, 0.85, 0.92))
    for fabric.LAUNCH, fabric.LANDING, fabric.FLAGGED in grid:
        error = float(abs(np.log(predicted(mine) / seconds)).mean())
        found.append((error, fabric.LAUNCH, fabric.LANDING, fabric.FLAGGED))
    for error, launch, landing, flagged in sorted(found)[:5]:
        print(f"LAUNCH {launch * 1e6:.1f} us, LANDING {landing:.1f}, FLAGGED {flagged:.2f}: mean {error:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--truth", type=Path, default=Path(__file__).parents[3] / "shared" / "truth")
    parser.add_argument("--fit", action="store_true")
    given = parser.parse_args()
    if not (given.truth / "vtrain_allreduce_intranode.csv").exists():
        print(f"{given.truth} has no tables of all-reduces; give --truth FOLDER")
        return
    rows = list(rows_of(given.truth))
    if given.fit:
        fit(rows)
    else:
        show(rows)


if __name__ == "__main__":
    main()
