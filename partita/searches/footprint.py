"""Closed-form peaks of every point of a space: what stays, what backward waits for, what a pass needs beyond that."""

from __future__ import annotations

import numpy as np

from partita.arrays import Ints, Reals
from partita.cluster.cluster import Cluster
from partita.cost.lifetimes import lifetimes_of
from partita.graph.graph import Graph
from partita.plan.memory import Recompute, Shard
from partita.plan.schedule import Order
from partita.searches.space import RECOMPUTES, Space, divides
from partita.searches.stage_cuts import StageCuts


def footprint(graph: Graph, space: Space, cuts: StageCuts, samples: Reals, trained: Reals) -> Reals:
    """Bytes of the fullest rank, which holds `trained` bytes of parameters and computes `samples` at once: state by
    what is sharded, frozen weights by stages, what backward waits for of the microbatches under way, and what a pass
    needs beyond that."""
    data, pipe, schedule, shard = (space.column(name) for name in ("data", "pipe", "schedule", "shard"))
    chunks = space.chunks
    stages = np.minimum(pipe * chunks, cuts.most) - 1
    crossing = cuts.widest[stages]
    kinds = (Shard.PARAMETERS, Shard.GRADIENTS, Shard.OPTIMIZER)
    owners = [np.where(divides(shard, kind), data, 1) for kind in kinds]
    copies = np.where((data == 1) & (pipe == 1) & (space.column("microbatches") == 1), 0.0, 1.0)
    held = trained * (1 / owners[0] + copies / owners[1] + graph.state_factor / owners[2])
    rooms = np.minimum(2.0 * space.buckets, trained)  # whole buckets on their way; a stage gathers all of its own
    held = held + np.where(owners[1] > 1, rooms, 0.0)
    held = held + np.where(owners[0] > 1, np.where(pipe > 1, trained * np.minimum(2 / chunks, 1), rooms), 0.0)
    in_flight = cuts.waiting(pipe, schedule, space.column("microbatches"), graph.minibatch)
    # A pass of a stage is one segment, so all of its gradients are there before the first is packed.
    held = held + np.where(pipe > 1, trained / chunks, np.minimum(space.buckets, trained) * copies)
    held = held + np.where(copies == 0, trained, 0.0) + graph.frozen_bytes / pipe
    beyond = max(graph.once("activations", lambda: _activations(graph)) - sum(cuts.saved[0]), 0.0)
    full = (space.column("recompute") == RECOMPUTES.index(Recompute.FULL)) & ~space.ordered(
        Order.ZERO_BUBBLE
    )  # W has to find it all again
    widest = float(cuts.saved[-1].max())
    kept = np.where(full, chunks * crossing * _many(in_flight, cuts, stages) + widest, in_flight)
    found: Reals = held + samples * (kept + beyond)
    return found


def rooms_of(cluster: Cluster) -> Reals:
    """Bytes of the smallest of the first 0, 1, 2, .. devices, which are those that a plan of so many takes; infinite
    where none says how much it has."""
    return np.minimum.accumulate([np.inf, *(device.memory or np.inf for device in cluster.devices)])


def _activations(graph: Graph) -> float:
    """The most bytes a sample of what operators make, but for gradients of parameters."""
    during, _ = lifetimes_of(graph, graph.batch).live_bytes
    return float(during[:, 0].max()) / graph.batch


def _many(in_flight: Reals, cuts: StageCuts, stages: Ints) -> Reals:
    found: Reals = np.maximum(in_flight / cuts.fullest[stages], 1.0)
    return found
