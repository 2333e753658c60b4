"""Plugins without a file."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from partita.wire.plugins import LOADED


def load_plugin(monkeypatch: pytest.MonkeyPatch, **offered: Any) -> None:
    """Have a plugin loaded with these CODECS, GRAPHS and the like, while a test runs."""
    module = ModuleType("mine")
    vars(module).update(offered)
    monkeypatch.setitem(LOADED, "mine", module)
