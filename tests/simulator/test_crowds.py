"""With how many others ranks have messages at once."""

from __future__ import annotations

import numpy as np
import pytest

from partita.program.instruction import Send
from partita.simulator.crowds import peers_at_once
from tests.programs import program_by
from tests.small import cluster_of, layers


@pytest.mark.parametrize(
    ("text", "peers"),
    [
        ("d_psgd(neighbours=complete)", [3, 3, 3, 3]),
        ("d_psgd(neighbours=ring)", [2, 2, 2, 2]),
        ("gossip", [1, 1, 1, 1]),
        ("ps_sync", [1, 1, 1, 3]),
        ("gpipe(stages=4,data=1,microbatches=4)", [1, 1, 1, 1]),
        ("ddp", [0, 0, 0, 0]),
    ],
)
def test_peers_at_once(text: str, peers: list[int]) -> None:
    """Stages speak to both sides, but of each thing to one."""
    graph, machines = layers(12, batch=24), cluster_of(4)
    program = program_by(text, graph, machines)
    sends = [(role, i) for role, i in program.instructions() if isinstance(i.act, Send)]
    source = np.array([rank for role, _ in sends for rank in role.ranks], np.int64)
    target = np.array([to for role, i in sends for to in np.broadcast_to(i.act.to, len(role.ranks))], np.int64)  # type: ignore[union-attr]
    assert peers_at_once(sends, source, target, program).tolist() == peers
