"""Graph <-> file. JSON, so that a machine without torch can plan for it; tensors, targets and places are written once.

    {"schema": 1, "format": "partita graph",
     "tables": {"tensors": [...], "targets": [...], "modules": [...], "sources": [...]},
     "operators": [[name, target, arguments, keywords, outputs, several, phase, module, source, twin], ...],
     ...the other fields of Graph, "sha256": of all before it}

An argument is itself, or `{"r": [name, index]}` a Ref, `{"s": [kind, value]}` a Symbol, `{"a": [each, rest]}` an
Affine, `{"q": [scale, power]}` or `[scale, power, rest]` a Ratio, `{"f": "inf"}` a float that JSON lacks; lists are
tuples.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
from collections.abc import Hashable
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import Any

from partita.errors import InputError, check_schema
from partita.files import read_json, read_whole, write_whole
from partita.graph.checking import check_graph
from partita.graph.graph import Buffer, Constant, Graph, Optimizer, Parameter, Repeat
from partita.graph.operator import Argument, Operator, Phase, Ref, Symbol
from partita.graph.tensor import ITEMSIZE, Affine, Ratio, Tensor

SCHEMA = 1
FORMAT = "partita graph"
REMEDY = "give a file that `partita capture -o` wrote"
SCALARS: dict[str, type] = {
    "name": str, "batch": int, "rung": str, "blind": str, "symbolic": bool, "global_batch": int, "samples": int,
    "clip_norm": float,
}  # fmt: skip


def write_graph(graph: Graph, path: Path | str) -> None:
    """Write the graph as a JSON file that `read_graph` reads back equal, whole or not at all. Raises InputError if it
    cannot be written."""
    try:
        write_whole(Path(path), text_of(graph))
    except OSError as error:
        raise InputError(f"the graph cannot be written to {path} ({error.strerror}); give a path that can be") from None


def text_of(graph: Graph) -> str:
    """The graph as `read_graph` reads it from a file."""
    tables = Tables()
    operators = [
        [
            o.name, tables.at("targets", o.target), _plain(o.arguments), [[k, _plain(v)] for k, v in o.keywords],
            [None if t is None else tables.tensor(t) for t in o.outputs], o.several, o.phase.value,
            tables.at("modules", o.module), tables.at("sources", o.source), o.twin,
        ]
        for o in graph.operators
    ]  # fmt: skip
    record = {
        "schema": SCHEMA, "format": FORMAT, **{name: getattr(graph, name) for name in SCALARS}, "operators": operators,
        "parameters": [[p.name, tables.tensor(p.tensor), p.trainable, p.aliases] for p in graph.parameters],
        "buffers": [[b.name, tables.tensor(b.tensor), b.persistent] for b in graph.buffers],
        "constants": [[c.name, tables.tensor(c.tensor), base64.b64encode(c.data).decode()] for c in graph.constants],
        "inputs": [[name, tables.tensor(t)] for name, t in graph.inputs],
        "loss": _plain(graph.loss), "weight": _plain(graph.weight),
        "gradients": [[name, _plain(ref)] for name, ref in graph.gradients],
        "mutations": [[name, _plain(ref)] for name, ref in graph.mutations],
        "optimizer": list(astuple(graph.optimizer)),
        "repeats": [[r.start, r.length, r.count] for r in graph.repeats],
        "tables": {name: list(rows) for name, rows in tables.rows.items()} | {"tensors": tables.tensors},
    }  # fmt: skip
    return _text(record | {"sha256": digest_of(record)})


def read_graph(path: Path | str) -> Graph:
    """The Graph in a file. Raises InputError for a file that is missing, broken, of a newer schema or no graph."""
    try:
        record = read_json(read_whole(Path(path)))
    except OSError as error:
        raise InputError(f"the graph file {path} cannot be read ({error.strerror}); {REMEDY}") from None
    except ValueError as error:
        raise InputError(f"the graph file {path} is not valid JSON ({error}); {REMEDY}") from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise InputError(f"the file {path} holds no graph; {REMEDY}")
    check_schema(record.get("schema"), SCHEMA, f"the graph file {path}", "capture it anew or update Partita")
    digest = record.pop("sha256", None)  # a file by another hand has none
    try:
        check_graph(graph := _graph(record))
        if digest not in (None, digest_of(record)):
            raise ValueError("its sha256 is not that of its contents")
        return graph
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError, binascii.Error) as error:
        raise InputError(f"the graph file {path} is damaged ({error!r}); {REMEDY}") from None


def _text(record: dict[str, Any]) -> str:
    return json.dumps(record, separators=(",", ":"), allow_nan=False)


def digest_of(record: dict[str, Any]) -> str:
    """The sha256 of a JSON record, however it was laid out in a file."""
    return hashlib.sha256(_text(record).encode()).hexdigest()


@dataclass
class Tables:
    """Values that many operators share, each written once; `at` gives the row of a value."""

    rows: dict[str, dict[Hashable, int]] = field(default_factory=lambda: {"targets": {}, "modules": {}, "sources": {}})
    known: dict[Tensor, int] = field(default_factory=dict)
    tensors: list[Any] = field(default_factory=list)

    def at(self, table: str, value: str) -> int:
        """The row of a value in a table, a new one for a value that the table does not have."""
        rows = self.rows[table]
        return rows.setdefault(value, len(rows))

    def tensor(self, tensor: Tensor) -> int:
        """The row of a tensor, a new one for a tensor that is not there."""
        if tensor not in self.known:
            self.known[tensor] = len(self.tensors)
            self.tensors.append([_plain(tensor.shape), tensor.dtype, _plain(tensor.strides)])
        return self.known[tensor]


def _plain(argument: Argument) -> Any:
    if isinstance(argument, tuple):
        return [_plain(part) for part in argument]
    if isinstance(argument, Ref):
        return {"r": [argument.name, argument.index]}
    if isinstance(argument, Symbol):
        return {"s": [argument.kind, argument.value]}
    if isinstance(argument, Affine):
        return {"a": [argument.each, argument.rest]}
    if isinstance(argument, Ratio):
        return {"q": [argument.scale, argument.power, *([argument.rest] if argument.rest else [])]}
    if isinstance(argument, float) and not math.isfinite(argument):
        return {"f": repr(argument)}
    return argument


KINDS: dict[str, tuple[Any, ...]] = {  # of a value: its type, and those of its parts
    "r": (Ref, str, int), "s": (Symbol, str, str), "a": (Affine, int, int), "q": (Ratio, float, int, float),
}  # fmt: skip


def _value(plain: Any) -> Any:
    if isinstance(plain, list):
        return tuple(_value(part) for part in plain)
    if isinstance(plain, dict):
        ((key, parts),) = plain.items()
        if key == "f":
            return float(_typed(parts, str))
        kind, *types = KINDS[key]
        if len(parts) not in (len(types), 2):  # of a Ratio the rest may be left out, which is none mostly
            raise TypeError(f"{parts!r} is no {kind.__name__}")
        return kind(*(_typed(part, each) for part, each in zip(parts, types, strict=False)))
    return plain


def _typed(value: Any, *kinds: type) -> Any:
    """The value, if it is of one of the types. Raises TypeError: what is read may be by anybody."""
    if type(value) not in kinds and not (type(value) is int and float in kinds):
        raise TypeError(f"{value!r} stands where a {kinds[0].__name__} belongs")
    return value


def _tensor(shape: Any, dtype: Any, strides: Any) -> Tensor:
    sizes = tuple(tuple(_typed(_value(dim), int, Affine) for dim in _typed(dims, list)) for dims in (shape, strides))
    return Tensor(sizes[0], _typed(dtype, str), sizes[1])


def _optimizer(name: Any, state: Any, *rule: Any) -> Optimizer:
    kept = tuple((_typed(n, str), _typed(each, float), _typed(dtype, str)) for n, each, dtype in state)
    if wrong := [dtype for _, _, dtype in kept if dtype not in ITEMSIZE]:
        raise ValueError(f"the optimizer keeps tensors of the type {wrong[0]!r}")
    kinds = [type(each.default) for each in fields(Optimizer)[2:]]
    return Optimizer(_typed(name, str), kept, *(_typed(*each) for each in zip(rule, kinds, strict=False)))


def _pairs(rows: Any, *kinds: type) -> tuple[tuple[str, Any], ...]:
    """Names, each with a value of one of the types; of any where there are none."""
    return tuple((_typed(name, str), _typed(_value(v), *kinds) if kinds else _value(v)) for name, v in rows)


def _scalar(record: dict[str, Any], key: str) -> Any:
    value = record[key]
    if type(value) is not SCALARS[key] and not (SCALARS[key] is float and type(value) is int):
        raise TypeError(f"{key} is {value!r}")
    return value


def _graph(record: dict[str, Any]) -> Graph:
    tables = record["tables"]
    tensors = [_tensor(*row) for row in tables["tensors"]]
    targets, modules, sources = ([_typed(word, str) for word in tables[n]] for n in ("targets", "modules", "sources"))
    operators = tuple(
        Operator(
            _typed(name, str), targets[target], _value(_typed(arguments, list)), _pairs(keywords),
            tuple(None if t is None else tensors[t] for t in outputs), _typed(several, bool), Phase(phase),
            modules[module], sources[source], _typed(twin, str),
        )
        for name, target, arguments, keywords, outputs, several, phase, module, source, twin in record["operators"]
    )  # fmt: skip
    return Graph(
        **{key: _scalar(record, key) for key in SCALARS}, operators=operators,
        parameters=tuple(
            Parameter(_typed(n, str), tensors[t], _typed(trainable, bool), tuple(_typed(each, str) for each in names))
            for n, t, trainable, names in record["parameters"]
        ),
        buffers=tuple(
            Buffer(_typed(n, str), tensors[t], _typed(persistent, bool)) for n, t, persistent in record["buffers"]
        ),
        constants=tuple(
            Constant(_typed(n, str), tensors[t], base64.b64decode(data, validate=True))
            for n, t, data in record["constants"]
        ),
        inputs=tuple((_typed(n, str), tensors[t]) for n, t in record["inputs"]),
        loss=_typed(_value(record["loss"]), Ref), weight=_typed(_value(record["weight"]), Ref, type(None)),
        gradients=_pairs(record["gradients"], Ref), mutations=_pairs(record["mutations"], Ref),
        optimizer=_optimizer(*record["optimizer"]),
        repeats=tuple(Repeat(*(_typed(number, int) for number in row)) for row in record["repeats"]),
    )  # fmt: skip
