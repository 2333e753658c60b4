"""Trace -> Graph at the traced batch size: references for tensors, symbols for torch's literals, the dead left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from partita.errors import CaptureError
from partita.graph.graph import TANGENT, Buffer, Constant, Graph, Optimizer, Parameter
from partita.graph.operator import Argument, Operator, Phase, Ref, Symbol, references
from partita.graph.repeats import DRAW
from partita.graph.tensor import Tensor
from partita.task import Task
from partita.tracing.calls import AtenCall
from partita.tracing.changed import as_read
from partita.tracing.draws import is_random
from partita.tracing.known import NeedsData
from partita.tracing.spelling import spelt
from partita.tracing.trace import Trace

SAME = frozenset({"detach", "alias", "lift", "lift_fresh", "lift_fresh_copy"})


@dataclass
class Names:
    """Which value each traced tensor is, by identity; the trace keeps the tensors alive."""

    refs: dict[int, Ref] = field(default_factory=dict)
    specs: dict[Any, Tensor] = field(default_factory=dict)
    constants: list[Constant] = field(default_factory=list)

    def ref(self, tensor: torch.Tensor) -> Ref:
        """The value that a traced tensor is; unknown tensors become constants."""
        found = self.refs.get(id(tensor))
        if found is None:
            self.constants.append(self._constant(tensor))
            found = self.refs[id(tensor)] = Ref(self.constants[-1].name)
        return found

    def _constant(self, tensor: torch.Tensor) -> Constant:
        value = tensor.constant if isinstance(tensor, FakeTensor) else tensor
        if value is None:
            raise NeedsData("the model keeps a tensor that is neither parameter nor buffer; register it as a buffer")
        return Constant(f"constant.{len(self.constants)}", self.spec(value.contiguous()), raw_bytes(value))

    def spec(self, tensor: torch.Tensor) -> Tensor:
        """The spec of a traced tensor, one object for equal ones."""
        shape, strides = tuple(tensor.shape), tensor.stride()
        found = self.specs.get((shape, strides, tensor.dtype))
        if found is None:
            found = Tensor(shape, spelt(tensor.dtype), () if strides == dense(shape) else strides)
            self.specs[shape, strides, tensor.dtype] = found
        return found


def to_graph(task: Task, trace: Trace, batch: int, optimizer: Optimizer) -> Graph:
    """The Graph of a trace, every dimension a number, valid for `batch` samples only."""
    names, leaves = Names(), trace.leaves
    for name, tensor in (leaves.parameters | leaves.buffers).items():
        names.refs[id(tensor)] = Ref(name)
    for i, tensor in enumerate(leaves.inputs):
        names.refs[id(tensor)] = Ref(f"input.{i}")
    names.refs[id(trace.tangent)] = Ref(TANGENT)
    operators = _operators(trace, names)
    weight = None if trace.weight is None else names.ref(trace.weight)
    aliases = other_names(trace.model)
    parameters = tuple(
        Parameter(name, names.spec(leaves.parameters[name]), p.requires_grad, aliases[id(p)])
        for name, p in trace.model.named_parameters()
        if name in leaves.parameters
    )
    saved = trace.model.state_dict(keep_vars=True).keys()
    tangent = Constant(TANGENT, names.spec(trace.tangent), raw_bytes(torch.ones((), dtype=trace.tangent.dtype)))
    graph = Graph(
        name=task.name, batch=batch, operators=tuple(operators), parameters=parameters,
        buffers=tuple(Buffer(name, names.spec(b), name in saved) for name, b in leaves.buffers.items()),
        constants=(tangent, *names.constants),
        inputs=tuple((f"input.{i}", names.spec(t)) for i, t in enumerate(leaves.inputs)),
        loss=names.ref(trace.loss), weight=weight,
        gradients=tuple((name, names.ref(g)) for name, g in trace.gradients.items()),
        mutations=tuple((name, names.ref(b)) for name, b in trace.mutations.items()),
        optimizer=optimizer, rung="dispatch", symbolic=False, global_batch=task.batch_size,
        samples=len(task.data), clip_norm=task.clip_norm or 0.0,
    )  # fmt: skip
    return as_read(tidy(replace(graph, constants=(tangent, *names.constants))))


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """The elements in row-major order, little-endian."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def other_names(model: torch.nn.Module) -> dict[int, tuple[str, ...]]:
    """The names of a tied parameter besides its first, by the parameter's identity."""
    names: dict[int, tuple[str, ...]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)] = (*names.get(id(parameter), ()), name)
    return {key: every[1:] for key, every in names.items()}


def dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides (elements) of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _operators(trace: Trace, names: Names) -> list[Operator]:
    """The calls as operators named by their place; a call that changes nothing becomes its argument's reference."""
    operators: list[Operator] = []
    forward: dict[int, Operator] = {}
    bases: dict[int, tuple[torch.Tensor, ...]] = {}
    keys = 0
    for call in trace.calls:
        same = _same(call, bases)
        if same is not None:
            names.refs[id(call.result)] = names.ref(same)
            continue
        name = f"%{len(operators)}"
        target, arguments, keywords = _call(call, names, keys)
        if target.startswith("partita.") and is_random(call.function):
            if call.backward:
                raise CaptureError(f"{call.function} draws in the backward pass; switch activation checkpointing off")
            keys += 1
        several = isinstance(call.result, list | tuple)
        results = _computed(call) if several else (call.result,)
        for i, result in enumerate(results):
            if isinstance(result, torch.Tensor):
                names.refs[id(result)] = Ref(name, i if several else -1)
        twin = forward.get(call.sequence) if call.backward else None
        operator = Operator(
            name, target, arguments, keywords,
            tuple(names.spec(r) if isinstance(r, torch.Tensor) else None for r in results), several,
            Phase.BACKWARD if call.backward else Phase.FORWARD,
            twin.module if twin else call.module, twin.source if twin else call.source, twin.name if twin else "",
        )  # fmt: skip
        if not call.backward:
            forward.setdefault(call.sequence, operator)
        operators.append(operator)
    return operators


def _computed(call: AtenCall) -> tuple[Any, ...]:
    """The results that were asked for: a fake tensor may stand where a kernel gives none."""
    places = [place for place, one in enumerate(call.function._schema.arguments) if one.name == "output_mask"]
    if not places or places[0] >= len(call.arguments):
        return tuple(call.result)
    return tuple(one if asked else None for one, asked in zip(call.result, call.arguments[places[0]], strict=True))


def _same(call: AtenCall, bases: dict[int, tuple[torch.Tensor, ...]]) -> torch.Tensor | None:
    """The argument, or the tensor that it views, of which the result is an alias with equal layout; None if none is."""
    name = call.function._schema.name.partition("::")[2]
    if name in SAME:
        return call.arguments[0]  # type: ignore[no-any-return]
    if not call.function.is_view or not isinstance(call.result, torch.Tensor) or name in ("_conj", "_neg_view"):
        return None
    given, made = call.arguments[0], call.result
    chain = (given, *bases.get(id(given), ()))
    bases[id(made)] = chain
    return next((t for t in chain if _layout(t) == _layout(made)), None)


def _layout(tensor: torch.Tensor) -> Any:
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype


def _call(call: AtenCall, names: Names, key: int) -> tuple[str, tuple[Argument, ...], tuple[tuple[str, Argument], ...]]:
    arguments = tuple(_argument(a, names) for a in call.arguments)
    keywords = tuple((k, _argument(v, names)) for k, v in call.keywords.items())
    if not any(references(arguments)) and any(a.name == "dtype" for a in call.function._schema.arguments):
        dtype = Symbol("dtype", spelt(call.result.dtype))
        keywords = (*(pair for pair in keywords if pair[0] != "dtype"), ("dtype", dtype))
    target = str(call.function)
    if not is_random(call.function):
        return target, arguments, keywords
    if target == "aten.native_dropout.default":
        return "partita.dropout", (*arguments[:2], key), ()
    if target in DRAW:
        return target, (*arguments, key), ()
    return "partita.random", (key, target, *arguments), keywords


