"""What a step takes besides its operators and its passes: finding code that no cache has, looking at values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.cost.costs import Costs
from partita.cost.prices import FIRST, Prices
from partita.cost.touch import Touch
from partita.program.instruction import Collective, Compute, Send, Update
from partita.program.program import Program
from tests.priced import batches_of, priced, whole_cores
from tests.programs import program_by
from tests.small import layers

GRAPH = layers(6)


def costs_of(program: Program, size: int) -> Costs:
    return priced(GRAPH, whole_cores(size, 1e9), batches_of(program), operator=1e-3)


@pytest.mark.parametrize("text", ["single", "ddp", "ddp(bucket_bytes=64)", "gpipe(microbatches=4)", "local_sgd"])
def test_code_is_found_once_a_step(text: str) -> None:
    """However many segments and microbatches a step has, its first `mm` takes longer, and no other; updates lie between
    the steps of a round."""
    program = program_by(text, GRAPH, whole_cores(2, 1e9))
    plain = costs_of(program, 2)
    more = {"aten.mm.default" + FIRST: 1e-4, "aten.t.default" + FIRST: 3e-5, "aten.none" + FIRST: 1.0}
    found = Prices(replace(plain, operators={**plain.operators, **more}), program)
    for role in program.roles:
        computing = [k for k, i in enumerate(role.instructions) if isinstance(i.act, Compute)]
        before, after = (
            [prices.of_role(role)[k].core for k in computing] for prices in (Prices(plain, program), found)
        )
        beyond = [b - a for a, b in zip(before, after, strict=True)]
        assert sum(beyond) == pytest.approx(1.3e-4 * program.steps)
        assert beyond[0] > 0.99e-4
        assert sum(one > 1e-9 for one in beyond) <= 2 * program.steps  # `mm` at once, `t` with the first backward pass


@pytest.mark.parametrize("text", ["single", "ddp", "ps_sync", "pipe_sgd", "d_psgd"])
def test_values_are_looked_at_before_others_get_them(text: str) -> None:
    """A gradient before it leaves, weights after an update from a rank's own gradient; nothing else."""
    program = program_by(text, GRAPH, whole_cores(2, 1e9))
    plain = costs_of(program, 2)
    looking = Prices(replace(plain, check=Touch(0.0, 0.0, 1e-3)), program)
    for role in program.roles:
        for i, before, after in zip(
            role.instructions, Prices(plain, program).of_role(role), looking.of_role(role), strict=True
        ):
            leaves = isinstance(i.act, Collective | Send) and i.act.space.name == "GRADIENT"
            made = isinstance(i.act, Update) and bool(i.act.part)
            assert after.core - before.core == pytest.approx(1e-3 * (leaves or made))
