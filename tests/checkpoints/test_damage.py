"""No damage to a checkpoint goes unseen, nothing in one is ever run, and no run writes over another."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pickle
import random
import resource
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from partita.api import training
from partita.checkpoints import checkpoint, manifest
from partita.checkpoints.checkpoint import SavePolicy, begin, committed, newest, stopped_at
from partita.checkpoints.entry import Entry, read_entry
from partita.checkpoints.manifest import File, identity_of, read_manifest, with_files, write_manifest
from partita.checkpoints.plain import from_plain, to_plain
from partita.checkpoints.restore import open_checkpoint
from partita.checkpoints.shard import sha256_of
from partita.errors import InputError, OptionError
from partita.graph.graph import Graph
from partita.lowering.lower import last_program
from partita.plan.plan import Plan
from partita.program.held_out import EvaluationPolicy
from partita.program.timeline import Timeline
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runs.directory import Finished, claimed, opened, write_result
from partita.runs.result import RunResult
from partita.runs.room import sizes_of
from partita.runs.training import Training
from partita.runs.weights import save_weights
from partita.runtime.workload import Workload
from partita.task import Task
from partita.zoo.tasks import built_in
from tests.captures import capture
from tests.small import cluster_of

MACHINES = cluster_of(3)
CORRUPTIONS = 200


@pytest.fixture(scope="module")
def graph(task: Task) -> Graph:
    return capture(task)


@pytest.fixture(scope="module")
def plan(graph: Graph) -> Plan:
    return call("local_sgd(period=2)", graph, MACHINES)


@pytest.fixture(scope="module")
def made(task: Task, graph: Graph, plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the checkpoints of steps 4 and 6."""
    out = tmp_path_factory.mktemp("made")
    train_in_process(Workload(task, graph), plan, MACHINES, 6, keep=SavePolicy(str(out), 2))
    return out


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


def heard_from(run: Path) -> tuple[int, str]:
    """The step of the checkpoint that is taken, and what is said."""
    said: list[str] = []
    found = newest(run, said.append)
    return (found.manifest.step if found else 0), "; ".join(said)


def test_a_whole_checkpoint_is_taken(run: Path) -> None:
    assert [path.name for path in committed(run)] == ["step-6", "step-4"]
    assert heard_from(run) == (6, "")


def test_every_corruption_is_seen(made: Path, tmp_path: Path) -> None:
    """Flipped bits, cut ends, lost files: the damaged file is named, and the checkpoint before is taken."""
    draw = random.Random(0)
    run = tmp_path / "run"
    shutil.copytree(made, run)
    for _ in range(CORRUPTIONS):
        files = sorted((run / "checkpoints" / "step-6").iterdir())
        path, kind = draw.choice(files), draw.choice(["flip", "flip", "cut", "lose"])
        whole = path.read_bytes()
        if kind == "flip":
            at = draw.randrange(len(whole))
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << draw.randrange(8)]) + whole[at + 1 :])
        elif kind == "cut":
            path.write_bytes(whole[: draw.randrange(len(whole))])
        else:
            path.unlink()
        step, said = heard_from(run)
        assert step == 4, (path.name, kind)
        assert str(path) in said or (kind == "lose" and path.name == "manifest.json")
        path.write_bytes(whole)
    assert heard_from(run) == (6, "")


def test_where_all_are_damaged_nothing_is_started_anew(run: Path) -> None:
    for path in committed(run):
        (path / "rank-0.safetensors").unlink()
    with pytest.raises(InputError, match=r"step-4/rank-0.safetensors is missing, and .* no other checkpoint"):
        heard_from(run)


def test_what_was_never_committed_is_ignored_and_swept(run: Path) -> None:
    (run / "checkpoints" / "step-6" / "manifest.json").unlink()
    assert heard_from(run) == (4, "")
    checkpoint.sweep(run, 4)
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-4"]


