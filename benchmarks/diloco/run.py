"""DiLoCo beside exact all-reduce on bytes-gpt: samples a second on slow links, held-out loss after equal tokens.

    run.py batches      exact training at each batch size, each at its best rate: which batch would a user choose?
    run.py gap          DiLoCo's held-out loss beside the exact one's, each at its best of six settings, paired seeds
    run.py speed        samples a second of both, in turns, and what was predicted
        [--batch 4] [--knobs period=100] [--samples 4800] [--seeds 5] [--cluster lab-4x100m] [--repeat 7]
        [--out runs.jsonl]

Losses are of four processes without slow links, for neither plan's loss depends on how fast messages are. Each such run
is a line of JSON in --out, and is not done again: call it until it prints its table.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, median

from tasks import BATCHES

from partita import api
from partita.lab.rehearsal import Rehearsal
from partita.lowering.lower import lower
from partita.runtime.checkpoint import Keep
from partita.simulator.simulate import simulate

HERE = Path(__file__).resolve().parent
RATES = (0.25, 0.5, 1, 2, 4, 8)  # times the task's own 0.001
OUTER = ((0.9, 0.5), (0.9, 1), (0.9, 2), (0.5, 1), (0.5, 2), (0.5, 4))  # outer momentum, times the task's rate
TUNING, DRAWS = 1000, 10_000  # the seed that settings are chosen with; bootstrap draws


def task_of(batch: int) -> str:
    return f"{HERE / 'tasks.py'}:batch_{batch}"


def exact() -> list[str]:
    return [f"ddp(rate_scale={rate})" for rate in RATES]


def loose(knobs: str) -> list[str]:
    return [f"diloco({knobs},momentum={momentum},rate_scale={rate})" for momentum, rate in OUTER]


class Book:
    """The runs that are done, (batch, samples, seed, plan) -> held-out loss, in a file of lines of JSON."""

    def __init__(self, place: Path) -> None:
        self.place = place
        lines = place.read_text().splitlines() if place.exists() else []
        self.found = {tuple(key): loss for key, loss in map(json.loads, lines)}

    def losses(self, batch: int, samples: int, seed: int, plans: Sequence[str]) -> dict[str, float]:
        missing = [plan for plan in plans if (batch, samples, seed, plan) not in self.found]
        for plan, loss in trained(batch, samples, seed, missing) if missing else ():
            key = batch, samples, seed, plan
            self.found[key] = loss
            with self.place.open("a") as file:
                file.write(f"{json.dumps([key, loss])}\n")
            print(key, round(loss, 4), flush=True)
        return {plan: self.found[batch, samples, seed, plan] for plan in plans}


def trained(batch: int, samples: int, seed: int, plans: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Held-out loss of each plan after so many samples."""
    task, cluster = task_of(batch), api.cluster_of("local:4")
    graph = api.graph_of(task)
    with Rehearsal(task, graph, cluster, seed=seed) as crew:
        for plan in plans:
            made = api.plan_of(plan, graph, cluster)
            yield plan, crew.train(made, steps=samples // batch, keep=Keep("")).final_loss


def best(losses: dict[str, float]) -> str:
    """The plan with the least loss, of those that did not diverge."""
    return min((plan for plan, loss in losses.items() if loss == loss), key=losses.__getitem__)


def batches(book: Book, samples: int) -> None:
    print(f"held-out loss of exact training after {samples} samples of 64 bytes, one seed")
    for batch in BATCHES:
        losses = book.losses(batch, samples, TUNING, exact())
        print(f"batch {batch:3d}: {losses[best(losses)]:.4f} by {best(losses)}", flush=True)


def gap(book: Book, batch: int, knobs: str, samples: int, seeds: int) -> None:
    ours, theirs = (best(book.losses(batch, samples, TUNING, plans)) for plans in (loose(knobs), exact()))
    runs = [book.losses(batch, samples, seed, (theirs, ours)) for seed in range(seeds)]
    gaps = [run[ours] / run[theirs] - 1 for run in runs]
    draw = random.Random(0)
    means = sorted(mean(draw.choices(gaps, k=seeds)) for _ in range(DRAWS))
    for plan in (theirs, ours):
        print(f"{plan}: {', '.join(f'{run[plan]:.4f}' for run in runs)}; mean {mean(run[plan] for run in runs):.4f}")
    low, high = means[DRAWS // 40], means[-DRAWS // 40]
    print(f"gap {mean(gaps):+.2%} (95 % of bootstrap means of {seeds} pairs {low:+.2%} to {high:+.2%})", flush=True)


def speed(batch: int, knobs: str, name: str, repeat: int) -> None:
    task, cluster = task_of(batch), api.cluster_of(name)
    graph = api.graph_of(task)
    plans = {text: api.plan_of(text, graph, cluster) for text in ("ddp", f"diloco({knobs})")}
    with Rehearsal(task, graph, cluster) as crew:
        costs = crew.probe(list(plans.values()))
        said = {text: simulate(lower(graph, p, cluster)[-1].program, costs).step_seconds for text, p in plans.items()}
        was: dict[str, list[float]] = {text: [] for text in plans}
        for _ in range(repeat):
            for text, plan in plans.items():
                was[text].append(crew.measure(plan, steps=12, evaluate=False).timeline.step_seconds)
    for text in plans:
        low, middle, high = (batch / pick(was[text]) for pick in (max, median, min))
        print(f"{text}: {middle:.1f} samples a second ({low:.1f} to {high:.1f}), predicted {batch / said[text]:.1f}")
    first, last = plans
    print(
        f"diloco over ddp on {name}, {batch} samples a step: {median(was[first]) / median(was[last]):.1f}, "
        f"predicted {said[first] / said[last]:.1f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("batches", "gap", "speed"), nargs="?", default="speed")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--knobs", default="period=100")
    parser.add_argument("--samples", type=int, default=4800)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--cluster", default="lab-4x100m")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("runs.jsonl"))
    given = parser.parse_args()
    if given.what == "speed":
        speed(given.batch, given.knobs, given.cluster, given.repeat)
    elif given.what == "gap":
        gap(Book(given.out), given.batch, given.knobs, given.samples, given.seeds)
    else:
        batches(Book(given.out), given.samples)


if __name__ == "__main__":
    main()
