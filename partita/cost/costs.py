"""Costs: what was measured, or is in data sheets, of operators, passes over tensors, messages and devices.

Core-seconds are seconds of one whole core of a device of speed 1; the simulator divides them by a device's speed and
quota. `cost/demand` says what an instruction needs by them. The bytes that messages put on links are not here:
`simulator/transfers` lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import final

from partita.cluster.cluster import Cluster, Port
from partita.cost.scratch import Processor
from partita.cost.touch import NOTHING, Calls, Touch
from partita.cost.wiring import Circle, Wiring
from partita.cost.workspaces import NONE, Workspaces
from partita.errors import CostError
from partita.graph.fusing import Part, parts_of
from partita.graph.graph import Graph
from partita.graph.kinds import kinds_of
from partita.graph.precision import shortened
from partita.graph.signature import signature
from partita.plan.wire import Codec
from partita.program.instruction import Collective
from partita.program.program import Program
from partita.units import BytesPerSecond, Seconds
from partita.wire.algorithms import by_messages
from partita.wire.codec import settings_of, spec_of, text_of


@dataclass(frozen=True, slots=True)
class Host:
    """`cores` cores of one machine, which the devices of `ranks` share at every moment, besides each one's quota."""

    ranks: tuple[int, ...]
    cores: float


