"""Closed-form steps of every point of a space at once, so that the event clock need look at few of them.

F F F F . . B B B B     m paces of the slowest place along the pipe, and the way of one microbatch through all the
bubble ----/            others; then what of the gradients' messages is not hidden behind the last backward pass,
                A-----  sums of weights that several stages have, and the update
a pace       the longest of: what the processor does, its messages among it; the chain of passes that wait for weights;
             the lane of collectives; the port; a message; a round trip over the microbatches that may be under way
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from partita.arrays import Flags, Ints, Reals
from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.memory import Shard
from partita.plan.schedule import Order
from partita.searches.footprint import footprint
from partita.searches.link_speeds import LinkSpeeds
from partita.searches.recomputed_shares import recomputed_shares
from partita.searches.space import Space
from partita.searches.stage_cuts import StageCuts

THIRD: Final = 1 / 3  # of a stage's seconds: forward, backward for inputs and for weights take about as long
BLOCK: Final = 2**15  # points whose terms are worked out at once
GATHERED: Final = 2  # times that a microbatch needs a stage's weights
# Scatters and gathers of all of a rank's gradients or weights (ZeRO; Rajbhandari et al. 2020, section 7), for every
# microbatch and once a step, as Programs have them; what no step can do without is less (`circulation`).
EVERY: Final = {Shard.GRADIENTS: 1, Shard.PARAMETERS: 3}
ONCE: Final = {Shard.NONE: 2, Shard.OPTIMIZER: 2, Shard.GRADIENTS: 1}
LAST: Final = {Shard.GRADIENTS: 1, Shard.PARAMETERS: 1}  # of what every microbatch sends, after its passes


@dataclass(frozen=True)
class Estimates:
    """Seconds of a step and bytes of the fullest rank, of every point of `space`; `step_seconds` are the former of some
    points where all links are so many times as wide."""

    space: Space
    seconds: Reals
    memory: Reals
    step_seconds: Callable[[Space, float], Reals]

    @property
    def devices(self) -> Reals:
        """How many devices each point takes."""
        return (self.space.column("data") * self.space.column("pipe")).astype(np.float64)

    def fitting(self, capacity: Reals, slack: float = 0.0) -> Flags:
        """Which points fit devices of `capacity` bytes, a number for each, if the prediction is `slack` too high."""
        return self.memory * (1 - slack) <= capacity


def estimates_of(graph: Graph, cluster: Cluster, costs: Costs, space: Space, cuts: StageCuts) -> Estimates:
    """Every point by formula, so many at a time as a cache has room for. Devices count as the slowest of them."""
    link_speeds = LinkSpeeds(cluster, costs.wiring)
    recomputed = np.array([recomputed_shares(graph, costs, staged=staged) for staged in (False, True)])

    def terms_of(some: Space, tied: Reals, width: float = 1.0) -> StepTerms:
        return StepTerms(graph, cluster, costs, some, cuts, link_speeds, recomputed, tied, width)

    def tied_of(some: Space, width: float = 1.0) -> Reals:
        kinds, which = some.groups
        return terms_of(some.some(kinds), np.zeros(0), width).tied_sums[which]

    seconds, memory = np.empty((2, len(space)))
    tied = tied_of(space)
    for begin in range(0, len(space), BLOCK):
        at = slice(begin, begin + BLOCK)
        steps = terms_of(space.some(at), tied[at])
        seconds[at] = steps.seconds
        memory[at] = footprint(graph, steps.space, cuts, steps.samples, steps.place["state"])
    return Estimates(space, seconds, memory, lambda some, width: terms_of(some, tied_of(some, width), width).seconds)


@dataclass(frozen=True, eq=False)
class StepTerms:
    """The terms of a step by formula; each property has shape [points], and is of one microbatch where it says so.

    recomputed  `recomputed_shares` of a step without stages, and with them
    tied        `tied_sums` of the points
    width       how many times as wide links are
    """

    graph: Graph
    cluster: Cluster
    costs: Costs
    space: Space
    cuts: StageCuts
    link_speeds: LinkSpeeds
    recomputed: Reals
    tied: Reals
    width: float = 1.0

    @cached_property
    def seconds(self) -> Reals:
        """Seconds of a step."""
        alone = np.maximum(self.chain, self.work + self.packing + self.ends * self.transfer[1])
        total = (self.m - 1) * self.pace + alone + self.ramp + self.stalled
        busy = self.m * self.own + self.ramp + self.sharded(ONCE) * self.buckets * self.half[1]
        lane = (self.m * self.collectives + self.sharded(ONCE) * self.buckets) * self.half[0] + self.tied
        first = self.round_trip - self.deferred
        found: Reals = np.max([total + self.exposed, busy, lane, first + self.exposed], axis=0) + self.update
        return found

    @cached_property
    def m(self) -> Reals:
        """Microbatches."""
        return self.space.column("microbatches").astype(np.float64)

    @cached_property
    def data(self) -> Reals:
        """Replicas."""
        return self.space.column("data").astype(np.float64)

    @cached_property
    def pipe(self) -> Reals:
        """Places along the pipe."""
        return self.space.column("pipe").astype(np.float64)

    @cached_property
    def chunks(self) -> Reals:
        """Stages of a place."""
        return self.space.chunks.astype(np.float64)

    @cached_property
    def samples(self) -> Reals:
        """Samples of a microbatch."""
        return self.graph.minibatch / (self.data * self.m)

    @cached_property
    def place(self) -> dict[str, Reals]:
        """`StageCuts.places` of the points."""
        return self.cuts.places(self.space.column("pipe"), self.space.column("schedule"))

    @cached_property
    def speed(self) -> float:
        """Core-seconds a second of the slowest device, or host."""
        return min(device.pace for device in self.costs.cluster.devices)

    @cached_property
    def handling(self) -> float:
        """The same of messages."""
        return min(device.handling * device.pace / device.speed for device in self.costs.cluster.devices)

    def sharded(self, times: Mapping[Shard, float]) -> Reals:
        """How often what `times` counts is sent; nothing is where there is one replica."""
        return self.space.by_shard(times) * (self.data > 1.0)

    # What a microbatch computes.

    @cached_property
    def recomputed_share(self) -> Reals:
        """By how much what is computed again makes computing longer."""
        found: Reals = self.recomputed[(self.pipe > 1).astype(np.int64), self.space.column("recompute")]
        return found

    @cached_property
    def work(self) -> Reals:
        """Core-seconds of passes on the slowest place, alone."""
        return self._passes(self.place["fixed"], self.place["each"])

    @cached_property
    def others(self) -> Reals:
        """Core-seconds of passes on all other places."""
        return self._passes(self.place["whole_fixed"], self.place["whole_each"]) - self.work

    def _passes(self, fixed: Reals, each: Reals) -> Reals:
        return (fixed + each * self.samples) * (1 + self.recomputed_share) / self.speed

    @cached_property
    def tensors(self) -> Reals:
        """Tensors of trained parameters on a rank."""
        return len(self.graph.trainable) / self.pipe

    @cached_property
    def packing(self) -> Reals:
        """Instructions, and gradients added up where somebody else waits for them."""
        costs, words = self.costs, self.place["state"] / self.graph.item
        acts = self.chunks * (3 + self.space.ordered(Order.ZERO_BUBBLE)) + self.buckets
        acts = acts + self.collectives
        packed = costs.add.of(0.0, 0.0) * self.buckets + costs.add.tensor * self.tensors + costs.add.element * words
        return (acts * costs.instruction + packed * (self.data * self.pipe * self.m > 1)) / self.speed

    # What it sends: to the next stage, and among replicas.

    @cached_property
    def ends(self) -> Reals:
        """Messages that a rank sends or receives: of each stage's forward and backward pass two, but at the ends."""
        return np.where(self.pipe > 1, 4 * self.chunks - 2 * (self.pipe < 3), 0.0)

    @cached_property
    def transfer(self) -> tuple[Reals, Reals, Reals]:
        """(seconds, core-seconds at one end, seconds of the port) of a message from stage to stage."""
        wiring, link_speeds = self.costs.wiring, self.link_speeds
        bandwidth, latency = (column[self.space.column("data")] for column in link_speeds.apart)
        size = self.place["crossing"] * self.samples
        wire = size / (self.width * bandwidth)
        core = (wiring.starting(4, value=True) + max(wiring.sent, wiring.received) * size) / self.handling
        there = self.pipe > 1
        return (wiring.crossing + latency + np.maximum(core, wire)) * there, core * there, wire * there

    @cached_property
    def buckets(self) -> Reals:
        """Buckets that a rank's gradients fill; no two stages share one."""
        return self.chunks * np.ceil(self.place["state"] / (self.chunks * self.space.buckets))

    @cached_property
    def half(self) -> tuple[Reals, Reals, Reals]:
        """(seconds, core-seconds, seconds of the port) of a bucket's scatter or gather, or of half of its sum."""
        data = self.space.column("data")
        return self._half(self.place["state"] / self.buckets, data, 0 * data)

    @cached_property
    def tied_sums(self) -> Reals:
        """Seconds of summing up weights that the first and another place have, and of bringing them back: neither
        passes nor other buckets are left to do meanwhile."""
        data, pipe = self.space.column("data"), self.space.column("pipe")
        size = self.place["tied"]
        return 2 * self._half(size, data, data * (pipe - 1))[0] * (size > 0) if size.any() else size

    def _half(self, whole: Reals, near: Ints, far: Ints) -> tuple[Reals, Reals, Reals]:
        """`half`, of a bucket of so many bytes among the first ranks, and as many `far` ones where that is above 0."""
        wiring, data = self.costs.wiring, np.where(far > 0, 2.0 * near, near)
        waits, part, bandwidth = self.link_speeds.half_sums(whole, near, far, self.space.column("shard") > 0)
        size = whole * (data - 1) / data
        wire = part * size / (self.width * bandwidth)
        start = wiring.start / np.where(self.space.column("shard") > 0, 1, 2)  # an all-reduce is both, started once
        core = (start + size * (wiring.sent + wiring.received + wiring.reduced / 2)) / self.handling
        there = data > 1
        return (waits + np.maximum(core, wire)) * there, core * there, wire * there

    @cached_property
    def collectives(self) -> Reals:
        """Scatters and gathers."""
        return self.sharded(EVERY) * self.buckets

    @cached_property
    def waits(self) -> Reals:
        """Gathers that nothing is computed beside: of weights that the pass before used and gave back."""
        turns = np.where(self.chunks > 1, (self.pipe - 1) / self.pipe, 1.0)
        inside = np.where(self.pipe > 1, GATHERED * self.buckets * turns, GATHERED)
        return inside * (self.sharded({Shard.PARAMETERS: 1}) > 0)

    # How they come together.

    @cached_property
    def own(self) -> Reals:
        """Core-seconds of a microbatch on a rank's processor: passes, messages, collectives and packing."""
        return self.work + self.packing + self.ends * self.transfer[1] + self.collectives * self.half[1]

    @cached_property
    def pace(self) -> Reals:
        """Seconds from one microbatch to the next, where a rank has several under way."""
        port = self.ends / 2 * self.transfer[2] + self.collectives * self.half[2]
        found: Reals = np.max([self.own, self.chain, self.collectives * self.half[0], port, self.transfer[0]], axis=0)
        return found

    @cached_property
    def chain(self) -> Reals:
        """Seconds of a microbatch's passes on one rank, and of gathers that nothing is computed beside."""
        return self.work + self.packing + self.waits * self.half[0]

    @cached_property
    def round_trip(self) -> Reals:
        """Seconds of a microbatch through all stages and back."""
        stages = self.pipe * self.chunks
        return self.pipe * (self.chain - self.work) + self.work + self.others + 2 * (stages - 1) * self.transfer[0]

    @cached_property
    def deferred(self) -> Reals:
        """Seconds of the round trip that may be put off: gradients of weights (W), but for those of the first place,
        which end its round."""
        found: Reals = self.others * np.where(self.space.ordered(Order.ZERO_BUBBLE), THIRD, 0.0)
        return found

    @cached_property
    def ramp(self) -> Reals:
        """Seconds in which the pipe fills and drains: of one microbatch through the other places. Where W is put off it
        is not among them, and W of other microbatches fill some of what is left."""
        others, filled = self.others, THIRD * np.minimum(self.pipe - 1, self.m - 1) * self.work
        computed = np.where(self.space.ordered(Order.ZERO_BUBBLE), 2 * THIRD * others - filled, others / self.chunks)
        return np.where(self.pipe > 1, np.maximum(computed, 0.0) + 2 * (self.pipe - 1) * self.transfer[0], 0.0)

    @cached_property
    def stalled(self) -> Reals:
        """Seconds in which a place may not begin another microbatch: it begins no more than the pipe is long before
        the first of them is back (1F1B), and (chunks + 1) / chunks as many where it goes round several times."""
        chunks, round_trip = self.chunks, self.round_trip - self.deferred
        room = np.where(chunks > 1, self.pipe * (chunks + 1) / chunks, self.pipe)
        late = np.maximum(round_trip / room - self.pace, 0.0) * np.maximum(self.m - room, 0.0)
        return np.where((self.pipe > 1) & ~self.space.ordered(Order.FILL_DRAIN), late, 0.0)

    @cached_property
    def exposed(self) -> Reals:
        """Seconds of a step's last collectives that nothing is computed beside: those of the last bucket, and what the
        last backward pass is too short for."""
        buckets = self.buckets
        seconds = (self.sharded(ONCE) + self.sharded(LAST)) * buckets * self.half[0]
        hidden = (1 - THIRD) * self.work / np.where(self.pipe > 1, self.chunks, 1.0)
        return np.maximum(seconds - hidden * (1 - 1 / buckets), seconds / buckets) + self.tied

    @cached_property
    def update(self) -> Reals:
        """Seconds of the optimizer's step."""
        costs, owners = self.costs, np.where(self.space.column("shard") > 0, self.data, 1)
        tensors = np.maximum(self.tensors / owners, self.buckets)
        touched = costs.update.element * self.place["state"] / self.graph.item + costs.update.tensor * tensors * owners
        return (touched / owners + (costs.instruction + costs.update.call) * self.buckets) / self.speed
