"""What the links of a cluster were measured to cost, kept for some minutes: a file of each cluster and machine beside
those of operators. A host's speed drifts, so what is older is measured again.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from partita.cluster.cluster import Cluster
from partita.cluster.writing import write_cluster
from partita.cost.cache import METHOD, cache_folder, processor_name, read_table, write_table
from partita.cost.wiring import Measured, Wiring
from partita.program.space import Kind
from partita.units import Seconds

RECENT: Final[Seconds] = 600.0


@dataclass(frozen=True, slots=True)
class TimedLinks:
    """Costs of links, and which collectives have a curve in them."""

    kinds: frozenset[Kind] = frozenset()
    wiring: Wiring = Wiring()


def links_place(cluster: Cluster, *conditions: str) -> Path:
    """The file for a cluster on this machine, under conditions such as what its lab does not emulate."""
    words = "\n".join((write_cluster(cluster), processor_name(), str(METHOD), *conditions))
    return cache_folder() / f"links-{hashlib.sha256(words.encode()).hexdigest()[:16]}.json"


def read_links(place: Path) -> TimedLinks:
    """Those that were measured RECENT seconds ago at most; none otherwise, or where the file cannot be read."""
    table = read_table(place)
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        if 0.0 <= time.time() - table["at"] <= RECENT:
            given = {name: _frozen(value) for name, value in table["wiring"].items()}
            curves = {name: _frozen(rows) for name, rows in table["wiring"]["curves"].items()}
            return TimedLinks(frozenset(map(Kind, table["kinds"])), Wiring(**given | {"curves": Measured(**curves)}))
    return TimedLinks()


def write_links(place: Path, links: TimedLinks) -> None:
    """Keep them; where nothing can be written they are measured again next time."""
    write_table(place, {"at": time.time(), "kinds": sorted(links.kinds), "wiring": asdict(links.wiring)})


def drop_links(place: Path) -> None:
    """Keep them no longer; a file that may not be removed could not have been written either."""
    with suppress(OSError):
        place.unlink()


def _frozen(value: Any) -> Any:
    """JSON's lists as the tuples that they were."""
    return tuple(map(_frozen, value)) if isinstance(value, Sequence) and not isinstance(value, str) else value
