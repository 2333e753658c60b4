"""What a search makes small, and which plans it may compare by that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from partita.arrays import Reals
from partita.cluster.cluster import Cluster, Device, in_all
from partita.errors import OptionError
from partita.program.timeline import Timeline
from partita.searches.candidate import Candidate
from partita.searches.estimates import Estimates
from partita.units import show_bytes, show_seconds

# Objective -> how much more of it another plan takes, in words.
OBJECTIVES: Final = {
    "time": "take {:.2f} times as long",
    "memory": "keep {:.2f} times as much",
    "cost": "cost {:.2f} times as much",
    "time-to-loss": "take {:.2f} times as long to the same loss",
}
# Objective -> how much less of it a plan is predicted to take, in words.
LEADS: Final = {
    "time": "{:.1%} faster", "memory": "to keep {:.1%} less", "cost": "{:.1%} cheaper", "time-to-loss": "{:.1%} faster",
}  # fmt: skip
# Objective -> what a plan does with what is to be small, in words.
DOES: Final = {"time": "takes", "memory": "keeps", "cost": "costs", "time-to-loss": "takes"}
# What --allow lets through; consensus plans (local_sgd) only where anything may be. No search proposes racy ones.
ALLOWED: Final = {
    "exact": ("exact",),
    "lossy": ("exact", "lossy"),
    "delayed": ("exact", "delayed"),
    "any": ("exact", "lossy", "delayed", "consensus", "racy"),
}


def check_objective(objective: str, allow: str, cluster: Cluster) -> None:
    """Raises OptionError for an objective or class that is not known, or money where devices have no price."""
    if objective not in OBJECTIVES:
        raise OptionError(f"--objective is {objective!r}; allowed are {', '.join(OBJECTIVES)}")
    if allow not in ALLOWED:
        raise OptionError(f"--allow is {allow!r}; allowed are {', '.join(ALLOWED)}")
    free = sorted({device.kind for device in cluster.devices if not device.price})
    if objective == "cost" and free:
        raise OptionError(
            f"--objective cost needs what a device costs, and {cluster.name} does not say it of {', '.join(free)}; "
            "add price = 2.5 (dollars an hour) to the device's table in a cluster file"
        )


def check_weighed(given: bool, objective: str) -> None:
    """Raises OptionError where steps to a loss are `given` and nothing would be done with them."""
    if given and objective != "time-to-loss":
        raise OptionError(
            f"--steps-to-loss is given and --objective is {objective}; it weighs minibatches and plans for --objective "
            "time-to-loss"
        )


def refusal(semantics: str, objective: str, allow: str) -> str:
    """Why a plan of this class is not ranked; empty where it is."""
    if semantics not in ALLOWED[allow]:
        return f"its class is {semantics} and --allow is {allow}"
    # Exact plans take the same number of steps to a loss, whatever it is; of others only what was measured is known.
    if objective == "time-to-loss" and semantics != "exact":
        return (
            f"its class is {semantics}, and how many more steps than an exact plan it needs to a loss is not known: "
            "give what was measured (--steps-to-loss)"
        )
    return ""


def objective_value(candidate: Candidate, cluster: Cluster, objective: str) -> float:
    """What is to be small: seconds a step, bytes of the fullest rank, dollars a step of the devices it occupies, or
    seconds a step times the steps to a loss beside an exact plan's."""
    timeline = candidate.timeline
    if objective == "memory":
        return float(max(timeline.memory))
    if objective == "cost":
        return money_of(timeline, cluster.devices)
    return timeline.step_seconds * (candidate.needs if objective == "time-to-loss" else 1.0)


def objective_values(estimates: Estimates, cluster: Cluster, objective: str) -> Reals:
    """The same of all points of a grid, by formula; their plans are exact. Shape [points]."""
    if objective == "memory":
        return estimates.memory
    if objective == "cost":
        hourly = np.cumsum([device.price for device in cluster.devices])
        found: Reals = estimates.seconds * hourly[estimates.devices.astype(np.int64) - 1] / 3600
        return found
    return estimates.seconds


def money_of(timeline: Timeline, devices: Sequence[Device]) -> float:
    """Dollars a step of those of the devices that it occupies; 0, unknown, unless all of these have a price."""
    return timeline.step_seconds * in_all(device.price for device in devices[: timeline.ranks or None]) / 3600


def show_objective(value: float, objective: str) -> str:
    """A value of it with its unit: '12.3 ms', '16 GiB', '0.004 dollars'."""
    if objective == "memory":
        return show_bytes(value)
    return f"{value:.3g} dollars" if objective == "cost" else show_seconds(value)
