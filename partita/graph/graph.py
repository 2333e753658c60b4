"""The captured training step as a value: forward and backward operators in topological order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeVar

from partita.graph.operator import Operator, Phase, Ref
from partita.graph.tensor import ITEMSIZE, Tensor
from partita.units import Bytes

TANGENT: Final = "tangent"
T = TypeVar("T")


@dataclass(frozen=True)
class Parameter:
    """A leaf of the model; `aliases` are the other names of a tied weight."""

    name: str
    tensor: Tensor
    trainable: bool = True
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Buffer:
    """A tensor of the model that is not trained; `persistent` ones belong to its state dict."""

    name: str
    tensor: Tensor
    persistent: bool = True


@dataclass(frozen=True)
class Constant:
    """A tensor that the trace made from plain numbers; `data` is its little-endian bytes."""

    name: str
    tensor: Tensor
    data: bytes = b""


@dataclass(frozen=True)
class Optimizer:
    """What the optimizer keeps and costs: `state` names its tensors, each (elements a parameter element, dtype).

    `elementwise` is False where an update mixes elements (LAMB's norms), so that shards need more than their own
    part, `alone` where it mixes tensors (a norm over all), which must then stay together. `momentum` is that of SGD,
    and whether it is `nesterov`'s; `fixed_to` says what ties it to the optimizer's own steps, "" where gradients may
    have it before; `decays` whether some of SGD's weights decay. `joins` says whether adjacent tensors have the same
    bits where it steps them as one, `fused` whether a step is one kernel; `one_pass` whether it is so on a processor.
    """

    name: str = "SGD"
    state: tuple[tuple[str, float, str], ...] = ()
    elementwise: bool = True
    momentum: float = 0.0
    nesterov: bool = False
    joins: bool = True
    fused: bool = False
    one_pass: bool = False
    decays: bool = False
    fixed_to: str = ""
    alone: bool = True

    @property
    def linear(self) -> bool:
        """Whether what its steps change is linear in all gradients so far."""
        return self.name == "SGD" and not self.decays

    def state_bytes(self, elements: int) -> int:
        """Bytes of the state that it keeps for so many elements of parameters."""
        return round(sum(each * elements * ITEMSIZE[dtype] for _, each, dtype in self.state))


@dataclass(frozen=True)
class Repeat:
    """`count` blocks of `length` operators each that differ in names only, from operator index `start`."""

    start: int
    length: int
    count: int


@dataclass(frozen=True)
class Graph:
    """One training step of a Task on `batch` samples.

    `inputs` are the batch's leaves in pytree order, named `input.0`, `input.1`, ...
    `loss` is a scalar: the mean over the samples, or with `weight` set a sum, to be divided by that of all parts.
    `gradients` maps parameter names to values, `mutations` maps buffers to their new values.
    `rung` says which way of capture worked ('dispatch' or 'opaque') and `blind` what it cannot see.
    The constant named `TANGENT` seeds the backward pass; the worker gives it `Load.weight`.
    `clip_norm` bounds the norm of the global gradient (0: no bound).
    `symbolic` is False where the graph holds for `batch` samples only.
    `sends` names the values that a stage gives to others, which take them as inputs of these names.
    `precision` is the short dtype, or TF32, that a rewritten step computes in ("": as captured).
    """

    name: str
    batch: int
    operators: tuple[Operator, ...]
    parameters: tuple[Parameter, ...]
    buffers: tuple[Buffer, ...]
    constants: tuple[Constant, ...]
    inputs: tuple[tuple[str, Tensor], ...]
    loss: Ref
    weight: Ref | None
    gradients: tuple[tuple[str, Ref], ...]
    mutations: tuple[tuple[str, Ref], ...] = ()
    optimizer: Optimizer = Optimizer()
    repeats: tuple[Repeat, ...] = ()
    rung: str = "dispatch"
    blind: str = ""
    symbolic: bool = True
    global_batch: int = 0
    samples: int = 0
    clip_norm: float = 0.0
    sends: tuple[tuple[str, Ref], ...] = ()
    precision: str = ""

    def __repr__(self) -> str:
        blind = f"; {'not traced: ' if self.rung == 'opaque' else ''}{self.blind}" if self.blind else ""
        return (
            f"<Graph {self.name}: {len(self.operators)} operators, {self.parameter_elements:,} numbers in "
            f"{len(self.parameters)} parameters, minibatches of {self.minibatch} of {self.samples:,} samples{blind}>"
        )

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(repr(self)[1:-1])}</pre>"

    @cached_property
    def index(self) -> dict[str, int]:
        """Operator name -> its place in the order."""
        return {operator.name: i for i, operator in enumerate(self.operators)}

    @cached_property
    def leaves(self) -> dict[str, Tensor]:
        """Every value that no operator makes: parameters, buffers, constants, inputs."""
        owned: tuple[Parameter | Buffer | Constant, ...] = (*self.parameters, *self.buffers, *self.constants)
        return {leaf.name: leaf.tensor for leaf in owned} | dict(self.inputs)

    @cached_property
    def forward_length(self) -> int:
        """Number of forward operators; they come first."""
        return sum(operator.phase is Phase.FORWARD for operator in self.operators)

    @cached_property
    def trainable(self) -> tuple[Parameter, ...]:
        """The parameters that are trained."""
        return tuple(p for p in self.parameters if p.trainable)

    @cached_property
    def last_reader(self) -> dict[Ref, int]:
        """Value -> place of the last operator that reads it."""
        return {ref: i for i, operator in enumerate(self.operators) for ref in operator.reads()}

    @cached_property
    def shared_gradients(self) -> frozenset[Ref]:
        """Gradients that something else needs as well: another parameter (of `a + b`), a later operator."""
        owners = Counter(ref for _, ref in self.gradients)
        return frozenset(ref for ref, count in owners.items() if count > 1 or ref in self.last_reader)

    @cached_property
    def known(self) -> dict[object, Any]:
        """What is worked out once about this graph and kept: lives, legal cuts, homes."""
        return {}

    def once(self, key: object, make: Callable[[], T]) -> T:
        """What is known under `key`, made the first time that it is asked for."""
        if key not in self.known:
            self.known[key] = make()
        found: T = self.known[key]
        return found

    def tensor(self, ref: Ref) -> Tensor:
        """The spec of a value. Raises KeyError for a value that the graph does not have."""
        if ref.name in self.leaves:
            return self.leaves[ref.name]
        made = self.operators[self.index[ref.name]].outputs[max(ref.index, 0)]
        if made is None:
            raise KeyError(f"{ref.name}[{ref.index}] is not computed")
        return made

    def results(self) -> Iterator[Ref]:
        """Everything that must outlive the step: loss, weight, gradients, new buffers."""
        yield self.loss
        if self.weight is not None:
            yield self.weight
        for _, ref in (*self.gradients, *self.mutations):
            yield ref

    @property
    def minibatch(self) -> int:
        """Samples of the minibatch that a plan divides: the task's global one, or what was captured."""
        return self.global_batch or self.batch

    @cached_property
    def item(self) -> float:
        """Bytes of an element of what is trained, on the average."""
        return self.trained_bytes / self.trained_elements

    @cached_property
    def state_factor(self) -> float:
        """Bytes that the optimizer keeps for each byte of what is trained."""
        return self.optimizer.state_bytes(1) / self.item

    @property
    def trained_bytes(self) -> Bytes:
        """Bytes of what is trained."""
        return sum(p.tensor.size() for p in self.trainable)

    @property
    def frozen_bytes(self) -> Bytes:
        """Bytes of parameters that are not trained and of buffers, such as weights that a step moves itself."""
        others: tuple[Parameter | Buffer, ...] = (*(p for p in self.parameters if not p.trainable), *self.buffers)
        return sum(leaf.tensor.size() for leaf in others)

    @property
    def trained_elements(self) -> int:
        """Elements of what is trained."""
        return sum(p.tensor.elements() for p in self.trainable)

    @property
    def parameter_elements(self) -> int:
        """Elements of all parameters, also of those that are not trained."""
        return sum(p.tensor.elements() for p in self.parameters)
