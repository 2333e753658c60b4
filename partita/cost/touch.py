"""What passes over tensors cost a core, and those of instructions that follow one another."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np

from partita.arrays import Array, Flags, Ints, Reals
from partita.units import Seconds

NEAR: Final = 2**17  # elements that a core's own cache still holds when they are touched again


@dataclass(frozen=True, slots=True)
class Touch:
    """Core-seconds of one pass over some tensors: those for each `tensor`, each `element`, and once for the `call`; and
    `far`, what each element beyond the first NEAR takes more, where these were in a cache."""

    tensor: Seconds
    element: Seconds
    call: Seconds = 0.0
    far: Seconds = 0.0

    def of(self, elements: float, tensors: float = 1.0) -> Seconds:
        """Core-seconds of a pass over `elements` elements in `tensors` tensors."""
        return self.call + self.tensor * tensors + self.element * elements + self.far * max(elements - NEAR, 0.0)

    def each(self, elements: Ints, tensors: Array, *, first: Flags) -> Reals:
        """`of` for arrays of passes, shape [passes], of which only the `first` ones find their code in no cache."""
        beyond = np.maximum(elements - NEAR, 0)
        found: Reals = self.call * first + self.tensor * tensors + self.element * elements + self.far * beyond
        return found

    @property
    def warm(self) -> Touch:
        """The same right behind another call, whose code is at hand."""
        return replace(self, call=0.0)

    def times(self, factor: float) -> Touch:
        """`factor` times as much of everything."""
        return Touch(factor * self.tensor, factor * self.element, factor * self.call, factor * self.far)

    def least(self, other: Touch) -> Touch:
        """What no pass of either takes less than."""
        return Touch(min(self.tensor, other.tensor), min(self.element, other.element), min(self.call, other.call))


NOTHING: Final = Touch(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Calls:
    """Core-seconds of the worker around each `instruction`, and passes over tensors, as in Costs, whose own hold where
    there are none here."""

    instruction: Seconds
    copy: Touch
    add: Touch
    update: Touch
    update_unpacked: Touch | None = None
    warm: Touch | None = None
    check: Touch | None = None
    load: Touch | None = None
    waking: Seconds | None = None
    choosing: Seconds | None = None
    again: Calls | None = None

    @property
    def given(self) -> dict[str, Any]:
        """Those that there are, by their names in Costs."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
