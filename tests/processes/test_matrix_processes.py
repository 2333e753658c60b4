"""Cells of the matrix of exact methods in the lab: processes of their own, on links of 1 Gbit/s and half cores, end in
fp64 with the weights of one process."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

from partita import api
from partita.checkpoints.checkpoint import SavePolicy
from partita.cluster.cluster import Cluster
from partita.errors import LoweringError, PlanError
from partita.lab.rehearsal import Rehearsal
from partita.oracles.check import TOLERANCE, difference
from partita.plan.plan import Plan
from partita.recipes.catalogue import call
from partita.runtime.leg import Leg, legs
from tests.oracles.matrix_models import MODELS, steps_of
from tests.oracles.test_matrix import PIPELINES, STATES, cells, model, one_process

FILE = Path(__file__).parents[1] / "oracles" / "matrix_models.py"
EACH = 3  # cells of a model
CELLS = [
    *((p, text) for recipe in PIPELINES for p in (2, 3, 4) for text in cells(recipe, (1, 4, 8), f",stages={p}")),
    *((ranks, text) for recipe in STATES for ranks in (2, 3, 4) for text in cells(recipe, (1, 2))),
    *((4, text) for text in cells("one_f_one_b", (1, 4), ",stages=2,data=2,shard=parameters")),
]


def lab_of(size: int) -> Cluster:
    """The first devices of `lab-4x1g`."""
    whole = api.cluster_of("lab-4x1g")
    return replace(whole, root=replace(whole.root, members=whole.root.members[:size], ports=whole.root.ports[:size]))


def drawn(name: str) -> Iterator[tuple[Cluster, Plan, tuple[Leg, ...]]]:
    """Cells in an order that the model's name decides, without those that its numbers rule out."""
    _, graph = model(name)
    for size, text in random.Random(name).sample(CELLS, len(CELLS)):
        lab = lab_of(size)
        try:
            plan = call(text, graph, lab)
            yield lab, plan, legs(graph, plan, lab, steps_of(name))
        except (PlanError, LoweringError):
            continue


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", MODELS)
def test_sampled_cells_in_the_lab(name: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    _, graph = model(name)
    largest = 0.0
    for number, (lab, plan, parts) in zip(range(EACH), drawn(name), strict=False):
        with Rehearsal(f"{FILE}:{name}", graph, lab, seed=0) as crew:
            out = str(tmp_path / str(number))
            done = crew.train(plan, steps=steps_of(name), keep=SavePolicy(out), keyed=True)
        far = difference(load_file(done.weights), one_process(name, parts))
        largest = max(largest, far)
        assert far <= TOLERANCE, (plan.name, lab.size)
    record_property("equal", number + 1)
    record_property("largest", f"{largest:.1e}")
