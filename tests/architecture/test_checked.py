from __future__ import annotations

from typing import Any

import pytest
from beartype.roar import BeartypeCallHintViolation

from partita.units import show_seconds


def test_annotations_are_checked_while_tests_run() -> None:
    wrong: Any = "soon"
    with pytest.raises(BeartypeCallHintViolation):
        show_seconds(wrong)
