"""Operators of a graph compiled into one Python function, so that running them needs no interpreter.

For operators 3 to 5 of a graph the function reads (but for its variables, which are numbered)

    def segment(env, leaf):
        relu = env.pop('relu')                  # its last use is in here
        weight = leaf['fc.weight']
        mm = _3(relu, weight); del relu         # a value is dropped after its last use
        env['mm'] = mm                          # a later segment reads it

If the plan asks for torch.compile, the tensors are computed in a function that it takes, with the rest around it;
random operators, and those that stand in for a processor's, are called as they are:

    def pure(relu, weight):
        mm = _3(relu, weight)
        return (mm,)
    def segment(env, leaf):
        hold[0] = env                           # for random operators
        (mm,) = pure(env.pop('relu'), leaf['fc.weight'])
        env['mm'] = mm
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import torch

from partita.errors import CaptureError
from partita.graph.graph import TANGENT, Graph
from partita.graph.operator import Argument, Operator, Ref, Symbol
from partita.graph.precision import ACCUMULATED, TF32
from partita.graph.tensor import Affine, Ratio
from partita.kernels import attention, batch_norm, layer_norm
from partita.lowering.precision import SHORT
from partita.runtime.device import CPU, in_tf32
from partita.runtime.draws import DRAWING
from partita.runtime.whole import OPAQUE
from partita.tracing.calls import call_of

Environment = dict[str, Any]
Leaves = dict[str, torch.Tensor]
TWINS: Final = {**attention.TWINS, **batch_norm.TWINS}  # on accelerators
WITHIN: Final = DRAWING | OPAQUE  # what is called with the environment
COMPILER: Final = "inductor"  # of torch.compile


def resolve(target: str, device: str = CPU, mixed: bool = False) -> Callable[..., Any]:
    """`'aten.mm.default'` -> the torch operator, or its replacement on a device that lacks it, as a processor does some
    whose values are `mixed` of short and fp32. Raises CaptureError where this torch has no such operator."""
    import partita.tracing.recurrent  # noqa: F401  registers the operators that are kept whole

    if device != CPU and target in TWINS:
        return TWINS[target]
    if device == CPU and mixed and target in layer_norm.TWINS:
        return layer_norm.TWINS[target]
    if target == "aten.view_as_complex.default":
        return as_complex
    found = call_of(target)
    if found is None:
        raise CaptureError(f"this torch has no operator {target}; capture the task again with the torch that runs it")
    return found  # type: ignore[no-any-return]


def viewed(tensor: torch.Tensor, size: list[int]) -> torch.Tensor:
    """torch's view, or a copy where values do not lie as they did when they were traced: some kernels of backward
    passes (a dropout's) lay them out as the gradient that comes, which fake tensors do not know."""
    try:
        return tensor.view(size)
    except RuntimeError:
        return tensor.reshape(size)


def mixed(graph: Graph, operator: Operator) -> bool:
    """Whether an operator reads or makes fp32 beside what is short."""
    dtypes = {graph.tensor(ref).dtype for ref in operator.reads()} | {out.dtype for out in operator.outputs if out}
    return ACCUMULATED in dtypes and not dtypes.isdisjoint(SHORT.values())


def as_complex(pairs: torch.Tensor) -> torch.Tensor:
    """torch.view_as_complex, also for a weight that begins at an odd offset of its bucket."""
    return torch.view_as_complex(pairs.clone() if pairs.storage_offset() % 2 else pairs)


def last_reads(graph: Graph) -> dict[Ref, int]:
    """For every value the index of the last operator that reads it, or makes it only for other stages; the number of
    operators for results. New buffers and the loss's weight are kept to the end of the forward pass."""
    last = graph.last_reader
    ends = [ref for _, ref in graph.mutations] + ([graph.weight] if graph.weight else [])
    new = {ref: max(last.get(ref, 0), graph.forward_length) for ref in ends}
    sent = {ref: max(last.get(ref, 0), graph.index[ref.name]) for _, ref in graph.sends}
    return last | sent | {ref: len(graph.operators) for ref in graph.results()} | new


def compile_segment(
    graph: Graph, start: int, stop: int, device: str, last: dict[Ref, int] | None = None, compiled: bool = False,
) -> Callable[[Environment, Leaves], None]:  # fmt: skip
    """Operators `start` to `stop` of a graph whose sizes are numbers, as a function of (environment, leaves).

    Values that a later segment or the caller reads are left in the environment, values that are used up are removed
    from it, and values for other stages are stored under the names that these use. With `compiled` torch.compile makes
    one function of them. Of a step in TF32 it is on cards a function that multiplies so.
    """
    last = last_reads(graph) if last is None else last
    writer = _Writer(graph, start, stop, device, last, compiled)
    scope: dict[str, Any] = writer.scope
    exec(compile(writer.text(), f"<{graph.name}[{start}:{stop}]>", "exec"), scope)
    if compiled:
        scope["pure"] = torch.compile(scope["pure"], backend=COMPILER, dynamic=False)
    segment: Callable[[Environment, Leaves], None] = scope["segment"]
    return in_tf32(segment, device) if graph.precision == TF32 and device != CPU else segment


class _Writer:
    """Writes the text of one segment; lives for one call of `compile_segment`."""

    def __init__(self, graph: Graph, start: int, stop: int, device: str, last: dict[Ref, int], compiled: bool) -> None:
        self.compiled = compiled
        self.graph, self.start, self.stop, self.device, self.last = graph, start, stop, device, last
        self.scope: dict[str, Any] = {"torch": torch, "hold": [None]}
        self.lines: list[str] = []
        self.held: set[Ref] = set()
        self.locals: dict[Ref, str] = {}
        self.taken: dict[str, str] = {}
        self.left: list[tuple[str, str]] = []
        self.inputs = {name for name, _ in graph.inputs} | {TANGENT}
        self.sends: dict[Ref, list[str]] = {}
        for name, ref in graph.sends:
            self.sends.setdefault(ref, []).append(name)

    def text(self) -> str:
        for i in range(self.start, self.stop):
            self.operator(i)
        if not self.compiled:
            return _function("segment(env, leaf)", self.lines or ["pass"])
        made = f"({', '.join(local for _, local in self.left)}{',' * bool(self.left)})"
        call = f"pure({', '.join(self.taken.values())})"
        around = [f"{made} = {call}" if self.left else call, *(f"env[{name!r}] = {local}" for name, local in self.left)]
        pure = _function(f"pure({', '.join(self.taken)})", [*self.lines, f"return {made}"])
        return pure + "\n" + _function("segment(env, leaf)", ["hold[0] = env", *around, "hold[0] = None"])

    def operator(self, i: int) -> None:
        operator = self.graph.operators[i]
        for ref in operator.reads():
            self.fetch(ref)
        arguments = self.called(i, operator)
        arguments += [self.argument(a) for a in operator.arguments]
        arguments += [f"{key}={self.argument(value)}" for key, value in operator.keywords]
        used = [ref for ref in operator.results() if ref in self.last]
        name = self.local(Ref(operator.name))
        self.lines.append(f"{name} = _{i}({', '.join(arguments)})")
        if operator.several:
            self.lines += [f"{self.local(ref)} = {name}[{ref.index}]" for ref in used]
        if operator.several or not used:
            self.lines.append(f"del {name}")
        self.held |= set(used)
        for ref in used:
            for sent in self.sends.get(ref, ()):
                self.leave(sent, ref)
        self.drop(ref for ref in (*operator.reads(), *used) if self.last[ref] == i)
        for ref in used:
            if self.last[ref] >= self.stop:
                self.leave(key(ref), ref)

    def called(self, i: int, operator: Operator) -> list[str]:
        """Put what an operator calls into the scope; the arguments ahead of its own."""
        drawing, found = WITHIN.get(operator.target), None
        if drawing is None:
            found = resolve(operator.target, self.device, mixed(self.graph, operator))
            found = viewed if operator.target == "aten.view.default" and not self.compiled else found
        if not self.compiled or isinstance(found, torch._ops.OpOverload):
            self.scope[f"_{i}"] = drawing or found
            return ["env"] if drawing else []
        from torch import _dynamo  # a second or two

        disable: Any = _dynamo.disable
        hold = self.scope["hold"]
        apart: Any = (lambda *given, **named: drawing(hold[0], *given, **named)) if drawing else found
        self.scope[f"_{i}"] = disable(apart)
        return []

    def local(self, ref: Ref) -> str:
        """The Python variable of a value: its own, whatever other names look like."""
        return self.locals.setdefault(ref, f"v{len(self.locals)}")

    def leave(self, name: str, ref: Ref) -> None:
        """Leave a value in the environment."""
        self.left.append((name, self.local(ref)))
        if not self.compiled:
            self.lines.append(f"env[{name!r}] = {self.local(ref)}")

    def take(self, ref: Ref, place: str) -> None:
        """Bring a value into a local variable."""
        self.taken[self.local(ref)] = place
        if not self.compiled:
            self.lines.append(f"{self.local(ref)} = {place}")

    def drop(self, refs: Iterable[Ref]) -> None:
        for ref in dict.fromkeys(refs):
            if ref in self.held:
                self.lines += [] if self.compiled else [f"del {self.local(ref)}"]
                self.held.discard(ref)

    def fetch(self, ref: Ref) -> None:
        """Bring a value that an earlier segment made, or a leaf, into a local variable."""
        if ref in self.held or self.graph.index.get(ref.name, -1) >= self.start:
            return
        if ref.name in self.graph.leaves and ref.name not in self.inputs:
            self.take(ref, f"leaf[{ref.name!r}]")
        elif self.last[ref] < self.stop:
            self.take(ref, f"env.pop({key(ref)!r})")
        else:
            self.take(ref, f"env[{key(ref)!r}]")
        self.held.add(ref)

    def argument(self, value: Argument) -> str:
        if isinstance(value, Ref):
            return self.local(value)
        if isinstance(value, Symbol):
            return self.symbol(value)
        if isinstance(value, tuple):
            return "[" + ", ".join(self.argument(part) for part in value) + "]"
        if isinstance(value, Affine | Ratio):
            raise CaptureError(f"{self.graph.name} still follows the batch size; substitute a batch size first")
        if isinstance(value, float) and value in (float("inf"), float("-inf")):
            return f"float('{value}')"
        return "float('nan')" if isinstance(value, float) and value != value else repr(value)

    def symbol(self, symbol: Symbol) -> str:
        if symbol.kind == "device":
            return f"torch.device({symbol.value or self.device!r})"
        if symbol.kind == "complex":
            return f"complex({symbol.value!r})"
        return f"torch.{symbol.value}"


def _function(head: str, body: Iterable[str]) -> str:
    return f"def {head}:\n" + "\n".join("    " + line for line in body)


def key(ref: Ref) -> str:
    """The name of a value in an environment."""
    return ref.key
