"""What Partita sees of a model: one training step as a graph of operators, for any number of samples.

python examples/capture.py [TASK]
"""

from __future__ import annotations

import sys

import partita as pt
from partita.graph.cuts import legal_cuts
from partita.graph.flops import flops
from partita.units import show_bytes, show_flops


def main(task: str = "resnet50") -> None:
    """Capture a task without running it, and print what planning will read."""
    graph = pt.capture(task)
    print(f"{graph.name}: {len(graph.operators)} operators, {graph.forward_length} of them forward ({graph.rung})")
    print(f"{graph.parameter_elements / 1e6:.2f} M parameters, state of {graph.optimizer.name} besides")
    for batch in (1, graph.batch):
        work = sum(flops(operator, graph, batch) for operator in graph.operators)
        print(f"a step of {batch} samples: {show_flops(work)}")
    cuts = legal_cuts(graph)
    crossing = [sum(graph.tensor(value).size(graph.batch) for value in cut.values) for cut in cuts]
    print(f"{len(cuts)} places to cut it into stages; {show_bytes(min(crossing))} cross the cheapest")
    for repeat in graph.repeats:
        print(f"{repeat.count} equal blocks of {repeat.length} operators from operator {repeat.start}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
