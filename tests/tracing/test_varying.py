"""What a batch has that is no tensor and differs from batch to batch: a step that depends on it is not traced."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch.nn.functional as F

from partita.errors import CaptureError
from partita.task import Task
from partita.tracing.capture import capture
from partita.tracing.hidden_inputs import Varying
from tests.tracing.eager import difference
from tests.tracing.models import task
from tests.tracing.test_hidden_inputs import Layers, scaled

USES = (
    "bool(v)", "not v", "v and 1", "v == 1", "1 == v", "v != 1", "v < 1", "v <= 1", "v > 1", "v >= 1", "max(v, 1)",
    "hash(v)", "{v: 1}", "len(v)", "list(v)", "1 in v", "v[0]", "'ab'[v]", "range(v)", "int(v)", "float(v)", "str(v)",
    "repr(v)", "f'{v}'", "v + 1", "1 + v", "v - 1", "1 - v", "v * 2", "2 * v", "v / 2", "2 / v", "v // 2", "2 // v",
    "v % 2", "2 % v", "v ** 2", "2 ** v", "-v", "abs(v)",
)  # fmt: skip


def missing(samples: list[Any]) -> Any:
    """A batch with a number where its first sample has one."""
    first = float(samples[0][0].sum())
    return {**scaled(samples), "scale": first if first > 0 else None}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", [float, str])
def test_whatever_is_done_with_what_varies_is_an_error(kind: type, use: str) -> None:
    """All that Python can do with a number or a text, on either side."""
    with pytest.raises(CaptureError, match="differs from batch to batch"):
        eval(use, {"v": Varying(kind)})


def test_of_what_kind_it_is_what_varies_says() -> None:
    text, number = copy.deepcopy([Varying(str), Varying(float)])
    assert (isinstance(text, str), isinstance(number, float), isinstance(number, str)) == (True, True, False)
    assert not hasattr(number, "to")
    for attribute in ("lower", "split"):
        with pytest.raises(CaptureError, match="differs from batch to batch"):
            getattr(text, attribute)


def asked(ask: Callable[[Any, Any], Any], collate: Any = scaled) -> Task:
    return task("asked", Layers, lambda m, b: ask(F.cross_entropy(m(b["x"]), b["y"]), b), collate=collate)


def test_what_kind_a_plain_value_is_is_answered_as_it_is() -> None:
    given = asked(lambda found, b: found * 2 if isinstance(b["most"], float) else found)
    graph = capture(given, precision="fp64")
    assert graph.rung == "dispatch"
    assert difference(given, graph, 3) < 1e-12


@pytest.mark.parametrize(
    ("ask", "collate", "words"),
    [
        (
            lambda found, b: found if b["scale"] is None else found * 2, missing,
            r"is of type (float|NoneType) in one batch and of type (float|NoneType) in another",
        ),
        (lambda found, b: found * 2 if hasattr(b["names"][0], "lower") else found, scaled, "differs from batch"),
    ],
    ids=["none", "attribute"],
)  # fmt: skip
def test_what_cannot_be_answered_is_not_traced(ask: Any, collate: Any, words: str) -> None:
    graph = capture(asked(ask, collate))
    assert graph.rung == "opaque"
    assert re.search(words, graph.blind)
