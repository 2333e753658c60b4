"""Where blocks begin that are computed again, and what is kept of them, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from partita.graph.blocks import block_starts, crossings, evenly, saved_before
from partita.graph.graph import Graph, Repeat
from partita.graph.operator import Operator, Ref, reading
from partita.graph.repeats import find_repeats
from partita.graph.tensor import Affine, Tensor
from tests.graph.test_cuts import chain

NARROW, WIDE = Tensor((Affine(1), 4), "float32"), Tensor((Affine(1), 16), "float32")


def test_what_backward_reads_is_kept_from_where_it_is_made() -> None:
    """Of the chain b, 32 bytes, c, and the loss; not a, which forward alone reads."""
    assert saved_before(chain()) == [0, 0, 0, 32, 32, 64, 68]
    assert crossings(chain()) == {2: 32, 4: 32, 5: 32}


def test_what_backward_reads_through_a_view_is_kept() -> None:
    """As of dense layers on rows of rows: backward reads what their product is seen as, and no operator the product."""
    through = tuple(
        reading(o, lambda ref: Ref("seen") if ref == Ref("b") else ref) if o.name == "gw1" else o
        for o in chain().operators
    )
    assert saved_before(replace(chain(), operators=through)) == saved_before(chain())
    both = tuple(reading(o, lambda ref: Ref("seen")) if o.name == "gb" else o for o in chain().operators)
    assert saved_before(replace(chain(), operators=both)) == saved_before(chain())


@pytest.mark.parametrize(
    ("saved", "weights", "count", "starts"),
    [
        ([0, 10, 20, 30, 40], {1: 5, 2: 1, 3: 5}, 1, (0,)),
        ([0, 10, 20, 30, 40], {1: 5, 2: 1, 3: 5}, 2, (0, 2)),
        ([0, 10, 20, 30, 40], {1: 5, 2: 1, 3: 5}, 3, (0, 1, 3)),
        ([0, 8, 10, 12, 20], {1: 3, 2: 3, 3: 3}, 2, (0, 2)),
        ([0, 8, 10, 12, 20], {1: 3, 2: 3, 3: 2}, 2, (0, 3)),
        ([0, 7, 13, 20], {1: 1, 2: 1}, 2, (0,)),
        ([0, 0, 0, 0], {1: 1, 2: 1}, 3, (0, 1, 2)),
    ],
)
def test_blocks_keep_as_much_and_begin_where_least_crosses(
    saved: Sequence[int], weights: dict[int, int], count: int, starts: tuple[int, ...]
) -> None:
    """Of the cuts within a quarter of a block from the even place; of equal ones the nearest; none where none is."""
    assert evenly(saved, weights, count) == starts


def repeated(blocks: int) -> Graph:
    """An embedding, blocks that widen and narrow again, and a loss; no backward."""
    shapes = [NARROW, *(WIDE, NARROW) * blocks]
    names = [f"o{i}" for i in range(len(shapes))]
    operators = [
        Operator(
            name, f"aten.{'relu' if i else 'sigmoid'}.default", (Ref(names[i - 1] if i else "input.0"),), (), (made,)
        )
        for i, (name, made) in enumerate(zip(names, shapes, strict=True))
    ]
    loss = Operator("loss", "aten.sum.default", (Ref(names[-1]),), (), (Tensor((), "float32"),))
    return replace(chain(), operators=(*operators, loss), gradients=())


def test_blocks_of_a_model_that_repeats_begin_where_least_crosses() -> None:
    graph = repeated(4)
    assert find_repeats(graph) == (Repeat(1, 2, 4),)
    assert block_starts(graph) == (0, 1, 3, 5, 7)


def test_the_run_that_covers_most_says_what_a_block_is() -> None:
    """Not the one of most blocks: two of four operators each, rather than three of one."""
    graph = replace(repeated(4), repeats=(Repeat(1, 4, 2), Repeat(1, 1, 3)))
    assert block_starts(graph) == (0, 1, 5)
    few = replace(repeated(4), repeats=(Repeat(1, 2, 2),))  # less than half of the pass: no reason to think so
    assert block_starts(few) != (0, 1, 3)
