"""What links cost is kept between commands: for some minutes, of the same cluster under the same conditions."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from partita.cluster.cluster import Cluster
from partita.cost.wiring import CURVED, Measured, Wiring
from partita.lab import timed_links
from partita.lab.timed_links import RECENT, TimedLinks, drop_links, links_place, read_links, write_links

ROWS = ((4, 1e-6, 2e-6, 1.0), (2**20, 1.5e-3, 0.1, 1.25))
LINKS = TimedLinks(
    frozenset(CURVED[:2]),
    Wiring(
        message=1.25e-4, curves=Measured(ROWS, (), ROWS[:1]), value=None, hops=((4, 1e-5), (2**16, 3e-5)), row=ROWS,
        crowding=((2, ((4, 1.5), (2**20, 1.75))),), starts=((1, 1e-4), (20.5, 3e-5)), cooling=((0.01, 2e-4),),
        schedules=(("backend", ((2**16, 3e-3), (2**18, 6e-3))), ("tree", ((2**16, 2e-3), (2**18, 5e-3)))),
    ),
)  # fmt: skip


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    place = tmp_path / "cache" / "links.json"
    assert read_links(place) == TimedLinks()
    write_links(place, LINKS)
    assert read_links(place) == LINKS
    for _ in range(2):
        drop_links(place)
        assert read_links(place) == TimedLinks()


@pytest.mark.parametrize("later", [RECENT + 1, -1.0])
def test_for_some_minutes(later: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_links(tmp_path / "links.json", LINKS)
    now = time.time() + later
    monkeypatch.setattr(timed_links.time, "time", lambda: now)
    assert read_links(tmp_path / "links.json") == TimedLinks()


@pytest.mark.parametrize("damage", ["kinds", "wiring", "curves", "field", "text"])
def test_what_cannot_be_read_is_measured_again(damage: str, tmp_path: Path) -> None:
    place = tmp_path / "links.json"
    write_links(place, LINKS)
    table = json.loads(place.read_text())
    if damage == "curves":
        del table["wiring"]["curves"]
    elif damage == "field":
        table["wiring"]["of_another_version"] = 1.0
    elif damage != "text":
        table[damage] = ["nothing"]
    place.write_text(json.dumps(table)[: 9 if damage == "text" else None])
    assert read_links(place) == TimedLinks()


def test_of_the_same_cluster_under_the_same_conditions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    clusters = [Cluster.load(name) for name in ("lab-4x1g", "lab-4x10g", "lab-4x1g")]
    one, other, again = (links_place(cluster, "torch") for cluster in clusters)
    assert one == again != other
    assert one != links_place(clusters[0], "torch", "no CPU quotas here")
    assert one.is_relative_to(tmp_path)
