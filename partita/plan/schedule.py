"""In which order a rank runs its forward and backward passes, and which weights they read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Order(StrEnum):
    """The order of passes on the stages of a pipeline, by its paper's name; sequential: no pipeline.

    Bidirectional (GEMS, Jain et al. 2020) and message (AMPNet, Gaunt et al. 2017) are the specification of plans that
    are not lowered yet: they are written, read and checked, and lowering refuses them in a sentence.
    """

    SEQUENTIAL = "sequential"
    FILL_DRAIN = "fill_drain"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZERO_BUBBLE = "zero_bubble"
    BIDIRECTIONAL = "bidirectional"
    MESSAGE = "message"


class Versions(StrEnum):
    """Which weights a backward pass reads: the latest; those of its forward pass (stash); one of two buffers (double);
    for all stages those of the first stage's forward pass (vertical); or predicted ones.

    All but the latest are the specification of pipelines without a flush, which are not lowered yet: PipeDream's
    (stash, vertical; Narayanan et al. 2019), PipeDream-2BW's (double) and SpecTrain's (predict; Chen et al. 2018).
    """

    LATEST = "latest"
    STASH = "stash"
    DOUBLE = "double"
    VERTICAL = "vertical"
    PREDICT = "predict"


@dataclass(frozen=True, slots=True)
class Schedule:
    """`microbatches` in a minibatch; `chunks` virtual stages for each rank. `flush`: the pipeline is drained at every
    step. `in_flight` limits the microbatches between their first forward and last backward pass (0: as the order
    implies). `update_every`: microbatches between updates where there is no flush."""

    order: Order = Order.SEQUENTIAL
    microbatches: int = 1
    chunks: int = 1
    flush: bool = True
    versions: Versions = Versions.LATEST
    in_flight: int = 0
    update_every: int = 0
