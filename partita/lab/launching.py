"""The cost of launching work on accelerators, beside the cost of the work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from partita.cost.costs import Costs
from partita.lab.replies import touch_of, touches_of
from partita.units import Seconds


def launches_of(replies: Sequence[Mapping[str, Any]]) -> dict[str, Seconds]:
    """Signature -> core-seconds of launching an operator, medians over the ranks that timed it; none on processors."""
    timed = [each for reply in replies for each in reply["launching"]]
    names = dict.fromkeys(name for each in timed for name in each)
    return {name: median(each[name] for each in timed if name in each) for name in names}


def with_launching(costs: Costs, launches: Mapping[str, Seconds], touches: Sequence[Mapping[str, Any]]) -> Costs:
    """The costs, and beside them those of the launching threads, where there are any."""
    sides = [each for reply in touches for each in reply["launching"]]
    if not sides:
        return costs
    found: dict[str, Any] = {**touches_of(sides), "load": touch_of(sides, "load"), "operators": launches}
    instruction = median(each["instruction"] for each in sides)
    return replace(costs, launching=replace(costs, instruction=instruction, _sums={}, **found))
