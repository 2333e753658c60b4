"""A training that this process launches: it claims the run's directory, starts workers and stores the result."""

from __future__ import annotations

from partita.checkpoints.checkpoint import SavedCheckpoint
from partita.lab.limits import PROCESS
from partita.lab.rehearsal import Rehearsal
from partita.oracles.mean import divides, unlike_its_parts
from partita.runs.directory import Finished, finish, opened
from partita.runs.result import RunResult
from partita.runs.training import Training
from partita.task import Task


def train_on(task: Task, asked: Training) -> RunResult:
    """Train `task`, which workers load as well, on emulated or local devices; the memory of emulated ones is a limit at
    which the kernel kills. Raises RunStopped after a signal."""
    graph, seed, keep = asked.graph, asked.seed, asked.keep
    with opened(asked) as start:
        if isinstance(start, Finished):
            return start.result
        path, since = (str(start.path), start.manifest.step) if isinstance(start, SavedCheckpoint) else ("", 0)
        if divides(asked.program) and (unlike := unlike_its_parts(task, graph.batch, seed)):
            asked.note(unlike)
        with Rehearsal(
            task,
            graph,
            asked.cluster,
            seed=seed,
            init=asked.init,
            timeout=asked.timeout,
            tell=asked.tell,
            beside=PROCESS,
        ) as rehearsal:
            for sentence in rehearsal.notes:
                asked.note(sentence)
            result = rehearsal.train(
                asked.plan,
                steps=asked.steps,
                keep=keep,
                evaluation=asked.evaluation,
                keyed=asked.keyed,
                resume=path,
                since=since,
                note=asked.note,
            )
        finish(asked, result)
        return result