@final
@dataclass(frozen=True)
class Costs:
    """Costs of a graph on a cluster.

    operators        core-seconds of one operator by `signature`, at each of the batch `sizes`; a target with FIRST
                     behind it has what the first operator of that target in a step takes more
    copy, add, update   passes over tensors: copying, adding, an optimizer's step
    warm             a copy of what came or was made a moment ago (None: as `copy`)
    check            looking whether values are finite
    update_unpacked  an optimizer's step on gradients where backward left them, piece by piece (None: as `update`)
    load             loading samples, which are its elements; those that are `at_hand` are not read ahead
    codecs           encoding and decoding, by the text of the codec (`text_of`)
    instruction      core-seconds around every instruction, besides what it does
    waking           what one takes more for which the thread of its lane wakes up, and the same in a lane that chooses
    choosing         its next instruction at run time
    again            what instructions and passes take right behind other short ones (None: the same)
    alone            the same in a plan for one rank, which touches all at its own intervals (None: the same)
    wiring           messages and collectives
    slowdowns        of each rank, how many times as long it takes: two cores of one machine are not always equally fast
                     (empty: 1)
    unevenness       standard deviation over mean of what one and the same work takes on a device, round after round
    hosts            which emulated devices share cores of the machine that was measured
    processor        of what kind the devices are, on which temporary tensors depend
    workspaces       bytes that operators take of an accelerator while they run
    launching        costs of the host threads that launch work on accelerators and run ahead of them (None: processors)
    sheets, sheet    where devices are unlike, the costs by each data sheet, and which of these each rank has (empty:
                     all go by this one's, at their speeds)
    source, because  'measured' or 'datasheet', and why costs were not measured
    """

    graph: Graph
    cluster: Cluster
    operators: Mapping[str, Seconds]
    copy: Touch
    add: Touch
    update: Touch
    load: Touch
    sizes: tuple[int, ...] = ()
    instruction: Seconds = 20e-6
    wiring: Wiring = Wiring()
    source: str = "measured"
    because: str = ""
    hosts: tuple[Host, ...] = ()
    codecs: Mapping[str, tuple[Touch, Touch]] = field(default_factory=dict)
    slowdowns: tuple[float, ...] = ()
    unevenness: float = 0.0
    processor: Processor = Processor.WIDE
    workspaces: Workspaces = NONE
    at_hand: bool = False
    launching: Costs | None = None
    update_unpacked: Touch | None = None
    check: Touch = NOTHING
    warm: Touch | None = None
    waking: Seconds = 0.0
    choosing: Seconds = 0.0
    again: Calls | None = None
    alone: Calls | None = None
    sheets: tuple[Costs, ...] = ()
    sheet: tuple[int, ...] = ()
    _sums: dict[tuple[int, int, int, int, bool], tuple[Graph, Seconds]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @cached_property
    def behind(self) -> Costs:
        """The costs of instructions that come right behind other short ones; none takes less."""
        return replace(self, again=None, **self.again.given) if self.again else self

    def among(self, ranks: int) -> Costs:
        """The costs of programs of so many ranks."""
        return replace(self, alone=None, **self.alone.given) if self.alone and ranks == 1 else self

    def own(self, rank: int) -> Costs:
        """What a rank's own device takes, by its own sheet."""
        return self.sheets[self.sheet[rank]] if self.sheets else self

    def speed(self, rank: int) -> float:
        """The speed of a rank's device; 1 is that of the device on which core-seconds were measured."""
        return self.cluster.devices[rank].speed / self._slowdown(rank)

    def handling(self, rank: int) -> float:
        """The same on what messages and collectives ask of it."""
        return self.cluster.devices[rank].handling / self._slowdown(rank)

    def pace(self, rank: int) -> float:
        """Core-seconds of that device that one thread of a rank gets in a second."""
        return self.cluster.devices[rank].pace / self._slowdown(rank)

    def _slowdown(self, rank: int) -> float:
        return self.slowdowns[rank] if self.slowdowns else 1.0

    def segment(
        self, start: int, stop: int, batch: int, stage: Graph | None = None, compiled: bool = False
    ) -> Seconds:  # fmt: skip
        """Core-seconds of operators `start` to `stop` of the graph, or of a `stage` of it, for `batch` samples.

        Raises CostError for an operator whose cost is not known.
        """
        graph = stage or self.graph
        place = (id(graph), start, stop, batch, compiled)
        if place not in self._sums:
            prices = self.prices(batch, graph.precision, compiled)
            self._sums[place] = graph, sum(prices[o.name.split("@")[0]] for o in graph.operators[start:stop])
        return self._sums[place][1]

    def prices(self, batch: int, precision: str = "", compiled: bool = False) -> Mapping[str, Seconds]:
        """Operator name -> core-seconds for `batch` samples, of the captured step or (`precision`) of the step in that
        short dtype, where it is `compiled` and that is priced as parts of kernels. A stage's copy `x@2` of an operator
        costs what `x` does."""
        known = batch, precision, compiled
        if known not in self._batches:
            own = precision in ("", self.graph.precision)  # a step that was rewritten before is priced as it is
            kinds = kinds_of(step := self.graph if own else shortened(self.graph, precision))
            keys = [signature(operator, graph) for operator, graph in kinds.at(batch)]
            parts = parts_of(step) if compiled else (None,) * len(step.operators)
            each = zip(step.operators, kinds.number, parts, strict=True)
            self._batches[known] = {o.name: self._operator(keys[kind], part) for o, kind, part in each}
        return self._batches[known]

    @cached_property
    def _batches(self) -> dict[tuple[int, str, bool], dict[str, Seconds]]:
        return {}

    def _operator(self, key: str, part: Part | None) -> Seconds:
        if part is not None and key + part.mark in self.operators:
            return self.operators[key + part.mark]
        if key not in self.operators:
            raise CostError(f"no cost is known for {key}; probe the task on this cluster first")
        return self.operators[key]

    def codec(self, codec: Codec) -> tuple[Touch, Touch]:
        """The costs of encoding and of decoding: as measured, or measured with other settings of the codec, or else
        from the numbers of its passes over memory, of which a copy has two, and of operators that it runs."""
        for known in (text_of(codec), codec.name):
            if known in self.codecs:
                return self.codecs[known]
        spec, copy = spec_of(codec), self.copy
        calls = spec.calls(settings_of(codec)) if spec.calls else (1.0, 1.0)
        each = zip(calls, spec.passes, strict=True)
        ahead, back = (Touch(many * copy.tensor, passes / 2 * copy.element, copy.call) for many, passes in each)
        return ahead, back

    def carried(self, program: Program, act: Collective, circle: Circle) -> float:
        """Bytes that a collective puts on the ports, as a fraction of those of a ring."""
        return 1.0 if by_messages(act) else self.wiring.carried(program.payload(act), circle, act.kind)

    def payload(self, port: Port) -> BytesPerSecond:
        """The bandwidth of a port that is left for payload."""
        return self.wiring.payload(self.cluster, port)
