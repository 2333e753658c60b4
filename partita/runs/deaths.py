"""What processes tell each other, through the store, when one of them has died (`failover`).

process 0   notices: dead/3, deaths + 1    stand/0.0-3.4/0 = what part 0 knows    reads the other's --- link/0.0-3.4
process 4   looks at deaths, at dead/3     stand/0.0-3.4/3 = what part 3 knows    reads the other's --- link/0.0-3.4

deaths            how often anybody has noticed a death; dead/3: it was process 3's
stand/0.0-3.4/0   what has crossed the channel of parts 0 and 3 by what part 0 knows, while processes 0 and 4 play them
link/0.0-3.4      where these two processes then make their link
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from partita.transport.channel import Channel, Route
from partita.transport.store import prefixed


def tell_death(store: Any, process: int) -> None:
    """A process is gone."""
    store.set(f"dead/{process}", "")
    store.add("deaths", 1)


def deaths(store: Any) -> int:
    """How often a death was noticed; one death may be by several."""
    return int(store.add("deaths", 0))


def dead_among(store: Any, processes: Iterable[int]) -> frozenset[int]:
    """Those of the processes that are dead."""
    return frozenset(process for process in processes if store.check([f"dead/{process}"]))


def tell_crossed(store: Any, channel: Channel, route: Route, crossed: Mapping[str, int]) -> None:
    """Tell the other end of a channel how many rounds of each message have crossed it by what this end knows."""
    store.set(_stand(channel, route, channel.mine), json.dumps(crossed))


def crossed_by_other(store: Any, channel: Channel, route: Route) -> dict[str, int] | None:
    """What has crossed a channel by what its other end knows; None if that has not told yet."""
    key = _stand(channel, route, channel.other)
    return dict(json.loads(store.get(key))) if store.check([key]) else None


def place_to_link(store: Any, channel: Channel, route: Route) -> Any:
    """The namespace in which both ends of a channel make their link."""
    return prefixed(store, f"link/{_name(channel, route)}")


def _stand(channel: Channel, route: Route, part: int) -> str:
    return f"stand/{_name(channel, route)}/{part}"


def _name(channel: Channel, route: Route) -> str:
    """A name of the channel over a route, the same at both ends."""
    (a, p), (b, q) = sorted(((channel.mine, route[0]), (channel.other, route[1])))
    return f"{a}.{p}-{b}.{q}"
