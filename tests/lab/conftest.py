from __future__ import annotations

import functools
from pathlib import Path

import pytest

from partita.cluster.text import load_cluster
from partita.lab.network import open_lab


@functools.cache
def kind_here() -> str:
    with open_lab(load_cluster("lab-4x1g")) as lab:
        return lab.kind


@pytest.fixture
def namespaces() -> None:
    """Skips where the kernel refuses network namespaces."""
    if kind_here() != "namespaces":
        pytest.skip(f"network namespaces with control groups are refused here; a lab would be {kind_here()}")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory of the test's own, so that it sees its own labs only."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "partita"
