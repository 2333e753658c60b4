"""Plan <-> TOML. Only what differs from the defaults is written; an unknown key is refused with the nearest one."""

from __future__ import annotations

import dataclasses
import enum
import types
from math import isfinite
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import tomli_w

from partita.errors import PlanError, check_schema, did_you_mean
from partita.files import read_toml
from partita.plan.plan import Plan
from partita.plan.sync import Sync, Topology

SCHEMA = 1
MOST: Final = 2**63  # of any whole number, a knob among them: what 64 bits hold
FORMER: Final = {"what": "payload", "tight": "consistency", "often": "frequency"}  # keys of a Sync in older files


def write_plan(plan: Plan) -> str:
    """The plan as TOML text; `read_plan` gives back an equal value."""
    return tomli_w.dumps({"schema": SCHEMA, **table_of(plan)})


def read_plan(text: str) -> Plan:
    """The Plan that a TOML text describes. Raises PlanError with the place and what is allowed there."""
    try:
        table = read_toml(text)
    except ValueError as error:
        raise PlanError(
            f"the plan is not valid TOML: {error}; correct it there or write it anew with `partita plan -o`"
        ) from None
    check_schema(table.pop("schema", None), SCHEMA, "the plan", "write it anew with `partita plan -o`", PlanError)
    plan = _value(Plan, table, "plan")
    assert isinstance(plan, Plan)
    if not plan.name.strip():
        raise PlanError("plan.name is empty; give a name, by which tables and traces call it")
    return plan


def read_values(plan: Plan) -> Plan:
    """The plan, each of its values of the kind that belongs there, as if it had been written and read. Raises PlanError
    with the place and what is allowed there."""
    read = _value(Plan, table_of(plan), "plan")
    assert isinstance(read, Plan)
    return read


def table_of(value: Any) -> dict[str, Any]:
    """A frozen value's fields that differ from their defaults, as TOML has them."""
    out: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if field.default is dataclasses.MISSING or item != field.default:
            out[field.name] = _plain(item)
    if isinstance(value, Topology):
        out["kind"] = type(value).__name__
    return out


def _plain(item: Any) -> Any:
    if dataclasses.is_dataclass(item):
        return table_of(item)
    if isinstance(item, enum.Enum):
        return item.value
    if isinstance(item, tuple | list):
        return [_plain(part) for part in item]
    return item


def _value(kind: Any, given: Any, place: str) -> Any:
    if type(given) is int and abs(given) >= MOST:  # the largest cannot be printed
        raise PlanError(f"{place} is a number of {given.bit_length()} bits; a number below {MOST} belongs there")
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _tagged(get_args(kind), given, place)
    if origin is tuple:
        return _tuple(get_args(kind), given, place)
    if dataclasses.is_dataclass(kind):
        return read_record(kind, given, place)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        try:
            return kind(given)
        except ValueError:
            raise PlanError(f"{place} is {given!r}; allowed are {', '.join(str(m.value) for m in kind)}") from None
    if type(given) is float and not isfinite(given):
        raise PlanError(f"{place} is {given}; a finite number belongs there")
    if type(given) is str and not given.isprintable():
        raise PlanError(f"{place} is {given!r}; words of one line belong there, of letters that can be printed")
    if kind is float and type(given) is int:
        return float(given)
    if type(given) is not kind:
        raise PlanError(f"{place} is {given!r}; a value of type {kind.__name__} belongs there")
    return given


def read_record(kind: Any, given: Any, place: str) -> Any:
    """The frozen value of type `kind` whose fields a table has. Raises PlanError with the place and what is allowed
    there."""
    if not isinstance(given, dict):
        raise PlanError(f"{place} is {given!r}; a table belongs there")
    if kind is Sync:
        given = {FORMER.get(key, key): item for key, item in given.items()}
    hints, fields = get_type_hints(kind), {f.name: f for f in dataclasses.fields(kind)}
    for key in given:
        if key not in fields:
            hint = did_you_mean(key, fields) or f"allowed are {', '.join(fields)}"
            raise PlanError(f"{place} has no key {key!r}; {hint}")
    for name, field in fields.items():
        if field.default is dataclasses.MISSING and name not in given:
            raise PlanError(f"{place} lacks the key {name!r}; add it")
    return kind(**{key: _value(hints[key], item, f"{place}.{key}") for key, item in given.items()})


def _tagged(kinds: tuple[Any, ...], given: Any, place: str) -> Any:
    by_name = {kind.__name__: kind for kind in kinds}
    if not isinstance(given, dict) or str(given.get("kind")) not in by_name:
        raise PlanError(f"{place} needs a kind; allowed are {', '.join(by_name)}")
    return read_record(by_name[given["kind"]], {k: v for k, v in given.items() if k != "kind"}, place)


def _tuple(kinds: tuple[Any, ...], given: Any, place: str) -> Any:
    if not isinstance(given, list | tuple):
        raise PlanError(f"{place} is {given!r}; a list belongs there")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_value(kinds[0], item, f"{place}[{i}]") for i, item in enumerate(given))
    if len(given) != len(kinds):
        raise PlanError(f"{place} has {len(given)} items; {len(kinds)} belong there")
    return tuple(_value(kind, item, f"{place}[{i}]") for i, (kind, item) in enumerate(zip(kinds, given, strict=True)))
