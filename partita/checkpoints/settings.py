"""Settings of the task's optimizer that are not what they were when the run of a checkpoint began.

A run goes on with the settings that stand in its checkpoint, since schedules move them. Where the task itself says
otherwise now than it said then, that is meant:

    began 0.01   checkpoint 0.01    task 0.5   the run goes on with 0.5
    began 0.01   checkpoint 0.003   task 0.5   with 0.003: something moves it, a schedule or the optimizer itself
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from partita.checkpoints.plain import from_plain, to_plain
from partita.checkpoints.shard import Contents
from partita.errors import InputError
from partita.graph.graph import Graph
from partita.plan.plan import Update
from partita.runtime.rules import first_settings
from partita.task import Task

SCHEDULED: Final = "lr"  # by every schedule, also where it has not moved it yet


@dataclass(frozen=True, slots=True)
class Change:
    """A setting that the task has changed: its value when the checkpoint's run began, and `now`. `moved`: the
    checkpoint's value goes on changing by itself, and stays."""

    name: str
    began: Any
    now: Any
    moved: bool


def settings_of(task: Task, graph: Graph, update: Update) -> Any:
    """What the optimizer begins with, as plain data: settings, and names of weights, of each group."""
    return to_plain([[dict(one), list(names)] for one, names in first_settings(task, graph, update)], "the optimizer")


def changed(began: Any, contents: Contents, task: Task, graph: Graph, update: Update) -> dict[str, list[Change]]:
    """Weight -> the settings that the task has changed since a checkpoint was written whose manifest has `began`."""
    try:
        before: dict[str, Mapping[str, Any]] = {name: dict(one) for one, names in from_plain(began) for name in names}
    except (TypeError, ValueError):
        raise InputError("the checkpoint's manifest has settings of no optimizer; take another checkpoint") from None
    found: dict[str, list[Change]] = {}
    for now, names in first_settings(task, graph, update):
        for name in names:
            here = list(_changed(before.get(name, {}), now, _kept(contents, name), task.schedule is not None))
            found |= {name: here} if here else {}
    return found


def sentences(changes: Mapping[str, list[Change]]) -> list[str]:
    """What the user is to hear of the changes, each once."""
    ends = {
        False: "goes on with it as it is now",
        True: "goes on with the checkpoint's, since a schedule, or the optimizer itself, moves it",
    }
    found = []
    for moved, end in ends.items():
        own = [change for some in changes.values() for change in some if change.moved is moved]
        if each := sorted({f"{one.name} is {one.now} now; the checkpoint's run began with {one.began}" for one in own}):
            found.append(f"the task's optimizer has changed, and the run {end}: {', '.join(each)}")
    return found


def _changed(
    began: Mapping[str, Any], now: Mapping[str, Any], kept: Mapping[str, Any], scheduled: bool
) -> Iterator[Change]:
    for key in sorted(began.keys() & now.keys() & kept.keys()):
        if _unlike(began[key], now[key]):
            yield Change(key, began[key], now[key], (scheduled and key == SCHEDULED) or _unlike(kept[key], began[key]))


def _unlike(one: Any, other: Any) -> bool:
    return bool(to_plain(one, "a setting") != to_plain(other, "a setting"))


def _kept(contents: Contents, name: str) -> Mapping[str, Any]:
    """The settings of a weight's group when the checkpoint was written, on the first rank that says."""
    for owner in contents.ranks("settings", name):
        found = check_settings(contents.values.get(contents.parts("settings", name, "", owner)[0]), {})
        return found
    return {}


def check_settings(found: Any, like: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of a group that stand in a checkpoint. Raises InputError for what are none, or are of another kind
    than the group's own, `like`: a checkpoint may be by anybody."""
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise InputError(f"the checkpoint holds {str(found)[:80]!r} for settings of an optimizer; take another one")
    for name in found.keys() & like.keys():
        if _kind(found[name]) != _kind(like[name]) and None not in (found[name], like[name]):
            raise InputError(
                f"the checkpoint holds {str(found[name])[:80]!r} for {name} of the optimizer, which is {like[name]!r} "
                "here; take another checkpoint"
            )
    return found


def _kind(value: Any) -> Any:
    """What may stand for what: numbers for each other, also those in a tensor."""
    if isinstance(value, list | tuple):
        return [_kind(item) for item in value]
    if isinstance(value, int | float | torch.Tensor) and not isinstance(value, bool):
        return float
    return type(value)
