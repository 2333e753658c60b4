"""A record with another value in one of its places, as another hand might write it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to all values in a record."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield (*at, key)
        yield from places(each, (*at, key))


def changed(record: Any, place: Sequence[Any], draw: random.Random, values: Sequence[Any]) -> Any:
    """A copy of a record without what stands in a place, one time in four, or with one of the values there."""
    made = json.loads(json.dumps(record))
    *way, last = place
    inner = made
    for key in way:
        inner = inner[key]
    if draw.random() < 0.25:
        del inner[last]
    else:
        inner[last] = draw.choice(values)
    return made