def _argument(value: Any, names: Names) -> Argument:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor):
        return names.ref(value)
    if isinstance(value, list | tuple):
        return tuple(_argument(part, names) for part in value)
    if isinstance(value, complex):
        return Symbol("complex", str(value))
    if isinstance(value, torch.dtype):
        return Symbol("dtype", spelt(value))
    if isinstance(value, torch.device):
        return Symbol("device", "")
    if isinstance(value, torch.layout):
        return Symbol("layout", spelt(value))
    if isinstance(value, torch.memory_format):
        return Symbol("memory_format", spelt(value))
    raise CaptureError(f"a call has the argument {value!r} of type {type(value).__name__}, which a graph cannot hold")


def tidy(graph: Graph) -> Graph:
    """Dead operators and constants dropped, what only gradients need moved behind the forward pass, names given."""
    by_name = {operator.name: operator for operator in graph.operators}
    checks = {
        phase: [Ref(o.name) for o in graph.operators if not any(o.outputs) and o.phase is phase] for phase in Phase
    }
    ends = (graph.loss, *((graph.weight,) if graph.weight else ()), *(ref for _, ref in graph.mutations))
    forward = _ancestors((*ends, *checks[Phase.FORWARD]), by_name)
    needed = _ancestors((*(ref for _, ref in graph.gradients), *checks[Phase.BACKWARD]), by_name)
    first = [o for o in graph.operators if o.name in forward]
    behind = needed - forward
    last = [replace(o, phase=Phase.BACKWARD) for o in graph.operators if o.name in behind]
    names = _readable([*first, *last], set(graph.leaves))
    read = {ref.name for o in (*first, *last) for ref in o.reads()} | {ref.name for ref in graph.results()}

    return replace(
        graph,
        operators=tuple(
            replace(
                o, name=names[o.name], twin=names.get(o.twin, ""), arguments=_rename(o.arguments, names),
                keywords=tuple((k, _rename(v, names)) for k, v in o.keywords),
            )
            for o in (*first, *last)
        ),
        constants=tuple(c for c in graph.constants if c.name in read),
        loss=_rename(graph.loss, names),
        weight=_rename(graph.weight, names),
        gradients=tuple((name, _rename(ref, names)) for name, ref in graph.gradients),
        mutations=tuple((name, _rename(ref, names)) for name, ref in graph.mutations),
    )  # fmt: skip


def _rename(argument: Any, names: dict[str, str]) -> Any:
    if isinstance(argument, tuple):
        return tuple(_rename(part, names) for part in argument)
    if isinstance(argument, Ref) and argument.name in names:
        return Ref(names[argument.name], argument.index)
    return argument


def _ancestors(refs: tuple[Ref, ...], by_name: dict[str, Operator]) -> set[str]:
    """Names of the operators that the values need."""
    found: set[str] = set()
    waiting = [ref.name for ref in refs]
    while waiting:
        name = waiting.pop()
        if name in by_name and name not in found:
            found.add(name)
            waiting.extend(ref.name for ref in by_name[name].reads())
    return found


def _readable(operators: list[Operator], taken: set[str]) -> dict[str, str]:
    """`%17` -> `addmm_3`: the operator's kind and its number among those, or the next free one."""
    counts: Counter[str] = Counter()
    names = {}
    for operator in operators:
        kind = operator.target.split(".")[1]
        while (name := f"{kind}_{counts[kind]}") in taken:
            counts[kind] += 1
        counts[kind] += 1
        names[operator.name] = name
    return names
