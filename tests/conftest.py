"""Every annotation of the package is checked at run time while tests run."""

from __future__ import annotations

import pytest
from beartype import BeartypeConf
from beartype.claw import beartype_package

# Numba compiles this file's functions and caches them by their source, which checked ones no longer have.
COMPILED = ("partita.simulator.clockwork",)
# As for mypy, an int is a float too; local variables are left to mypy.
HOW = BeartypeConf(is_pep484_tower=True, claw_is_pep526=False, claw_skip_package_names=COMPILED)
beartype_package("partita", conf=HOW)


def pytest_configure(config: pytest.Config) -> None:
    """Let pass, with its annotations unchecked, what beartype cannot check: recursive aliases, static protocols."""
    for name in ("BeartypeClawDecorWarning", "BeartypeDecorHintPep613DeprecationWarning"):
        config.addinivalue_line("filterwarnings", f"ignore::beartype.roar.{name}")
