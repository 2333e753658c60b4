"""A machine on which temporary files find no room says so, and blames nobody's model for it."""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from partita.cluster.cluster import Cluster
from partita.errors import ClusterError, OptionError
from partita.lab.record import scratch
from partita.lab.rehearsal import Rehearsal
from partita.runs.weights import write_first
from partita.tracing.capture import capture
from tests.small import perceptron, two_layers

NOWHERE = FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A context in which no file of this process can be larger, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(autouse=True)
def place(state: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go, and nothing is left."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_a_record_that_finds_no_room_is_a_sentence(state: Path) -> None:
    with files_of_at_most(16), pytest.raises(ClusterError, match=r"cannot write records in .*set XDG_RUNTIME_DIR"):
        scratch().__enter__()
    assert list(state.rglob("*.json*")) == []


def test_what_workers_are_given_finds_no_room(place: Path) -> None:
    crew = Rehearsal("digits-cnn", two_layers(), Cluster.load("local:2"))
    with files_of_at_most(1000), pytest.raises(OptionError, match=f"temporary files .* {place}/.*set TMPDIR"):
        crew.__enter__()
    assert list(place.iterdir()) == []


def test_first_weights_that_find_no_room_are_a_sentence(place: Path) -> None:
    with (
        files_of_at_most(64),
        pytest.raises(OptionError, match=f"temporary files .* in {place}.*TMPDIR"),
    ):
        write_first(perceptron(), 0, "", place / "first.safetensors")


def test_no_folder_for_temporary_files_is_not_the_optimizers_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_get_default_tempdir", Mock(side_effect=NOWHERE))
    with pytest.raises(OptionError, match=r"No usable temporary directory .*set TMPDIR"):
        capture(perceptron())
