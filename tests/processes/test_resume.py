"""Runs that are killed anywhere, or stopped by a signal, go on with --resume and end where they would have ended."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from safetensors.torch import load_file

from partita import api
from partita.checkpoints.checkpoint import SavePolicy, committed, place_of
from partita.errors import PartitaError
from partita.lab import train as launched
from partita.lab.rehearsal import Rehearsal
from partita.lowering.lower import last_program
from partita.recipes.catalogue import call
from partita.runs import execution
from partita.runs.session import Job, Session
from partita.runtime.leg import legs
from partita.runtime.rank import Rank
from tests.processes.crews import SEED, Crews
from tests.processes.slow_disk import SECONDS
from tests.processes.training import workers_of
from tests.small import cluster_of, two_layers

TASK = f"{Path(__file__).with_name('mortal.py')}:mortal"
ROOT = Path(__file__).parents[2]
STEPS, EVERY, SIZE = 12, 3, 3
PLACE = f"local:{SIZE}"
PLANS = (
    "single", "ddp", "ps_sync", "ps_sync(own=false)", "ps_sync(servers=2,own=false,bucket_bytes=200)",
    "pipe_sgd(staleness=2)", "pipe_sgd(warmup=4)", "local_sgd(period=2)", "zero3(bucket_bytes=200)",
    "ddp(rule=lamb,rate_warmup=4)", "one_f_one_b(stages=3,microbatches=2)",
    "zero_bubble(stages=2,microbatches=3,bucket_bytes=200)",
)  # fmt: skip
KILLS = range(*map(int, os.environ.get("KILLS", "0:100").split(":")))  # numbers: seeds of who dies where


def words(plan: str, out: Path, *more: str, steps: int = STEPS) -> list[str]:
    given = (TASK, "--plan", plan, "--cluster", PLACE, "--steps", str(steps), "--seed", str(SEED), "--out", str(out))
    return [sys.executable, "-m", "partita", "train", *given, "--json", *more]


def train(
    plan: str, out: Path, *, resume: bool = False, kill: str = "", steps: int = STEPS, crews: Crews | None = None
) -> tuple[int, dict[str, Any]]:
    """The exit code and what is answered, by the verb in this process; by workers that are there already if `crews`
    has them."""
    with pytest.MonkeyPatch.context() as patch:
        if kill:
            patch.setenv("KILL", kill)
        if crews:
            patch.setattr(launched, "Rehearsal", lambda *given, **order: nullcontext(crews(TASK, PLACE)))
        cluster = api.cluster_of(PLACE)
        keep: dict[str, Any] = {"out": str(out), "checkpoint_every": EVERY, "resume": resume}
        try:
            done = api.train(TASK, plan, cluster, steps=steps, seed=SEED, **keep)
        except PartitaError as error:
            return error.exit_code, {"error": str(error)}
    assert done is not None
    return 0, {"loss": done.loss, "final_loss": done.final_loss, "notes": list(done.notes)}


def weights(out: Path) -> dict[str, bytes]:
    """The trained tensors, as bytes."""
    return {name: tensor.numpy().tobytes() for name, tensor in load_file(out / "model.safetensors").items()}


@dataclass
class Drill:
    """Unbroken runs by plan, each made once."""

    place: Path
    crews: Crews
    ends: dict[str, tuple[dict[str, bytes], Any]] = field(default_factory=dict)

    def unbroken(self, plan: str) -> tuple[dict[str, bytes], Any]:
        if plan not in self.ends:
            out = self.place / str(len(self.ends))
            code, body = train(plan, out, crews=self.crews)
            assert code == 0, body
            self.ends[plan] = weights(out), losses(body)
        return self.ends[plan]

    def kill(self, plan: str, where: str, out: Path, crews: Crews | None = None) -> None:
        """Kill a run, go on with it, by new workers unless `crews` has some, and compare."""
        code, body = train(plan, out, kill=where)
        rank = where.partition(":")[0]
        assert code == 3, (where, body)
        assert f"rank {rank} was killed by SIGKILL" in body["error"]
        for path in [*committed(out)][:1]:
            assert body["error"].endswith(f"; its newest checkpoint is {path}; --resume goes on from there")
        code, body = train(plan, out, resume=True, crews=crews)
        assert code == 0, (where, body)
        assert (weights(out), losses(body)) == self.unbroken(plan), where


def losses(body: dict[str, Any]) -> list[tuple[int, float]]:
    return [(step, loss) for step, _, loss in body["loss"]]


@pytest.fixture(scope="module")
def drill(crews: Crews, tmp_path_factory: pytest.TempPathFactory) -> Drill:
    return Drill(tmp_path_factory.mktemp("unbroken"), crews)


def a_place(plan: str, draw: random.Random) -> str:
    """A rank and one of the instructions that it carries out, or one of the files that it writes."""
    graph, cluster = api.graph_of(api.load(TASK)), api.cluster_of(PLACE)
    made = api.plan_of(plan, graph, cluster)
    parts = legs(graph, made, cluster, STEPS)
    rank = draw.randrange(last_program(graph, made, cluster).size)
    if draw.random() < 0.2:
        return f"{rank}:save:{draw.randrange(1, STEPS // EVERY * (2 if rank == 0 else 1))}"
    count = sum(leg.rounds * len(leg.program.role_of[rank].instructions) for leg in parts)
    return f"{rank}:act:{draw.randrange(1, count + 1)}"


@pytest.mark.parametrize(
    ("plan", "where"),
    [("pipe_sgd(staleness=2)", "1:act:70"), pytest.param("ps_sync", "0:save:4", marks=pytest.mark.slow)],
    ids=["step", "save"],
)
def test_a_killed_run_goes_on(drill: Drill, plan: str, where: str, tmp_path: Path) -> None:
    drill.kill(plan, where, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", KILLS)
def test_runs_killed_anywhere_go_on(drill: Drill, number: int, tmp_path: Path) -> None:
    plan = PLANS[number % len(PLANS)]
    drill.kill(plan, a_place(plan, random.Random(number)), tmp_path, drill.crews)


@pytest.mark.parametrize(
    ("plan", "number"),
    [
        ("pipe_sgd(staleness=2)", signal.SIGTERM),
        pytest.param("local_sgd(period=2)", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("ddp", signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_a_stopped_run_goes_on(plan: str, number: signal.Signals, tmp_path: Path) -> None:
    """The signal comes at some step; a checkpoint of it is there, though none was asked for yet."""
    out = tmp_path / "run"
    begun = subprocess.Popen(
        words(plan, out, "--checkpoint-every", "5", steps=10**6), cwd=ROOT, env=os.environ | {"SLOW": "0.002"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        end = time.monotonic() + 60
        while not (out / "checkpoints/step-5/manifest.json").exists() and not (out / "checkpoints/step-6").exists():
            assert time.monotonic() < end
            assert begun.poll() is None, begun.communicate()
            time.sleep(0.02)
        begun.send_signal(number)
        if number == signal.SIGHUP:  # a shell that goes passes it on, and the kernel sends it once more
            time.sleep(0.05)
            begun.send_signal(number)
        said, _ = begun.communicate(timeout=30)
    finally:
        begun.kill()
    assert begun.returncode == 128 + number
    error = json.loads(said)["error"]
    step = int(error.removeprefix("stopped after ").partition(" ")[0])
    assert f"its newest checkpoint is {out}/checkpoints/step-{step}; --resume goes on from there" in error
    code, body = train(plan, out, resume=True, steps=step + 4)
    assert code == 0, body
    assert f"going on from step {step} of" in body["notes"][0]
    code, unbroken = train(plan, tmp_path / "unbroken", steps=step + 4)
    assert (code, losses(body)) == (0, losses(unbroken))
    assert weights(out) == weights(tmp_path / "unbroken")


def under_way(plan: str, out: Path, slow: float, step: int) -> subprocess.Popen[str]:
    """A run of many steps that has come to the checkpoint of a step; a sample takes `slow` seconds to load."""
    begun = subprocess.Popen(
        words(plan, out, "--checkpoint-every", str(step), steps=10**6), cwd=ROOT, env=os.environ | {"SLOW": str(slow)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    end = time.monotonic() + 60
    while not (out / f"checkpoints/step-{step}/manifest.json").exists():
        if time.monotonic() > end or begun.poll() is not None:
            begun.kill()
            pytest.fail(str(begun.communicate()))
        time.sleep(0.02)
    return begun


@pytest.mark.slow
def test_a_run_all_of_whose_ranks_die_goes_on(drill: Drill, tmp_path: Path) -> None:
    """FAULTS 12: SIGKILL to every one at the same moment; the launcher ends with 3, and nothing is lost before it."""
    plan, out = "pipe_sgd(staleness=2)", tmp_path / "run"
    begun = under_way(plan, out, 0.02, EVERY)
    try:
        for worker in workers_of(begun.pid).values():
            worker.kill()
        said, _ = begun.communicate(timeout=20)
    finally:
        begun.kill()
    assert begun.returncode == 3
    found = max(int(path.parent.name.partition("-")[2]) for path in out.glob("checkpoints/*/manifest.json"))
    where = f"; its newest checkpoint is {out}/checkpoints/step-{found}; --resume goes on from there"
    error = json.loads(said)["error"]
    assert re.match(r"rank \d was killed by SIGKILL", error)
    assert where in error
    code, body = train(plan, out, resume=True, steps=found + EVERY)
    assert code == 0, body
    assert f"going on from step {found} of" in body["notes"][0]
    code, unbroken = train(plan, tmp_path / "unbroken", steps=found + EVERY)
    assert (code, losses(body), weights(out)) == (0, losses(unbroken), weights(tmp_path / "unbroken"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_a_run_at_once(
    number: signal.Signals, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """FAULTS 14: in a step that takes two seconds; the last checkpoint is there."""
    begun = under_way("ddp", tmp_path, 0.5, 1)
    processes = [*workers_of(begun.pid).values()]
    try:
        begun.send_signal(number)
        time.sleep(0.2)
        before = time.monotonic()
        begun.send_signal(number)
        begun.communicate(timeout=10)
    finally:
        begun.kill()
    seconds = time.monotonic() - before
    record_property("seconds", round(seconds, 2))
    assert begun.returncode == 128 + number
    assert seconds < 1.5
    assert not psutil.wait_procs(processes, 2.0)[1]
    code, body = train("ddp", tmp_path, resume=True, steps=4)
    assert code == 0, body
    assert "going on from step" in body["notes"][0]


def test_a_step_is_not_saved_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that comes during a save ends the run at the step that was just saved; a save that failed is tried
    again."""
    graph, failures = two_layers(), ["no space", "", "never asked"]
    plan = call("ddp", graph, cluster_of(2))
    for name in ("held", "manifest_of"):
        monkeypatch.setattr(execution, name, lambda *given, **named: None)
    monkeypatch.setattr(execution, "save_together", lambda *given: (failures.pop(0), given[-2]))
    monkeypatch.setattr(execution.Execution, "hold_together", lambda self, rank: None)
    heard, rank = list[dict[str, Any]](), Mock(spec=Rank, rank=0, program=Mock())
    session, job = Mock(spec=Session, task=None, graph=graph, seed=0), Job(plan, 4, out=str(tmp_path))
    going = execution.Execution(session, job, heard.append, None, 0.0, step=2)
    for _ in range(3):
        going.keep_checkpoint(rank, 2, 0)
    assert failures == ["never asked"]
    assert [event["note"] for event in heard] == [
        "the checkpoint of step 2 was not written (no space); older ones stay"
    ]


