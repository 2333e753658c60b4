"""What numbers about a step need and a Timeline does not contain: samples, FLOPs, devices."""

from __future__ import annotations

from dataclasses import dataclass

from partita.cluster.cluster import Cluster, Device
from partita.graph.flops import flops, is_contraction
from partita.graph.graph import Graph
from partita.graph.tensor import PRECISION_OF
from partita.units import Flops


@dataclass(frozen=True, slots=True)
class Setting:
    """Samples of an epoch, model FLOPs of a step, their dtype, the devices, and the task's name; defaults stand for
    unknown."""

    samples: int = 0
    flops: Flops = 0.0
    dtype: str = "fp32"
    devices: tuple[Device, ...] = ()
    task: str = ""


def setting_of(graph: Graph, cluster: Cluster) -> Setting:
    """The setting of a graph on a cluster; model FLOPs are those of the contractions, as usual for MFU."""
    batch = graph.minibatch
    work = sum(flops(operator, graph, batch) for operator in graph.operators if is_contraction(operator))
    dtype = graph.parameters[0].tensor.dtype if graph.parameters else "float32"
    return Setting(graph.samples, float(work), PRECISION_OF.get(dtype, dtype), cluster.devices, graph.name)
