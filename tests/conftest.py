"""Every annotation of the package is checked at run time while tests run."""

from __future__ import annotations

import signal
import warnings

import pytest
import torch
from beartype import BeartypeConf
from beartype.claw import beartype_package
from beartype.roar import BeartypeClawDecorWarning, BeartypeDecorHintPep613DeprecationWarning
from hypothesis import HealthCheck, settings

# The same drawn cases every time, however busy the machine.
settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")

# Numba compiles this file's functions and caches them by their source, which checked ones no longer have.
COMPILED = ("partita.simulator.clock_loop", "partita.kernels")
# As for mypy, an int is a float too; local variables are left to mypy.
HOW = BeartypeConf(is_pep484_tower=True, claw_is_pep526=False, claw_skip_package_names=COMPILED)
# What beartype cannot check passes unchecked: recursive aliases, static protocols.
for unchecked in (BeartypeClawDecorWarning, BeartypeDecorHintPep613DeprecationWarning):
    warnings.simplefilter("ignore", unchecked)
beartype_package("partita", conf=HOW)

from partita.runs.heap import keep_freed, set_aside  # noqa: E402  checked as well


def pytest_configure(config: pytest.Config) -> None:
    """The same while tests are collected and run; and beartype draws at random which item of a tuple it looks at. One
    thread computes, as in workers: a codec makes a whole level of a last bit, and xdist's processes share the cores."""
    for name in ("BeartypeClawDecorWarning", "BeartypeDecorHintPep613DeprecationWarning"):
        config.addinivalue_line("filterwarnings", f"ignore::beartype.roar.{name}")
    config.addinivalue_line("filterwarnings", "ignore:Do not use the `random` module inside strategies")
    # A shell's background job has its interrupts ignored, and hands that on to the launchers that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    keep_freed()
    torch.set_num_threads(1)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Collections of garbage visit what tests make, not all of torch and of the tests' code."""
    set_aside()
