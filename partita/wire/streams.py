"""Sparse vectors as streams of entries, and the messages that carry them (SparCML, CO-09; Kylix, CO-08).

stream     places 2 5 9, values a b c     while these take no more bytes: entries <= delta = N isize / (c + isize)
           values of all N places         otherwise
sum        the union of the places; entries that cancel stay, so that the sum is as long as the union
message    head, sent before: 8 bytes a part    4 entries + form
           body: places values            form SPARSE
                 values                   form AGAIN: at the places of the last message on this hop (Kylix's maps)
                 all values               form DENSE

(Renggli et al., SC 2019; Zhao & Canny, ICPP 2014.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

import numpy as np

from partita.arrays import Array
from partita.units import Bytes

Maps = dict[int, Array]  # part of a hop -> the places of its last message
PLACE: Final = 4  # bytes of a place
HEAD: Final = 8  # bytes of a part in a message's head
SPARSE, AGAIN, DENSE, FORMS = 0, 1, 2, 4


@dataclass(frozen=True, slots=True)
class Stream:
    """A vector of `length` elements: `values` at the ascending `places` (int32) and 0 elsewhere; without places, all
    values."""

    length: int
    values: Array
    places: Array | None = None

    def __add__(self, other: Stream) -> Stream:
        if self.places is None or other.places is None:
            return Stream(self.length, self.all() + other.all())
        places = np.concatenate([self.places, other.places])
        order = np.argsort(places, kind="stable")  # two runs in order: merged in one pass
        places, values = places[order], np.concatenate([self.values, other.values])[order]
        fresh = np.ones(len(places), bool)
        np.not_equal(places[1:], places[:-1], out=fresh[1:])
        again, sums = np.flatnonzero(~fresh), values[fresh]
        sums[again - 1 - np.arange(len(again))] += values[again]
        return switched(Stream(self.length, sums, places[fresh]))

    def all(self) -> Array:
        """All of its elements."""
        if self.places is None:
            return self.values
        found = np.zeros(self.length, self.values.dtype)
        found[self.places] = self.values
        return found


def delta(length: int, item: int) -> float:
    """The number of entries that take as many bytes as all `length` elements of `item` bytes."""
    return length * item / (PLACE + item)


def switched(stream: Stream) -> Stream:
    """The stream; as all values if it has more than delta entries."""
    dense = len(stream.values) > delta(stream.length, stream.values.itemsize)
    return Stream(stream.length, stream.all()) if dense else stream


def stream_of(vector: Array) -> Stream:
    """A vector as a stream, with memory of its own."""
    places = np.flatnonzero(vector != 0).astype(np.int32)
    return switched(Stream(len(vector), vector[places], places))


def union(length: int, density: float, ranks: int) -> float:
    """The expected number of places in the union of the entries of `ranks` ranks, each the fraction `density` of
    `length`, drawn independently: N (1 - (1 - k/N)^p)."""
    return length * (1.0 - (1.0 - density) ** ranks)


def expected_size(length: int, item: int, density: float, ranks: int) -> Bytes:
    """Bytes of a stream with the expected entries of the sum of `ranks` ranks."""
    entries = union(length, density, ranks)
    return length * item if entries > delta(length, item) else round(entries * (PLACE + item))


def packed(streams: Sequence[Stream], maps: Maps | None = None) -> tuple[Array, Array]:
    """(head int64, body uint8) of a message of streams, one for each part. Places that `maps` has are left out; new
    ones are stored there."""
    head, body = list[int](), [np.zeros(0, np.uint8)]
    for part, stream in enumerate(streams):
        form = DENSE
        if stream.places is not None:
            known = maps is not None and part in maps and np.array_equal(maps[part], stream.places)
            form = AGAIN if known else SPARSE
        if form == SPARSE and stream.places is not None:
            body.append(stream.places.view(np.uint8))
            if maps is not None:
                maps[part] = stream.places
        head.append(len(stream.values) * FORMS + form)
        body.append(stream.values.view(np.uint8))
    return np.array(head, np.int64), np.concatenate(body)


def body_size(head: Array, item: int) -> Bytes:
    """Bytes of the body that a head describes, with elements of `item` bytes."""
    return sum(n // FORMS * (item + PLACE * (n % FORMS == SPARSE)) for n in head.tolist())


def unpacked(head: Array, body: Array, lengths: Sequence[int], dtype: Any, maps: Maps | None = None) -> list[Stream]:
    """The streams of a message, for parts of `lengths` elements; places are stored in `maps` as at the sender."""
    return list(_unpacked(head.tolist(), body, lengths, np.dtype(dtype), maps))


def _taken(source: BytesIO, count: int, kind: Any) -> Array:
    """The next `count` numbers of a message."""
    return np.frombuffer(source.read(count * kind.itemsize), kind)


def _unpacked(head: list[int], body: Array, lengths: Sequence[int], dtype: Any, maps: Maps | None) -> Iterator[Stream]:
    source = BytesIO(body.tobytes())
    for part, (number, length) in enumerate(zip(head, lengths, strict=True)):
        count, form = divmod(number, FORMS)
        if form == DENSE:
            yield Stream(length, _taken(source, count, dtype))
            continue
        places = _taken(source, count, np.dtype(np.int32)) if form == SPARSE or maps is None else maps[part]
        if form == SPARSE and maps is not None:
            maps[part] = places
        yield Stream(length, _taken(source, count, dtype), places)
