"""Training by a plan."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita.api.checking import (
    check_flags,
    check_held_out,
    check_places,
    check_plans,
    check_task,
    check_training,
    cluster_given,
)
from partita.api.loading import graph_of, load
from partita.api.planning import plan_of
from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.lab.fork_client import load_ahead
from partita.lab.network import check_here
from partita.plan.plan import Plan, Rule
from partita.program.held_out import EvaluationPolicy, ended_early, taken
from partita.report.comparison import Comparison, Row
from partita.report.environment import environment
from partita.report.manifest import write_manifest
from partita.report.record import NAME as RECORD
from partita.report.record import write_run
from partita.report.setting import setting_of
from partita.report.trained import Trained
from partita.task import Task, judged_by, refuse_while_loading, spec_of
from partita.telling import Note, Tell, quiet
from partita.units import Seconds

if TYPE_CHECKING:
    from partita.transport.signs import Words


def train(
    task: Task | str, plan: Plan | str, cluster: Cluster | str, *, steps: int = 0, epochs: int = 0, seed: int = 0,
    init: str | Path = "", out: str | Path = "", resume: bool = False, checkpoint_every: int = 0,
    keep: int | None = None, evaluate_every: int = 0, patience: int = 0, deterministic: bool = False,
    timeout: Seconds = 60.0, tell: Tell = quiet,
) -> Trained | None:  # fmt: skip
    """Train by a Plan, or a plan's text, on the cluster's devices, which are processes of this machine.

    These load the task themselves: give the text that they load it by, or a Task that a function at the top level of a
    file returned. Under torchrun this process is one rank, and only rank 0 returns a result.

    With `out`, a manifest is written there before the run begins, and a checkpoint every `checkpoint_every` steps, of
    which the newest `keep` (2, if not given) stay; `resume` continues from the last one, bit for bit under the same
    plan. Without checkpoints and evaluations, a worker that dies is started again while the others go on, if the plan
    allows it. `timeout` is in seconds.

    The result's `final_loss` is the mean over the held-out samples, in evaluation mode, or over the first of the data
    if the task holds none out. It is computed after every `evaluate_every` steps, too, which changes nothing of the
    training, and with `out` the best weights so far stay in a file; training ends after `patience` evaluations in a
    row that were no better than one before (0: it does not).

    Raises InputError; RunError for a run that failed; RunStopped if a signal has ended it.
    """
    ranked = bool(os.environ.get("RANK"))
    check_task(task)
    check_plans(plan)
    machines, first, place = cluster_given(cluster), str(init or ""), str(out or "")
    check_flags(resume=resume, deterministic=deterministic)
    check_training(
        steps=steps, epochs=epochs, seed=seed, checkpoint_every=checkpoint_every, keep=keep,
        evaluate_every=evaluate_every, patience=patience, timeout=timeout,
    )  # fmt: skip
    check_places(init=first, out=place, resume=resume, checkpoint_every=checkpoint_every)
    at = _place(machines, ranked)
    loaded, spec = _loaded(task, evaluate_every, ranked=ranked)
    steps = steps or epochs * (len(loaded.data) // loaded.batch_size)
    from partita.checkpoints.checkpoint import SavePolicy
    from partita.lab.train import train_on
    from partita.runs.torchrun import train_rank
    from partita.runs.training import Training

    account, policy = _Account(place, spec, machines, tell), SavePolicy(place, checkpoint_every, keep or 2)
    refuse = partial(_refuse_early, place, loaded, resume=resume, steps=steps, seed=seed, keyed=deterministic)
    with _met(machines, at, refuse, account.note, timeout, ranked=ranked) as words:
        graph = graph_of(loaded, tell=tell)
        made = plan_of(plan, graph, machines, task="" if ranked else loaded, tell=tell)
        tell(f"training {steps} steps of {made.name}")
        _look_at_state(loaded, graph, made, account.note, saves=bool(checkpoint_every or resume))
        asked = Training(
            graph, made, machines, steps, policy, seed=seed, init=first,
            evaluation=EvaluationPolicy(evaluate_every, patience),
            resume=resume, keyed=deterministic, timeout=timeout, tell=tell, note=account.note,
            begin=lambda: account.begin(made, seed=seed, steps=steps, init=first, deterministic=deterministic),
            end=lambda ran: account.end(asked, ran),
        )  # fmt: skip
        if (ran := train_rank(loaded, asked, *at, words) if words else train_on(loaded, asked)) is None:
            return None
    if place and not (Path(place) / RECORD).exists():  # of a finished run that could not write it
        asked.end(ran)
    return _trained(ran, asked, judged_by(loaded)[2], account.notes)


def _trained(ran: Any, asked: Any, judged: str, notes: list[str]) -> Trained:
    """What is returned of the RunResult of a Training whose held-out losses are of what `judged` says."""
    return Trained(
        asked.plan, ran.timeline, ran.loss, ran.final_loss, taken(ran.evaluations, asked.steps), ran.weights,
        tuple(notes), setting_of(asked.graph, asked.cluster), judged, ran.evaluations, ran.best,
    )  # fmt: skip


@contextmanager
def _met(
    cluster: Cluster, at: tuple[int, int], refuse: Callable[[], None], note: Tell, timeout: Seconds, *, ranked: bool
) -> Iterator[Words | None]:
    """A context in which a `ranked` process has met the other ranks; before it nothing is there to `refuse`."""
    if not ranked:
        refuse()
        yield None
        return
    from partita.runs.torchrun import met

    with met(cluster, *at, timeout=timeout, note=note, refuse=refuse) as words:
        yield words


@dataclass(frozen=True)
class _Account:
    """What the user is told of a training: its manifest and its record, as files in `place`, and `notes`."""

    place: str
    spec: str
    cluster: Cluster
    tell: Tell
    notes: list[str] = field(default_factory=list)

    def note(self, sentence: str) -> None:
        """Tell what the user must see, now and in the record."""
        self.notes.append(sentence)
        self.tell(Note(sentence))

    def begin(self, plan: Plan, *, seed: int, steps: int, **more: Any) -> None:
        """Write the manifest. Raises OptionError."""
        write_manifest(self.place, self.spec, plan, self.cluster, seed=seed, steps=steps, **more)

    def end(self, asked: Any, ran: Any) -> None:
        """Write the record of the RunResult of a Training; one of fewer steps does not stay without room for it.
        Raises OptionError."""
        if early := ended_early(ran.evaluations, asked.steps):
            self.note(early)
        plan, semantics = asked.plan, asked.program.semantics
        row = Row(
            plan.name, None, ran.timeline, loss=ran.loss, final_loss=ran.final_loss, losses=(ran.loss,),
            semantics=semantics, evaluations=ran.evaluations,
        )  # fmt: skip
        with suppress(OSError):  # there is none, or writing the new one says what is wrong
            (Path(self.place) / RECORD).unlink()
        write_run(Comparison((row,), self.spec, self.cluster, tuple(self.notes), environment()), Path(self.place))


def _refuse_early(out: str, task: Task, **known: Any) -> None:
    """Raises InputError for what the manifests in `out` already refuse of a task."""
    from partita.runs.directory import refuse_early

    if out:
        refuse_early(out, task, **known)


def _place(cluster: Cluster, ranked: bool) -> tuple[int, int]:
    """(rank, world size) of this process: as torchrun says if it is `ranked`; else it starts all others itself. Raises
    InputError where that cannot be."""
    if not ranked:
        check_here(cluster)
        return 0, 1
    from partita.runs.torchrun import place_here

    return place_here(cluster)


def _look_at_state(task: Task, graph: Graph, plan: Plan, note: Callable[[str], None], *, saves: bool) -> None:
    """Raises TaskError where the checkpoints of a run that `saves` some would not hold the optimizer's state; tells of
    what else they would not."""
    from partita.tracing.optimizer import check_saved
    from partita.tracing.successive import unsaved

    if saves and plan.update.rule is Rule.TASK:
        check_saved(task)
    if saves and graph.rung == "opaque" and (why := unsaved(task)):
        note(why)


def _loaded(task: Task | str, evaluate_every: int, *, ranked: bool) -> tuple[Task, str]:
    """The Task, and the text by which other processes load it. Raises TaskError for one that could not be evaluated."""
    load_ahead()
    loaded = load(task) if isinstance(task, str) else task
    refuse_while_loading()
    check_held_out(loaded, evaluate_every)
    return loaded, loaded.origin if ranked else spec_of(loaded)


def apply(plan: Plan | str, model: Any, optimizer: Any, loader: Any) -> tuple[Any, Any, Any]:
    """(model, optimizer, loader) for a loop of one's own under torchrun, the same objects but the loader.

        for batch in loader: loss(model, batch).backward(); optimizer.step(); optimizer.zero_grad()

    The loader gives this rank's part of each minibatch. Three kinds of plan mean what a loop says, others are refused:
    - one rank (`single`): nothing changes;
    - gradients all-reduced in lockstep (`ddp`): backward() leaves in .grad the mean over the whole minibatch on every
      rank, so that clipping and step() are those of one process; several before a step add up, as there;
    - weights averaged every `period` steps (`local_sgd`): backward() and step() are this rank's own, and the step that
      ends a period also averages the weights over ranks. Optimizer state stays with the rank.
    The loss must be the mean over its samples. Weights, buffers and the loader's own generators begin as rank 0's;
    buffers then go their own way.
    A parameter that no sample reaches has a gradient of zeros instead of none. Raises OptionError outside torchrun,
    PlanError for a plan that a loop cannot carry out.
    """
    from partita.runs.apply import apply as applied

    return applied(plan, model, optimizer, loader)