def test_a_slow_disk_is_not_a_rank_that_hangs(tmp_path: Path) -> None:
    """One rank writes for longer than the others wait for a message, and than the launcher for a word."""
    task, cluster = f"{Path(__file__).parent / 'slow_disk.py'}:slow_disk", api.cluster_of("local:2")
    graph, heard = api.graph_of(task), list[str]()
    with Rehearsal(task, graph, cluster, timeout=SECONDS / 3, tell=heard.append) as crew:
        crew.train(api.plan_of("ddp", graph, cluster), steps=2, keep=SavePolicy(str(tmp_path), 2))
    assert [path.name for path in committed(tmp_path)] == ["step-2"]
    assert "ddp: writing the checkpoint of step 2" in heard


def test_losses_of_unequal_parts_go_on(crews: Crews, tmp_path: Path) -> None:
    """Each rank's part and its weight, once more joined from a checkpoint of a checkpoint."""
    crew, run = crews("tests/runtime/padded.py:padded", PLACE), tmp_path / "run"
    plan = api.plan_of("pipe_sgd", crew.graph, crew.cluster)
    unbroken = crew.train(plan, steps=6, keep=SavePolicy(str(tmp_path / "unbroken")))
    crew.train(plan, steps=2, keep=SavePolicy(str(run), 2))
    for since in (2, 4):
        place = str(place_of(run, since))
        again = crew.train(plan, steps=since + 2, keep=SavePolicy(str(run), 2), resume=place, since=since)
    assert [row[::2] for row in again.loss] == [row[::2] for row in unbroken.loss]
    assert weights(tmp_path / "run") == weights(tmp_path / "unbroken")


