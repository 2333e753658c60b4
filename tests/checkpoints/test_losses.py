"""The losses of a run are in one file, which every checkpoint makes longer by the steps since the one before."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from partita.checkpoints import losses, saving
from partita.checkpoints.checkpoint import committed, newest, place_of
from partita.checkpoints.entry import Entry
from partita.checkpoints.losses import HEADER, LossFile, append, begun_in, losses_of
from partita.checkpoints.manifest import File, read_manifest, write_manifest
from partita.checkpoints.restore import open_checkpoint
from partita.checkpoints.shard import VALUES, sha256_of
from partita.plan.plan import Plan
from partita.recipes.catalogue import call
from partita.runs.execution import run
from partita.runs.session import Job, Session
from tests.captures import capture
from tests.small import cluster_of, perceptron

EVERY, MANY = 4, 99


@pytest.fixture(scope="module")
def crew() -> tuple[Session, Plan]:
    """A process that is the only rank, and its plan."""
    task, machines = perceptron(), cluster_of(1)
    session = Session(task, capture(task), machines, 0, 0, 1, 60.0)
    session.open()
    return session, call("single", session.graph, machines)


def trained(
    crew: tuple[Session, Plan], out: Path, steps: int, since: int = 0, notes: list[str] | None = None
) -> list[tuple[int, float]]:
    """The losses of a run up to step `steps`, from its start or from the checkpoint of step `since`."""
    session, plan = crew
    resume, heard = str(place_of(out, since)) if since else "", list[dict[str, Any]]()
    job = Job(plan, steps, out=str(out), evaluate=False, every=EVERY, keep=MANY, resume=resume)
    found = run(session, job, heard.append)["losses"]
    (notes if notes is not None else []).extend(event["note"] for event in heard if "note" in event)
    return [(step, loss) for step, loss, _ in found]


def written_in(out: Path) -> list[tuple[int, float]]:
    """(step, loss) of each line of the file."""
    head, *lines = (out / "losses.csv").read_text().splitlines(keepends=True)
    assert head == HEADER
    rows = [line.split(",") for line in lines]
    assert all(float(second) > 0 for _, second, _ in rows)
    return [(int(step), float(loss)) for step, _, loss in rows]


def test_a_checkpoint_writes_what_is_new(
    crew: tuple[Session, Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many steps a run has behind it, also behind a resume: as many lines as steps, and shards of one size."""
    lines: list[int] = []

    def counted(file: LossFile, rows: losses.Losses) -> LossFile:
        lines.append(len(rows))
        return append(file, rows)

    monkeypatch.setattr(saving, "append", counted)
    trained(crew, tmp_path, 24)
    losses_then = trained(crew, tmp_path, 40, since=24)
    assert lines == [EVERY] * 10
    sizes = {sum(file.size for file in read_manifest(path).files) for path in committed(tmp_path)}
    assert len(sizes) == 1
    assert written_in(tmp_path) == losses_then
    assert [step for step, _ in losses_then] == [*range(40)]


def test_what_was_never_committed_is_cut_off(
    crew: tuple[Session, Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run dies, or its disk is full, between the losses of a checkpoint and its manifest."""
    unbroken = trained(crew, tmp_path / "unbroken", 16)
    notes: list[str] = []
    commit = saving.commit

    def failing(path: Path, *more: Any) -> None:
        if path.name == "step-8":
            raise OSError("no space")
        commit(path, *more)

    with monkeypatch.context() as patch:
        patch.setattr(saving, "commit", failing)
        assert trained(crew, tmp_path, 12, notes=notes) == unbroken[:12]
    assert notes == ["the checkpoint of step 8 was not written (no space); older ones stay"]
    assert written_in(tmp_path) == unbroken[:12]
    found = newest(tmp_path, notes.append)
    assert found is not None
    assert found.manifest.step == 12
    with (tmp_path / "losses.csv").open("a") as file:
        file.write("12,0.5,0.25\n13,0.75")  # where it was killed
    assert trained(crew, tmp_path, 16, since=12) == unbroken
    assert written_in(tmp_path) == unbroken
    assert trained(crew, tmp_path, 16, since=4) == unbroken  # the later ones are damaged, say
    assert written_in(tmp_path) == unbroken


def as_before(out: Path, step: int) -> None:
    """Make of a checkpoint one whose losses are in its shard, as all were once."""
    path = place_of(out, step)
    shard, rows = path / "rank-0.safetensors", losses_of(open_checkpoint(path))[1]
    with safe_open(shard, "pt") as file:
        tensors, values = {key: file.get_tensor(key) for key in file.keys()}, file.metadata()[VALUES]  # noqa: SIM118
    tensors[str(Entry("losses", rank=0))] = torch.tensor(rows, dtype=torch.float64)
    save_file(tensors, shard, {VALUES: values})
    files = (File(shard.name, shard.stat().st_size, sha256_of(shard)),)
    write_manifest(path, replace(read_manifest(path), files=files, losses=None))
    (out / "losses.csv").unlink(missing_ok=True)


def test_a_checkpoint_that_has_its_losses_in_its_shards_goes_on(crew: tuple[Session, Plan], tmp_path: Path) -> None:
    unbroken = trained(crew, tmp_path / "unbroken", 16)
    trained(crew, tmp_path, 8)
    as_before(tmp_path, 8)
    assert json.loads((place_of(tmp_path, 8) / "manifest.json").read_text())["losses"] is None
    assert trained(crew, tmp_path, 16, since=8) == unbroken
    assert written_in(tmp_path) == unbroken
    assert trained(crew, tmp_path, 20, since=16)[:16] == unbroken


@pytest.mark.parametrize("how", ["lost", "cut", "changed", "linked"])
def test_without_its_file_a_run_goes_on_and_says_so(crew: tuple[Session, Plan], how: str, tmp_path: Path) -> None:
    unbroken = trained(crew, tmp_path / "unbroken", 16)
    trained(crew, tmp_path, 8)
    file, notes = tmp_path / "losses.csv", list[str]()
    whole = file.read_bytes()
    file.unlink()
    if how == "linked":
        file.symlink_to(tmp_path / "unbroken" / "losses.csv")
    elif how != "lost":
        file.write_bytes(whole[:-9] if how == "cut" else whole.replace(b"0", b"1", 1))
    what = "is missing" if how in ("lost", "linked") else "is not as step-8 left it"
    assert trained(crew, tmp_path, 16, since=8, notes=notes) == unbroken[8:]
    assert notes[0] == f"{file} {what}; the losses of the steps before 8 are not known"
    assert written_in(tmp_path / "unbroken") == unbroken
    if how == "linked":
        assert "losses.csv" in notes[1]
    else:
        assert written_in(tmp_path) == unbroken[8:]


def test_numbers_come_back_as_they_were(tmp_path: Path) -> None:
    rows = [(0, 0.1, 1 / 3, 0.0), (1, 0.0, float("inf"), 0.0), (2, 1e-9, 5e-324, 0.0)]
    file = append(append(begun_in(tmp_path), rows[:1]), rows[1:])
    assert file.named == File(
        "losses.csv", (tmp_path / "losses.csv").stat().st_size, sha256_of(tmp_path / "losses.csv")
    )
    lines = [line.split(",") for line in (tmp_path / "losses.csv").read_text().splitlines()[1:]]
    assert [(int(step), float(second), float(loss), 0.0) for step, second, loss in lines] == rows
