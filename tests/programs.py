"""The Program that a text stands for, as most tests want it."""

from __future__ import annotations

from partita.cluster.cluster import Cluster
from partita.graph.graph import Graph
from partita.lowering.lower import last_program
from partita.program.program import Program
from partita.recipes.catalogue import call


def program_by(text: str, graph: Graph, machines: Cluster) -> Program:
    """That of the last phase of the plan that the recipe call makes."""
    return last_program(graph, call(text, graph, machines), machines)
