"""A checkpoint and a result whose digests are right and whose contents nobody wrote: refused, or taken for damaged."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from partita.checkpoints.losses import losses_of
from partita.checkpoints.manifest import DamagedCheckpoint, Identity, check_files, differences, read_manifest
from partita.checkpoints.restore import open_checkpoint
from partita.checkpoints.shard import sha256_of
from partita.errors import InputError
from partita.runs.directory import read_result
from tests.places import changed, places

DEEP: list[Any] = []
for _ in range(60):
    DEEP = [DEEP]
VALUES = (
    None, True, -1, 0, 2**64, 10**40, 1.5, float("nan"), float("inf"), "", "x", "../../x", "/etc/passwd",
    "rank-٣.safetensors", "\x00", [], {}, [[]], {"a": 1}, [1, 2], {"tensor": ["float32", [10**12], [0]]}, DEEP,
)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of one step with the parts of a checkpoint that are read before any tensor is."""
    path = tmp_path / "checkpoints" / "step-1"
    path.mkdir(parents=True)
    (tmp_path / "losses.csv").write_text("step,seconds,loss\n0,0.5,2.5\n")
    (path / "manifest.json").write_text("")
    return tmp_path


def text_of(body: dict[str, Any]) -> bytes:
    """As manifests are written."""
    return json.dumps(body, sort_keys=True, indent=1).encode() + b"\n"


def file_of(path: Path) -> dict[str, Any]:
    return {"name": path.name, "size": path.stat().st_size, "sha256": sha256_of(path)}


def test_a_manifest_with_any_value_in_any_place(run: Path) -> None:
    layout = {"weight": "float32[3]"}
    identity = {"layout": layout, "optimizer": "SGD", "signature": "s", "seed": 0, "batch": 4, "samples": 9}
    record = {
        "format": "partita checkpoint", "schema": 4, "step": 1, "plan": "schema = 1", "world": 2, "lag": 1, "flying": 0,
        "seconds": 0.5, "keyed": False, "identity": identity, "torch": "2.13", "files": [], "flies": "",
        "settings": [], "losses": file_of(run / "losses.csv"), "evaluations": [[1, 0.5]],
    }  # fmt: skip
    path, ours, draw, refused = run / "checkpoints" / "step-1", Identity(**identity), random.Random(1), 0
    for _ in range(600):
        body = changed(record, draw.choice(list(places(record))), draw, VALUES)
        digest = hashlib.sha256(text_of(body)).hexdigest()
        (path / "manifest.json").write_bytes(text_of({**body, "digest": digest}))
        try:
            found = read_manifest(path)
            check_files(path, found)
            differences(ours, found.identity)
            losses_of(open_checkpoint(path))
        except (InputError, DamagedCheckpoint):
            refused += 1
    assert refused > 400


@pytest.mark.parametrize("text", ["step,seconds,loss\n0,0.5\n", "step,seconds,loss\n0,0.5,x\n", "\n\xff"])
def test_losses_that_are_none_are_damaged(run: Path, text: str) -> None:
    (run / "losses.csv").write_bytes(text.encode("latin-1"))
    test_a_manifest_with_any_value_in_any_place(run)


def test_a_result_with_any_value_in_any_place(tmp_path: Path) -> None:
    timeline = {"plan": "p", "origin": "measured", "step_seconds": 0.5, "batch": 12, "spans": [], "wire_sent": [1, 2],
                "breakdown": {"forward": 0.1}, "memory": [3]}  # fmt: skip
    take = {"timeline": timeline, "loss": [[0, 0.5, 1.25]], "final_loss": float("nan"), "weights": "model.safetensors"}
    identity = {"layout": {}, "optimizer": "SGD", "signature": "s", "seed": 0, "batch": 4, "samples": 9}
    plan = 'schema = 1\nname = "p"\n[mesh]\naxes = [["data", 2]]\n'
    record = {"schema": 1, "plan": plan, "steps": 1, "take": take, "identity": identity}
    path, draw, refused = tmp_path / "result.json", random.Random(1), 0
    path.write_text(json.dumps(record))
    found = read_result(str(tmp_path))
    assert found is not None
    assert found.result.timeline.wire_sent == (1, 2)
    for _ in range(600):
        path.write_text(json.dumps(changed(record, draw.choice(list(places(record))), draw, VALUES)))
        try:
            found = read_result(str(tmp_path))
            assert found is not None
            differences(Identity(**identity), found.identity or Identity(**identity))
        except InputError:
            refused += 1
    assert refused > 350
