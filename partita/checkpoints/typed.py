"""Frozen values from JSON that anybody may have written: each field of its own type, none more and none missing."""

from __future__ import annotations

import json
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


def read_strictly(kind: type[T], body: Any) -> T:
    """The value of the dataclass `kind` whose fields an object of JSON has. Raises ValueError with the first that is
    wrong."""
    from pydantic import ValidationError  # where nothing is resumed, its tenth of a second is saved

    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    if isinstance(body, dict) and (more := sorted(body.keys() - known)):
        raise ValueError(f"{more[0]!r} is no part of it")
    try:
        found: T = _reader(kind).validate_json(json.dumps(body), strict=True)  # type: ignore[arg-type]  # of typeshed
        return found
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except ValidationError as error:
        first: Any = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'text'}: {first['msg']}") from None


@cache
def _reader(kind: type) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