@pytest.mark.slow
def test_ranks_of_torchrun_go_on(drill: Drill, tmp_path: Path) -> None:
    """Another rank's death ends them; started again, they agree on where to go on. A bad directory ends all with 2."""
    plan = "pipe_sgd(staleness=2)"
    runner = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(SIZE)]

    def run(*more: str, kill: str = "") -> tuple[int, str]:
        command = runner + words(plan, tmp_path, "--checkpoint-every", str(EVERY), *more)[1:]
        env = os.environ | {"OMP_NUM_THREADS": "1"} | ({"KILL": kill} if kill else {})
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr

    assert run(kill="1:act:60")[0] != 0
    code, said = run("--resume")
    assert code == 0, said
    assert "going on from step" in said
    assert weights(tmp_path) == drill.unbroken(plan)[0]
    assert "give --resume to go on with it" in run()[1]


@pytest.mark.slow
def test_ranks_that_nobody_watches_miss_one_that_dies_in_a_checkpoint(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    env = os.environ | {"WORLD_SIZE": str(SIZE), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "KILL": "1:save:1"}
    command = words("ddp", tmp_path, "--checkpoint-every", str(EVERY), "--timeout", "5")
    started = [
        subprocess.Popen(command, cwd=ROOT, env=env | {"RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(SIZE)
    ]
    said = [each.communicate(timeout=120)[1] for each in started]
    assert [each.returncode for each in started] == [3, -signal.SIGKILL, 3], said
    assert all("rank 1 did not come to where all ranks meet" in said[rank] for rank in (0, 2))


@pytest.mark.slow
def test_a_finished_run_answers_again(tmp_path: Path) -> None:
    code, body = train("single", tmp_path, resume=True)
    assert code == 0
    assert body["notes"] == [f"no checkpoint in {tmp_path}: starting at step 0"]
    assert train("single", tmp_path, resume=True) == (0, body | {"notes": [f"the run in {tmp_path} is finished"]})
    assert train("single", tmp_path)[0] == 2
