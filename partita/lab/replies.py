"""What the replies of all ranks say together of one micro-benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, Final

from partita.cost.touch import Calls, Touch
from partita.cost.wiring import Wiring
from partita.cost.workspaces import Workspaces

TOUCHES: Final = ("copy", "warm", "add", "update", "update_unpacked", "check")  # passes over a model's own tensors


def touch_of(replies: Sequence[Mapping[str, Any]], name: str) -> Touch:
    """A measured Touch, of each part the median over ranks."""
    return Touch(*(median(column) for column in zip(*(reply[name] for reply in replies), strict=True)))


def touches_of(replies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The measured Touches over a model's own tensors, by their names in Costs."""
    return {name: touch_of(replies, name) for name in TOUCHES}


def calls_of(replies: Sequence[Mapping[str, Any]]) -> Calls:
    """What instructions and passes take, of each part the median over ranks."""
    instruction, waking, choosing = (
        median(reply[name] for reply in replies) for name in ("instruction", "waking", "choosing")
    )
    passes = touches_of(replies)
    usual = Calls(instruction, **passes, load=touch_of(replies, "load"), waking=waking, choosing=choosing)
    return replace(usual, again=_again_of(replies, usual))


def _again_of(replies: Sequence[Mapping[str, Any]], usual: Calls) -> Calls | None:
    """What instructions take right behind short ones, of each part the median over ranks and no more than they do
    `usual`ly; None where it was not timed. What a cache does not hold takes what it usually takes."""

    def again(name: str, usual: Touch) -> Touch:
        found = touch_of([reply["again"] for reply in replies], name).least(usual)
        return replace(found, far=usual.element - found.element)

    if not replies[0]["again"]:
        return None
    assert usual.update_unpacked
    copy, following = again("copy", usual.copy), median(reply["following"] for reply in replies)
    return Calls(
        min(following, usual.instruction), copy, again("add", usual.add), again("update", usual.update),
        again("update_unpacked", usual.update_unpacked), warm=copy,
    )  # fmt: skip


def coding_of(replies: Sequence[Mapping[str, Any]], name: str) -> tuple[Touch, Touch]:
    """The costs of encoding and decoding with a codec, medians over ranks."""
    ahead, back = (
        Touch(*(median(reply["codecs"][name][way][part] for reply in replies) for part in range(3))) for way in (0, 1)
    )
    return ahead, back


def with_coding(wiring: Wiring, replies: Sequence[Mapping[str, Any]]) -> Wiring:
    """The wiring with what coding costs computing, the median over ranks."""
    return replace(wiring, coding=median(reply["coding"] for reply in replies))


def workspaces_of(replies: Sequence[Mapping[str, Any]], known: Workspaces) -> Workspaces:
    """What operators take of an accelerator while they run, the most of all ranks, besides what is known."""
    operators, kept = dict(known.operators), known.kept
    for sizes, more in (reply["workspaces"] for reply in replies):
        operators |= {name: max(size, operators.get(name, 0)) for name, size in sizes.items()}
        kept = max(kept, more)
    return Workspaces(operators, kept)
