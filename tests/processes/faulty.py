"""A small task in which one rank goes wrong as FAULT says; workers load it as a file.

FAULT=1:nan:3      rank 1's gradient is not finite from its third backward pass on
FAULT=2:flip:5     a bit of rank 2's weights flips at its fifth update
FAULT=1:seed:0     rank 1 begins with other weights
FAULT=1:raise:3    loading raises an error, at the third minibatch
FAULT=1:exit:3     the process leaves, with code 0
FAULT=1:crash:3    the process reads address 0
FAULT=1:skip:2     rank 1 leaves out its second collective
FAULT=1:short:2    it brings a number too few to it
FAULT=1:other:2    it brings another kind of collective
FAULT=1:late:0     each of its loads takes 50 ms longer
"""

from __future__ import annotations

import ctypes
import os
import time
from dataclasses import replace
from typing import Any

import torch

from partita.program.instruction import Collective, Load, Pack, Update
from partita.program.space import Kind
from partita.runs import session
from partita.runtime.acts import ACTS
from partita.runtime.rank import Rank
from partita.task import Task
from tests.acts import Around, Do, around
from tests.processes.mortal import mortal

MINE, KIND, COUNT = os.environ.get("FAULT", "-1:none:0").split(":")
KINDS = {"nan": Pack, "flip": Update, "skip": Collective, "short": Collective, "other": Collective}


def wrong() -> Around:
    """What goes wrong after COUNT acts of the kind."""
    left = [int(COUNT)]

    def between(do: Do, rank: Rank, act: Any, name: str, round: int) -> Any:
        counts = isinstance(act, KINDS.get(KIND, Load))
        left[0] -= counts
        if counts and not left[0] and KIND == "raise":
            raise ValueError("the disk is on fire")
        if counts and not left[0] and KIND == "exit":
            os._exit(0)
        if counts and not left[0] and KIND == "crash":
            ctypes.string_at(0)
        if counts and not left[0] and KIND == "skip":
            return None
        if counts and not left[0] and KIND == "short":
            kept = rank.state.gradient[act.bucket]
            kept[rank.slot(round)] = kept[rank.slot(round)][:-1]
        if counts and not left[0] and KIND == "other":
            act = replace(act, kind=Kind.BROADCAST)
        if counts and KIND == "late":
            time.sleep(0.05)
        found = do(rank, act, name, round)
        if counts and left[0] <= 0 and KIND == "nan":
            rank.state.gradient_views[act.bucket][rank.slot(round)][-1].fill_(float("nan"))
        if counts and not left[0] and KIND == "flip":
            rank.state.parameter[act.bucket].view(torch.int32)[1] ^= 1
        return found

    return between


def faulty() -> Task:
    """The perceptron with batch statistics."""
    task = mortal()
    if os.environ.get("RANK") == MINE:
        ACTS.update(around(wrong()))
        if KIND == "seed":
            torch.manual_seed(99)
            other = dict(task.model().named_parameters())
            first = session.Session.first
            session.Session.first = lambda self, state=None: first(self, state) | other  # type: ignore[method-assign]
    return task
