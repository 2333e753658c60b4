"""A comparison as a file that `partita report` reads: JSON, the cluster within it as its own TOML."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from functools import cache
from os.path import isdir
from pathlib import Path
from typing import Any, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from partita.cluster.text import read_cluster
from partita.cluster.writing import write_cluster
from partita.errors import OptionError, PartitaError
from partita.report.comparison import Comparison, Row
from partita.report.environment import Environment
from partita.report.files import write_file

NAME: Final = "report.json"
SCHEMA: Final = 1


@dataclass(frozen=True, config=ConfigDict(ser_json_inf_nan="strings", extra="forbid"))
class Saved:
    """The fields of a Comparison as the file stores them."""

    schema: int
    rows: tuple[Row, ...]
    task: str
    cluster: str
    cluster_name: str
    notes: tuple[str, ...]
    environment: Environment | None


def write_record(comparison: Comparison, path: Path) -> None:
    """Write the file. Raises OptionError where the path cannot be written."""
    c = comparison
    rows = tuple(map(_frozen, c.rows))
    saved = Saved(SCHEMA, rows, c.task, write_cluster(c.cluster), c.cluster.name, c.notes, c.environment)
    write_file(path, _adapter().dump_json(saved).decode())


def write_run(comparison: Comparison, folder: Path) -> None:
    """Write `report.json` into a folder, which is made. Raises OptionError where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"{folder} cannot be made ({error.strerror}); give a folder that can be") from None
    write_record(comparison, folder / NAME)


def read_record(run: Path) -> Comparison:
    """The comparison in a file, or in the `report.json` of a folder. Raises OptionError in one sentence."""
    path = run / NAME if isdir(run) else run
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise OptionError(
            f"there is no readable {path}; give a folder that `partita train --out` or `partita compare --out` wrote"
        ) from None
    if (schema := _schema(text)) != SCHEMA:
        raise OptionError(f"{path} has schema {schema}; this version reads schema {SCHEMA}, so write it anew")
    try:
        saved = _adapter().validate_json(text)
        cluster = replace(read_cluster(saved.cluster, saved.cluster_name), name=saved.cluster_name)
    except (ValidationError, PartitaError) as error:
        raise OptionError(f"{path} is not a run's record ({_first(error)}); write it anew with --out") from None
    return Comparison(tuple(map(_frozen, saved.rows)), saved.task, cluster, saved.notes, saved.environment)


def _schema(text: str) -> Any:
    """The schema that a record says it has; this version's where it says none, for what else is wrong to be said."""
    with suppress(ValueError, RecursionError, AttributeError):
        return json.loads(text).get("schema", SCHEMA)
    return SCHEMA


def _frozen(row: Row) -> Row:
    """The row with tuples of spans, which the simulator has as columns and JSON as lists."""
    sides = {name: getattr(row, name) for name in ("predicted", "measured")}
    return replace(row, **{name: replace(t, spans=tuple(t.spans)) for name, t in sides.items() if t is not None})


@cache
def _adapter() -> TypeAdapter[Saved]:
    return TypeAdapter(Saved)


def _first(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    found: Any = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, found['loc'])) or 'text'}: {json.dumps(found['msg'])}"