@pytest.mark.parametrize("name", ["manifest.json", "rank-0.safetensors"])
def test_what_the_system_does_not_let_us_read_is_not_damaged(
    run: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be whole: no checkpoint before it is taken in its stead."""

    whole: Any = Path.open

    def refused(path: Path, *args: Any, **more: Any) -> Any:
        if path.name == name:
            raise PermissionError(13, "Permission denied")
        return whole(path, *args, **more)

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(InputError, match=rf"step-6/{name} cannot be read \(Permission denied\)"):
        heard_from(run)


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def recommitted(path: Path, names: list[str]) -> None:
    """A manifest with right digests over whatever is there."""
    files = [File(n, (path / n).stat().st_size, sha256_of(path / n)) for n in names if (path / n).exists()]
    files += [File(n, 1, "0" * 64) for n in names if not (path / n).exists()]
    write_manifest(path, with_files(read_manifest(path), files))


@pytest.mark.parametrize("writer", [pickle.dump, torch.save], ids=["pickle", "torch"])
def test_a_planted_pickle_is_refused_and_not_run(run: Path, tmp_path: Path, writer: object) -> None:
    path, mark = run / "checkpoints" / "step-6", tmp_path / "ran"
    with (path / "rank-0.safetensors").open("wb") as file:
        writer(Bomb(mark), file)  # type: ignore[operator]
    assert heard_from(run)[0] == 4
    recommitted(path, ["rank-0.safetensors"])
    with pytest.raises(InputError, match="is no shard of a checkpoint"):
        open_checkpoint(path)
    assert not mark.exists()


@pytest.mark.parametrize("name", ["../../evil.safetensors", "/etc/passwd", "evil.pt", "rank-0.safetensors/.."])
def test_names_that_leave_the_checkpoint_are_refused(run: Path, name: str) -> None:
    recommitted(run / "checkpoints" / "step-6", [name])
    with pytest.raises(InputError, match="names the file"):
        heard_from(run)


@pytest.mark.parametrize("what", ["step-6", "step-6/rank-1.safetensors", "step-6/manifest.json", "."])
def test_symbolic_links_are_refused(run: Path, tmp_path: Path, what: str) -> None:
    path = run / "checkpoints" / what
    path.resolve().rename(tmp_path / "elsewhere")
    (run / "checkpoints" if what == "." else path).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="symbolic link"):
        heard_from(run)


def test_a_manifest_that_is_no_file_is_damaged(run: Path) -> None:
    path = run / "checkpoints" / "step-6" / "manifest.json"
    path.unlink()
    path.mkdir()
    step, said = heard_from(run)
    assert step == 4
    assert f"{path} is no file; going back to the checkpoint before step-6" in said


def start(
    keep: SavePolicy, graph: Graph, plan: Plan, *, resume: bool, seed: int = 0, steps: int = 9
) -> tuple[object, str]:
    said: list[str] = []
    with opened(Training(graph, plan, MACHINES, steps, keep, seed, resume=resume, note=said.append)) as found:
        return found, "; ".join(said)


def test_a_run_that_is_refused_leaves_alone_what_is_there(run: Path, graph: Graph, plan: Plan) -> None:
    begun: list[int] = []

    def begins(resume: bool, steps: int = 9) -> None:
        keep = SavePolicy(str(run))
        with opened(Training(graph, plan, MACHINES, steps, keep, resume=resume, begin=lambda: begun.append(steps))):
            assert begun[-1] == steps
            with pytest.raises(OptionError, match="another run"):
                begins(resume, steps=99)

    with pytest.raises(OptionError, match="holds checkpoints of a run"):
        begins(False)
    with pytest.raises(OptionError, match="is at step 6 already"):
        begins(True, steps=3)
    begins(True)
    assert begun == [9]


def test_a_checkpoint_of_another_model_is_refused_with_five_keys(run: Path, graph: Graph, plan: Plan) -> None:
    other = replace(graph, parameters=tuple(replace(p, name=f"new.{p.name}") for p in graph.parameters))
    with pytest.raises(OptionError, match="of another model: 12 keys differ") as refused:
        start(SavePolicy(str(run)), other, plan, resume=True)
    assert str(refused.value).count(" there, ") == 5
    with pytest.raises(OptionError, match="with --seed 0, and this run has 3"):
        start(SavePolicy(str(run)), graph, plan, resume=True, seed=3)
    keyed = Training(graph, plan, MACHINES, 9, SavePolicy(str(run)), resume=True, keyed=True)
    with pytest.raises(OptionError, match="of a run without --deterministic"), opened(keyed):
        pass


def test_what_manifests_tell_is_refused_before_the_step_is_captured(
    run: Path, task: Task, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what may be right is captured; another run's directory stays its own."""

    class Captured(Exception):
        """Nothing was refused."""

    def captured(*given: Any, **more: Any) -> None:
        raise Captured

    monkeypatch.setattr(training, "graph_of", captured)
    order: dict[str, Any] = {"out": str(run), "steps": 9, "resume": True}
    mine = {"task": task}
    monkeypatch.setattr(training, "load", lambda _: mine["task"])
    monkeypatch.setattr(training, "spec_of", lambda _: "task")

    def train(**change: Any) -> None:
        training.train("task", plan, "local:3", **order | change)

    for other, said in (
        (built_in("digits-cnn"), r"is of another model: \d+ keys differ, such as"),
        (replace(task, batch_size=task.batch_size // 2), "was written with a minibatch of"),
        (replace(task, data=[task.data[i] for i in range(task.batch_size)]), "was written with data of length"),
    ):
        mine["task"] = other
        with pytest.raises(OptionError, match=said):
            train()
        with pytest.raises(OptionError, match=said):
            train(steps=0, epochs=9)
    mine["task"] = task
    for change, said in (
        ({"resume": False}, "holds checkpoints of a run; give --resume"),
        ({"seed": 3}, "with --seed 0, and this run has 3"),
        ({"deterministic": True}, "of a run without --deterministic"),
        ({"steps": 3}, f"the run in {run} is at step 6 already, and --steps is 3"),
        ({"steps": 5}, f"the run in {run} is at step 6 already, and --steps is 5"),
        ({"steps": 0, "epochs": 1}, f"the run in {run} is at step 6 already, and --steps is"),
    ):
        with pytest.raises(OptionError, match=said):
            train(**change)
    (run / "empty").mkdir()
    for change in ({}, {"steps": 6}, {"out": str(run / "new")}, {"out": str(run / "empty")}):
        with pytest.raises(Captured):
            train(**change)
    with claimed(str(run)), pytest.raises(OptionError, match="another run"):
        train()
    shard = run / "checkpoints" / "step-6" / "rank-1.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    with pytest.raises(Captured):  # the run will go back to step 4
        train(steps=5)
    shard.unlink()
    with pytest.raises(Captured):
        train()
    (run / "checkpoints" / "step-4" / "rank-1.safetensors").unlink()
    with pytest.raises(InputError, match=r"is missing, and .* has no other checkpoint; start anew"):
        train()


def test_where_a_run_starts(run: Path, graph: Graph, plan: Plan, tmp_path: Path) -> None:
    found, said = start(SavePolicy(str(run)), graph, plan, resume=True)
    assert isinstance(found, checkpoint.SavedCheckpoint)
    assert "going on from step 6" in said
    assert "written under" not in said
    assert "written under local_sgd" in start(SavePolicy(str(run)), graph, call("ddp", graph, MACHINES), resume=True)[1]
    assert start(SavePolicy(str(tmp_path / "new")), graph, plan, resume=True) == (
        None, f"no checkpoint in {tmp_path / 'new'}: starting at step 0",
    )  # fmt: skip
    for keep, resume, steps, words in (
        (SavePolicy(str(run)), False, 9, "holds checkpoints of a run; give --resume"),
        (SavePolicy(str(run)), True, 5, "at step 6 already, and --steps is 5"),
        (SavePolicy("/proc/nowhere"), False, 9, "--out /proc/nowhere cannot be written"),
    ):
        with pytest.raises(OptionError, match=words):
            start(keep, graph, plan, resume=resume, steps=steps)


def test_a_finished_run_is_not_run_again(run: Path, graph: Graph, plan: Plan) -> None:
    """Nor where its directory was moved since."""
    weights = str(run / "model.safetensors")
    take = RunResult(Timeline("p", "measured", 0.5, 12, wire_sent=(1, 2)), ((0, 0.5, 1.25),), 1.5, weights)
    write_result(str(run), Finished(plan, 6, replace(take, weights="before/model.safetensors")))
    assert start(SavePolicy(str(run)), graph, plan, resume=True, steps=6)[0] == Finished(plan, 6, take)
    assert isinstance(start(SavePolicy(str(run)), graph, plan, resume=True, steps=7)[0], checkpoint.SavedCheckpoint)


@pytest.mark.parametrize(("patience", "more"), [(2, False), (3, True), (0, True)])
def test_a_run_that_ended_early_goes_on_where_it_has_more_patience(
    run: Path, graph: Graph, plan: Plan, patience: int, more: bool
) -> None:
    """Or none at all, so that only its steps count."""
    found = ((1, 0.5), (3, 0.75), (6, 1.0))
    take = RunResult(Timeline("p", "measured", 0.5, 12), (), 1.0, "weights", evaluations=found)
    write_result(str(run), Finished(plan, 9, take))
    asked = Training(
        graph, plan, MACHINES, 9, SavePolicy(str(run)), resume=True, evaluation=EvaluationPolicy(2, patience)
    )
    with opened(asked) as begun:
        assert isinstance(begun, checkpoint.SavedCheckpoint if more else Finished)


def test_a_finished_run_without_checkpoints_does_not_begin_again(tmp_path: Path, graph: Graph, plan: Plan) -> None:
    """Nor is it the result of another run."""
    keep, take = SavePolicy(str(tmp_path)), RunResult(Timeline("p", "measured", 0.5, 12), (), 1.5, "weights")
    write_result(str(tmp_path), Finished(plan, 6, take, identity_of(graph, 0, plan.update)))
    assert isinstance(start(keep, graph, plan, resume=True, steps=6)[0], Finished)
    with pytest.raises(OptionError, match="finished after 6 steps and has no checkpoint to go on from"):
        start(keep, graph, plan, resume=True, steps=7)
    with pytest.raises(OptionError, match=r"the finished run in .* was written with --seed 0"):
        start(keep, graph, plan, resume=True, steps=6, seed=1)
    assert (tmp_path / "result.json").exists()
    write_result(str(tmp_path), Finished(plan, 6, take, identity_of(graph, 0, plan.update), keyed=True))
    with pytest.raises(OptionError, match=r"the finished run in .* is of a run with --deterministic"):
        start(keep, graph, plan, resume=True, steps=6)


def test_a_finished_run_says_that_other_first_weights_are_not_used(tmp_path: Path, graph: Graph, plan: Plan) -> None:
    write_result(str(tmp_path), Finished(plan, 6, RunResult(Timeline("p", "measured", 0.5, 12), (), 1.5, "weights")))
    told = list[str]()
    keep = SavePolicy(str(tmp_path))
    with opened(Training(graph, plan, MACHINES, 6, keep, resume=True, init="other", note=told.append)) as begun:
        assert isinstance(begun, Finished)
    assert told == [f"the run in {tmp_path} is finished; --init is not used"]


@pytest.mark.parametrize("said", ["", "[]", '{"schema": 99}'])
def test_a_result_that_cannot_be_read_is_not_written_over(tmp_path: Path, graph: Graph, plan: Plan, said: str) -> None:
    (tmp_path / "result.json").write_text(said)
    asked = Training(graph, plan, MACHINES, 6, SavePolicy(str(tmp_path)), resume=True)
    with pytest.raises(InputError, match=r"result\.json"), opened(asked):
        pass
    assert (tmp_path / "result.json").read_text() == said


def test_a_finished_run_is_not_written_over(tmp_path: Path, graph: Graph, plan: Plan) -> None:
    write_result(str(tmp_path), Finished(plan, 6, RunResult(Timeline("p", "measured", 0.5, 12), (), 1.5, "weights")))
    with pytest.raises(OptionError, match="holds a finished run; give another --out"):
        start(SavePolicy(str(tmp_path)), graph, plan, resume=False)
    assert (tmp_path / "result.json").exists()


def test_going_on_sets_aside_what_is_damaged_and_later(run: Path, graph: Graph, plan: Plan) -> None:
    (run / "checkpoints" / "step-6" / "rank-0.safetensors").write_bytes(b"")
    _, said = start(SavePolicy(str(run)), graph, plan, resume=True)
    assert "rank-0.safetensors holds 0 bytes" in said
    assert "going on from step 4" in said
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["damaged-step-6", "step-4"]


def test_the_second_run_in_a_directory_is_refused(tmp_path: Path) -> None:
    with (
        claimed(str(tmp_path)),
        pytest.raises(OptionError, match=rf"another run \(process {os.getpid()} on .*\) writes"),
    ):
        claimed(str(tmp_path)).__enter__()
    with claimed(str(tmp_path)):
        pass


def test_a_full_disk_keeps_what_there_is(
    run: Path, task: Task, graph: Graph, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(run)._replace(free=100_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(OSError, match=r"no space: need .*, have 97.* in"):
        begin(run, 8, 10**6)
    with pytest.raises(OptionError, match=r"no space: need .* for so many checkpoints: 3"):
        start(SavePolicy(str(run / "new"), 2), graph, plan, resume=False)
    assert heard_from(run) == (6, "")


def test_checkpoints_that_will_be_removed_make_room(
    run: Path, graph: Graph, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that has kept as many as it may needs room for one more, not for all of them again."""
    keep = SavePolicy(str(run), 2)
    whole, _ = sizes_of(graph, last_program(graph, plan, MACHINES))
    usage = shutil.disk_usage(run)._replace(free=round(1.5 * whole) + 2**16)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert "going on from step 6" in start(keep, graph, plan, resume=True)[1]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=whole // 2))
    with pytest.raises(OptionError, match="for so many checkpoints: 1;"):
        start(keep, graph, plan, resume=True)
    take = RunResult(Timeline("p", "measured", 0.5, 12), (), 1.5, "weights")
    write_result(str(run), Finished(plan, 6, take))
    assert isinstance(start(keep, graph, plan, resume=True, steps=6)[0], Finished)  # which writes none


def test_what_cannot_be_removed_does_not_undo_what_was_written(
    task: Task, graph: Graph, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of an older checkpoint that somebody still has open, on a network's disk."""

    def busy(path: Path) -> None:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(shutil, "rmtree", busy)
    train_in_process(Workload(task, graph), plan, MACHINES, 6, keep=SavePolicy(str(tmp_path), 2, 1))
    assert heard_from(tmp_path) == (6, "")


def test_a_stopped_run_names_the_newest_checkpoint_that_is_complete(run: Path, tmp_path: Path) -> None:
    """The last one may not have been written, as on a full disk: the run does not start anew for that."""
    shutil.rmtree(run / "checkpoints/step-6")
    begin(run, 7, 0)
    newest_one = f"its newest checkpoint is {run}/checkpoints/step-4; --resume goes on from there"
    assert stopped_at(7, str(run)) == f"stopped after 7 steps; {newest_one}"
    assert stopped_at(7, str(tmp_path / "none")) == "stopped after 7 steps; --resume starts it anew"


def test_a_directory_that_fills_before_the_first_step_is_a_sentence(tmp_path: Path, graph: Graph, plan: Plan) -> None:
    def begins() -> None:
        raise OSError(28, "No space left on device", "manifest.json")

    asked = Training(graph, plan, MACHINES, 6, SavePolicy(str(tmp_path)), begin=begins)
    with pytest.raises(OptionError, match=r"cannot be written .*No space left"), opened(asked):
        pass


def test_a_directory_that_cannot_be_locked_is_not_another_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unlocked(lock: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unlocked)
    with pytest.raises(OptionError, match=r"no file can be locked \(No locks available\)"):
        claimed(str(tmp_path)).__enter__()


def test_a_disk_without_room_for_the_end_is_a_sentence(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that were there before stay whole."""
    layer = torch.nn.Linear(2, 2)
    save_weights(layer, tmp_path / "model.safetensors")
    before = (tmp_path / "model.safetensors").read_bytes()

    def full(*words: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OptionError, match=r"model\.safetensors cannot be written \(.*No space left"):
        save_weights(layer, tmp_path / "model.safetensors")
    assert (tmp_path / "model.safetensors").read_bytes() == before
    with pytest.raises(OptionError, match=r"result\.json cannot be written \(No space left"):
        write_result(str(tmp_path), Finished(plan, 6, RunResult(Timeline("p", "measured", 0.5, 12), (), 1.5, "w")))


def test_a_folder_that_vanished_is_made_again_and_a_file_in_its_place_is_a_sentence(tmp_path: Path) -> None:
    layer, out = torch.nn.Linear(2, 2), tmp_path / "out"
    save_weights(layer, out / "model.safetensors")
    assert (out / "model.safetensors").exists()
    shutil.rmtree(out)
    out.write_text("")
    with pytest.raises(OptionError, match=r"model\.safetensors cannot be written \(FileExistsError"):
        save_weights(layer, out / "model.safetensors")


def test_a_limit_on_files_is_seen_before_the_first_step(
    tmp_path: Path, graph: Graph, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1000, 1000))
    with pytest.raises(OptionError, match="ulimit -f"):
        start(SavePolicy(str(tmp_path), 2), graph, plan, resume=False)


@pytest.mark.parametrize("text", ["single", "ddp", "ps_sync", "pipe_sgd(staleness=2)", "local_sgd(period=2)"])
def test_the_room_asked_for_is_enough_and_not_much_more(task: Task, graph: Graph, text: str, tmp_path: Path) -> None:
    chosen = call(text, graph, MACHINES)
    train_in_process(Workload(task, graph), chosen, MACHINES, 4, keep=SavePolicy(str(tmp_path), 4))
    shards = [p.stat().st_size for p in (tmp_path / "checkpoints" / "step-4").glob("rank-*")]
    whole, largest = sizes_of(graph, last_program(graph, chosen, MACHINES))
    assert sum(shards) <= whole <= sum(shards) + 2**17 * len(shards)
    assert max(shards) <= largest


def test_manifests_say_what_they_hold(run: Path, graph: Graph, plan: Plan) -> None:
    body = json.loads((run / "checkpoints" / "step-6" / "manifest.json").read_text())
    assert body["format"] == "partita checkpoint"
    assert (body["schema"], body["step"], body["world"], body["torch"]) == (4, 6, 3, torch.__version__)
    assert "local_sgd" in body["plan"]
    assert [file["name"] for file in body["files"]] == [f"rank-{r}.safetensors" for r in range(3)]


def test_names_and_values_come_back() -> None:
    for entry in (Entry("state", "a/b:c.weight", "exp/avg", 3, 2, 9), Entry("random", detail="torch", rank=0)):
        assert read_entry(str(entry)) == entry
    value = {"lr": 0.1, "betas": (0.9, float("inf")), "milestones": {3: 1}, "none": None, "list": [True, "x", [1]]}
    assert from_plain(json.loads(json.dumps(to_plain(value, "it")))) == value
    assert to_plain([np.float64(0.5), np.int64(3), np.float64("nan")], "it") == [0.5, 3, {"float": "nan"}]
    for text in ("", "state", "state//x/0:1/name"):
        with pytest.raises(InputError):
            read_entry(text)
    with pytest.raises(InputError):
        from_plain({"code": "print()"})
    with pytest.raises(Exception, match="keeps a function"):
        to_plain(lambda: 0, "it")


def test_manifests_of_the_schema_before_are_read_and_of_later_ones_not(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run / "checkpoints" / "step-6"
    written = read_manifest(path)
    for schema in (2, 3, 5):
        with monkeypatch.context() as patch:
            patch.setattr(manifest, "SCHEMA", schema)
            write_manifest(path, written)
        if schema < 4:
            assert read_manifest(path) == written
    with pytest.raises(InputError, match="has schema 5; this version reads schema 4, so finish that run with the vers"):
        read_manifest(path)
