"""A card's two clocks, on a made-up card: every call takes its stream so long, and launching it takes the host."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from partita.cost.touch import Touch
from partita.cost.workspaces import NONE
from partita.lab.launching import launches_of, with_launching
from partita.lab.replies import TOUCHES, workspaces_of
from partita.probes import workspace_bytes
from partita.probes.bench import HOST, LONGEST, SPARE, AcceleratorTimer, benches_of
from partita.probes.stretches import Made, Stretch
from partita.probes.timing import cold_seconds
from partita.simulator.simulate import simulate
from tests.priced import priced, whole_cores
from tests.programs import program_by
from tests.small import two_layers

GAP = 2e-6


class Stream:
    """The time of a stream; what is launched while it sleeps follows without a gap."""

    def __init__(self) -> None:
        self.now, self.launched, self.slept, self.last = 0.0, 0, 0, 0.0

    def sleep(self, ticks: int) -> None:
        self.last = ticks / 2e9
        self.now, self.slept = self.now + self.last, self.slept + 1

    def call(self, seconds: float) -> Callable[[], None]:
        def run() -> None:
            self.now, self.launched = self.now + seconds, self.launched + 1

        return run


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    made = Stream()

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.when = 0.0

        def record(self) -> None:
            made.now += GAP
            self.when = made.now

        def elapsed_time(self, other: Any) -> float:
            return (other.when - self.when) * 1e3

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", made.sleep)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return made


def test_a_card_tells_what_its_stream_took(stream: Stream) -> None:
    card = AcceleratorTimer("cuda:0")
    spent = [k * 1e-5 for k in range(150)]
    assert card.each([stream.call(seconds) for seconds in spent]) == pytest.approx(spent, abs=1e-9)
    assert stream.launched == 150
    assert stream.slept >= 4  # once for the gap, then for 64, 64 and 22 calls


def test_calls_that_wait_for_the_card_do_not_make_it_sleep_ever_longer(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    card, asked = AcceleratorTimer("cuda:0"), count()
    monkeypatch.setattr("time.perf_counter", lambda: stream.last if next(asked) % 2 else 0.0)
    for _ in range(20):
        card.each([stream.call(1e-5)] * 64)
    assert stream.last <= 1.5 * LONGEST * 64 + SPARE


def test_launching_is_of_the_host_alone(stream: Stream) -> None:
    found = AcceleratorTimer("cuda:0").launches([stream.call(3.0)] * 5)
    assert len(found) == 5
    assert all(0.0 <= seconds < 0.1 for seconds in found)


def test_launching_is_timed_behind_other_launches_and_behind_nothing(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call takes 5 right behind a wait for the card and 2 behind another one; `waiting` waits for all before it."""
    clock, queued = [0.0], [0]

    def call() -> None:
        clock[0] += 2.0 if queued[0] else 5.0
        queued[0] += 1

    def waiting() -> None:
        clock[0] += 1.0 + 10.0 * queued[0]

    monkeypatch.setattr("time.thread_time", lambda: clock[0])
    card = AcceleratorTimer("cuda:0")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: queued.__setitem__(0, 0))
    assert card.launches([call, call, waiting, call]) == [5.0, 2.0, 1.0, 2.0]


def test_a_processor_has_one_bench_and_a_card_two(stream: Stream) -> None:
    assert benches_of("cpu") == (HOST,)
    own, launching = benches_of("cuda:0")
    assert own.device == launching.device == "cuda:0"
    assert own.ring > HOST.ring


def test_a_cold_call_on_a_bench_is_timed_between_others(stream: Stream) -> None:
    bench = replace(HOST, each=AcceleratorTimer("cuda:0").each)
    assert cold_seconds(stream.call(1e-3), bench) == pytest.approx(1e-3, abs=1e-9)


def test_a_workspace_is_what_goes_beyond_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call keeps 8 bytes of results, has taken 100 more while it ran, and the very first 7 for good."""
    graph = two_layers()
    alone = [Stretch(graph, i, i + 1) for i in range(3)]
    names = [one.kinds[0] for one in alone]
    now, highest = [0], [0]

    def call(environment: Any, leaves: Any) -> None:
        now[0] += 8 + 7 * (not now[0])
        highest[0] = now[0] + 100

    monkeypatch.setattr(workspace_bytes, "make", lambda one, _: [Made(one, one.places, (call,), {}, ({},), 1)])
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None, raising=False)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: now[0])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: highest[0])
    found, kept = workspace_bytes.workspace_bytes(alone, "cpu")
    assert found == dict.fromkeys(names, 100)
    assert kept == 7 + 2 * 8 * len(alone)
    both = workspaces_of([{"workspaces": (found, 5)}, {"workspaces": ({names[0]: 200}, 6)}], NONE)
    assert (both.operators[names[0]], both.operators[names[1]], both.kept) == (200, 100, 6)


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_a_step_takes_the_longer_of_the_card_and_its_host(factor: float) -> None:
    """Launching that takes half of the work is hidden, three times of it binds."""
    graph, machine = two_layers(), whole_cores(1, 1e9)
    costs = replace(priced(graph, machine, [8]), launching=None)
    program = program_by("single", graph, machine)
    alone = simulate(program, costs).step_seconds
    nothing = dict.fromkeys((*TOUCHES, "load"), (0.0, 0.0, 0.0))
    touches = [{"launching": [{**nothing, "instruction": 0.0}]}]
    launches = {name: factor * seconds for name, seconds in costs.operators.items()}
    both = with_launching(costs, launches, touches)
    assert both.launching is not None
    host = simulate(program, both.launching).step_seconds
    assert simulate(program, both).step_seconds == pytest.approx(max(alone, host))
    assert (host > alone) == (factor > 1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device, and would be measured on")
@pytest.mark.parametrize(("words", "code"), [([], 0), (["--only", "speed"], 2)])
def test_without_a_card_the_benchmark_says_so(words: list[str], code: int) -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "gpu" / "run.py"
    done = subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, "")
    assert "sees no CUDA device on this machine" in done.stdout
    assert done.stdout.count("\n") == 1


def test_processors_have_no_launching() -> None:
    costs = priced(two_layers(), whole_cores(1, 1e9), [8])
    assert launches_of([{"launching": []}]) == {}
    assert with_launching(costs, {}, [{"launching": []}]) is costs
    assert launches_of([{"launching": [{"a": 1.0, "b": 2.0}]}, {"launching": [{"a": 3.0}]}]) == {"a": 2.0, "b": 2.0}
    assert Touch(0.0, 0.0, 0.0).of(5) == 0.0
