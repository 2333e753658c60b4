"""A comparison as a file that `partita report` reads: JSON, the cluster within it as its own TOML, with a sha256 of all
the rest."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from os.path import isdir
from pathlib import Path
from typing import Any, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from partita.cluster.text import read_cluster
from partita.cluster.writing import write_cluster
from partita.errors import OptionError, PartitaError, check_schema
from partita.files import read_json, read_whole
from partita.graph.text import digest_of
from partita.report.comparison import Comparison, Row
from partita.report.environment import Environment
from partita.report.files import check_unread, write_file
from partita.report.sound import check_rows

NAME: Final = "report.json"
FILES: Final = (  # what a run keeps
    NAME, "result.json", "manifest.json", "model.safetensors", "best.safetensors", "losses.csv",
)  # fmt: skip
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
    record = json.loads(_adapter().dump_json(saved))
    write_file(path, json.dumps(record | {"sha256": digest_of(record)}, separators=(",", ":")))


def write_run(comparison: Comparison, folder: Path) -> None:
    """Write `report.json` into a folder, which is made. Raises OptionError where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"{folder} cannot be made ({error.strerror}); give a folder that can be") from None
    write_record(comparison, folder / NAME)


def read_record(run: Path, page: Path | None = None) -> Comparison:
    """The comparison in a file, or in the `report.json` of a folder. Raises OptionError in one sentence, for a `page`
    that would take the place of what is kept, too."""
    check_unread((str(run), *(str(run / name) for name in FILES)), page)
    path = run / NAME if isdir(run) else run
    try:
        text = read_whole(path)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise OptionError(
            f"{path} cannot be read ({why}); give a folder that `partita train --out` or `partita compare --out` wrote"
        ) from None
    record = _record(text, path)
    check_schema(record.get("schema", SCHEMA), SCHEMA, str(path), "write it anew", OptionError)
    digest = record.pop("sha256", None)  # a file by another hand has none
    if digest not in (None, digest_of(record)):
        raise OptionError(f"{path} is damaged (its sha256 is not that of its contents); write it anew with --out")
    try:
        saved = _adapter().validate_json(json.dumps(record))
        check_rows(saved.rows)
        cluster = replace(read_cluster(saved.cluster, saved.cluster_name), name=saved.cluster_name)
    except (ValueError, PartitaError) as error:  # pydantic's errors are ValueErrors
        raise OptionError(f"{path} is not a run's record ({_first(error)}); write it anew with --out") from None
    return Comparison(tuple(map(_frozen, saved.rows)), saved.task, cluster, saved.notes, saved.environment)


def _record(text: str, path: Path) -> dict[str, Any]:
    """The fields of a record; NaN and Infinity, which are no JSON, it has as texts. Raises OptionError."""
    try:
        found = read_json(text)
        why = "" if isinstance(found, dict) else "it is no JSON object"
    except ValueError as error:
        why = f"it is no JSON object: {error}"
    if why:
        raise OptionError(f"{path} is not a run's record ({why}); give a folder that --out has written")
    return found  # type: ignore[no-any-return]


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
