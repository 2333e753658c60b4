"""What a rank does: instructions in lanes, ordered by `after`, repeated round by round.

    lane compute |  Load  F  B0 P0 B1 P1 ....... U0 ... U1 | next round
                 |            \\      \\         /      /
    lane wire    |              A0 ..... A1 ..'.....'      |

A round covers `Program.steps` minibatches. A lane carries out one instruction at a time, by its policy. `After(name,
rounds=1)` waits for the instance of the round before: with it, pipelined, stale and asynchronous methods are the same
static text, and only the moment at which each instance runs is decided at run time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from partita.plan.plan import Correction
from partita.plan.wire import Codec
from partita.program.gate import Gate
from partita.program.space import Kind, Space


@dataclass(frozen=True, slots=True)
class Load:
    """Put the inputs of `count` samples of the round's minibatch `step`, from position `start` on (one position for
    each rank of the role), into environment `part`, which is made if it does not exist.

    The gradients computed in that environment are those of `weight` times the loss: the samples' share of the
    minibatch; 1 where the loss is a sum whose weight is agreed on later; 0 to divide by the samples' own weight. The
    Load of a `stage` (-1: no stages) gives the inputs of that stage; with `fetch` False it reads no samples.
    """

    start: tuple[int, ...]
    count: int
    part: str
    weight: float
    step: int = 0
    stage: int = -1
    fetch: bool = True


@dataclass(frozen=True, slots=True)
class Compute:
    """Run a segment of the graph in the environment `part`. There is one environment for each minibatch and microbatch
    of the round."""

    segment: str
    part: str
    step: int = 0


@dataclass(frozen=True, slots=True)
class Settle:
    """Update the running batch statistics on `stage` once for a whole minibatch, from what its microbatches gathered
    (deferred batch normalisation)."""

    stage: int = -1


@dataclass(frozen=True, slots=True)
class Pack:
    """Copy the gradients (of `stage`; for the bucket WEIGHT the weight of the samples) of environment `part` into the
    tensor `space` of a bucket, or add them to it with `add`."""

    bucket: str
    part: str
    add: bool = False
    stage: int = -1
    space: Space = Space.GRADIENT


@dataclass(frozen=True, slots=True)
class Collective:
    """The collective `kind` over a bucket, among the ranks of that group of `groups` which holds this rank.

    `algorithm` is the backend's own or a schedule of the wire room; with a `codec`, each hop of the schedule encodes.
    For schedules of sparse vectors, `density` is the expected share of numbers that are not 0. An all-gather in
    Space.CODED brings the coding of each member to all members, a reduce-scatter there the codings of its part to each.
    """

    kind: Kind
    bucket: str
    groups: tuple[tuple[int, ...], ...]
    space: Space = Space.GRADIENT
    algorithm: str = "backend"
    codec: Codec | None = None
    density: float = 1.0


@dataclass(frozen=True, slots=True)
class Send:
    """Send a bucket to a peer. `to` has one rank for each rank of the role, or one rank for all; `key` is that of the
    matching Receive.

    In Space.VALUE, `bucket` names a parcel of values of environment `part`. The values are dropped there once they are
    sent, unless `keeps` says that another Send needs them.
    """

    bucket: str
    to: tuple[int, ...]
    key: str
    space: Space = Space.GRADIENT
    part: str = ""
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class Receive:
    """Receive a bucket from a peer, `source`, into the tensor `space`, or into the inbox of that peer; or a parcel into
    environment `part`."""

    bucket: str
    source: tuple[int, ...]
    key: str
    space: Space = Space.PARAMETER
    part: str = ""


@dataclass(frozen=True, slots=True)
class Combine:
    """Gradient of the bucket = sum over `sources`, in this order. The source is an inbox, or for the rank itself its
    own gradient."""

    bucket: str
    sources: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Encode:
    """Encode the tensor `space` of a bucket as the coding `coding`.

    With error feedback, what the tensor `held` holds is added before, and what the coding loses is stored there
    afterwards. The tensors in `clears` are set to 0 where the coding has entries (DGC's momentum factor masking). A
    coding that depends on the sums of earlier codings encodes what these have left.
    """

    bucket: str
    coding: str
    space: Space = Space.GRADIENT
    clears: tuple[Space, ...] = ()
    held: Space = Space.RESIDUAL


@dataclass(frozen=True, slots=True)
class Decode:
    """Gradient of the bucket, or of the rank's own part where codings are of parts, the INBOX of a source, or what has
    changed of the weights, = sum of the decoded codings of `sources`, in this order. Without sources, it is what the
    rank's own coding says, which a collective may have summed, together with the codings before it."""

    bucket: str
    coding: str
    sources: tuple[int, ...]
    into: Space = Space.GRADIENT


@dataclass(frozen=True, slots=True)
class Free:
    """Release the memory of a bucket of which the rank keeps only its own part.

    In Space.GRADIENT that part is first stored, or with `add` added to the stored part.
    """

    bucket: str
    space: Space = Space.PARAMETER
    add: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """Multiply a bucket in place by `factor`. If a bucket `by` is named, also divide by the number that it holds (of
    WEIGHT in its gradient, of MASS in its anchor). `lag` is as in Update."""

    bucket: str
    factor: float = 1.0
    space: Space = Space.PARAMETER
    by: str = ""
    lag: int = 0


@dataclass(frozen=True, slots=True)
class Term:
    """`factor` times one of a bucket's tensors; for INBOX, what came from `peer`. Both have one number for each rank of
    the role, or one for all."""

    space: Space
    factor: tuple[float, ...] = (1.0,)
    peer: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Mix:
    """Tensor `into` of a bucket = the sum of `terms`; `into` may be one of them. `lag` is as in Update."""

    bucket: str
    into: Space
    terms: tuple[Term, ...]
    lag: int = 0


@dataclass(frozen=True, slots=True)
class Norm:
    """Bucket NORM = the sum over `buckets` of `shares` times the squared norm of their gradients. `lag` is as in
    Update.

    Where the shares of each bucket add up to 1 over all ranks, the sum over ranks is the squared norm of all gradients.
    """

    buckets: tuple[str, ...]
    shares: tuple[float, ...]
    lag: int = 0


@dataclass(frozen=True, slots=True)
class Clip:
    """Scale the gradients of all `buckets` so that their common norm, or with `by` the root of the number in that one
    (the norm of more gradients than these), is at most `norm`. `lag` and `part` are as in Update."""

    buckets: tuple[str, ...]
    norm: float
    lag: int = 0
    part: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class Update:
    """One step of the optimizer on a bucket's parameters, with the gradient of `lag` rounds ago (none yet: no step);
    with `part` directly with the gradients of that environment, not those in the bucket. They are the `share` of a
    minibatch's gradient: its mean makes a step at so much of the rate."""

    bucket: str
    lag: int = 0
    part: str = ""
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Apply:
    """A server takes in what came from `source`, in the order of arrival.

    A gradient is added to a sum; every `need`-th addition steps the optimizer on `into` and makes a new version, with
    the mean at that share of the rate: what is not linear (decay, Adam) does as much a minibatch as in one process. A
    `delta` is added to `into` `scale` times, of which the part `keep` stays, and makes a new version by itself. What
    comes from the rank itself is in its Space.DELTA.

    `share` is the contribution's share of a minibatch's samples; `among` make up `steps` minibatches; `corrections`
    change each first. With `drop`, those of a round after the first `need` are ignored, and a separate Update steps
    with the mean of the others' samples.
    """

    bucket: str
    source: int
    share: float
    among: int
    steps: int = 1
    need: int = 1
    delta: bool = False
    drop: bool = False
    scale: float = 1.0
    corrections: tuple[Correction, ...] = ()
    into: Space = Space.PARAMETER
    keep: float = 1.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Copy the tensor `space` of a bucket into the outbox for peer `to`, so that the peer gets this version whatever
    happens to the tensor while the message travels. If `to` is the rank itself, copy to its own `into`."""

    bucket: str
    to: int
    space: Space = Space.PARAMETER
    into: Space = Space.PARAMETER


@dataclass(frozen=True, slots=True)
class Mark:
    """Does nothing: a name for the moment at which enough of what it waits for has finished."""


Act: TypeAlias = (
    Load | Compute | Settle | Pack | Collective | Send | Receive | Combine | Encode | Decode | Free | Scale | Mix | Norm
    | Clip | Update | Apply | Snapshot | Mark
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class After:
    """Wait for the instance of instruction `name` of the same rank, `rounds` rounds ago."""

    name: str
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class Instruction:
    """An act in a lane, which may start once `need` of the instructions in `after` have finished (0: all of them).

    `unless`: the instance is skipped if the named one has finished by then (late work for a version that is gone).
    `priority`: in a lane that chooses, the ready instruction of the lowest number goes first. `until`: the instruction
    holds its lane until the named one, which waits for it, has finished too. `gate`: it waits for other instructions of
    its gate.
    """

    name: str
    act: Act
    lane: str
    after: tuple[After, ...] = ()
    need: int = 0
    unless: After | None = None
    priority: int = 0
    until: str = ""
    gate: Gate | None = None

    @property
    def lag(self) -> int:
        """Rounds for which this instruction goes on after the last round, to apply what is then in flight."""
        return self.act.lag if isinstance(self.act, Scale | Mix | Norm | Clip | Update) else 0
