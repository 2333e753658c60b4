"""Orders of receives by what operators wait for, against all orders."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import permutations

import pytest

from partita.lowering.tictac import Needs, tac, tic


@dataclass(frozen=True)
class Operators:
    """Operators on one processor, in an order in which each follows what it reads: `seconds` of each, the receives that
    it waits for through all before it, and those before it."""

    seconds: tuple[float, ...]
    needs: tuple[frozenset[int], ...]
    before: tuple[tuple[int, ...], ...]
    transfers: tuple[float, ...]

    def grouped(self) -> Needs:
        found: dict[frozenset[int], float] = {}
        for needs, seconds in zip(self.needs, self.seconds, strict=True):
            found[needs] = found.get(needs, 0.0) + seconds
        return {needs: seconds for needs, seconds in found.items() if needs}

    def makespan(self, order: tuple[int, ...]) -> float:
        """Receives one after the other in this order; the processor takes whichever operator can begin first."""
        arrived, at = {}, 0.0
        for receive in order:
            at += self.transfers[receive]
            arrived[receive] = at
        ready = [max((arrived[r] for r in needs), default=0.0) for needs in self.needs]
        done: dict[int, float] = {}
        now = 0.0
        while len(done) < len(self.seconds):
            open = [o for o in range(len(ready)) if o not in done and all(b in done for b in self.before[o])]
            first = min(open, key=lambda o: (max(now, ready[o]), o))
            now = done[first] = max(now, ready[first]) + self.seconds[first]
        return now

    def best(self) -> float:
        return min(self.makespan(order) for order in permutations(range(len(self.transfers))))


def placed(places: tuple[int, ...]) -> tuple[int, ...]:
    """Receives in the order of their places, equal ones by number."""
    return tuple(sorted(range(len(places)), key=lambda r: (places[r], r)))


def drawn(seed: int) -> Operators:
    draw = random.Random(seed)
    receives, count = draw.randint(2, 6), draw.randint(3, 9)
    needs: list[frozenset[int]] = []
    before = []
    for o in range(count):
        those = tuple(b for b in range(o) if draw.random() < 0.3)
        own = frozenset(r for r in range(receives) if draw.random() < 0.3)
        needs.append(own.union(*(needs[b] for b in those)))
        before.append(those)
    seconds = tuple(draw.uniform(0.1, 2.0) for _ in range(count))
    transfers = tuple(draw.uniform(0.1, 2.0) for _ in range(receives))
    return Operators(seconds, tuple(needs), tuple(before), transfers)


def test_a_chain_is_received_as_forward_reads_it() -> None:
    """CS-04: up to ties, which forward's order breaks."""
    chain = {frozenset(range(i + 1)): 1.0 for i in range(6)}
    assert tic(chain, 6) == (0, 0, 1, 2, 3, 4)
    assert placed(tic(chain, 6)) == tuple(range(6))


def test_two_branches_in_the_order_made_by_hand() -> None:
    """CS-04: the branch that joins two comes before the one that joins three, whichever was written first; what is
    needed alone, and never with others, comes last."""
    branches = {frozenset({0, 1, 2}): 1.0, frozenset({3, 4}): 1.0, frozenset({0, 1, 2, 3, 4}): 1.0, frozenset({5}): 1.0}
    assert placed(tic(branches, 6)) == (3, 4, 0, 1, 2, 5)


@pytest.mark.parametrize("seed", range(40))
def test_of_two_receives_the_better_order_is_found(seed: int) -> None:
    """CS-05: operators of one, of the other and of both."""
    draw = random.Random(seed)
    seconds = tuple(draw.uniform(0.1, 2.0) for _ in range(3))
    transfers = (draw.uniform(0.1, 2.0), draw.uniform(0.1, 2.0))
    two = Operators(seconds, (frozenset({0}), frozenset({1}), frozenset({0, 1})), ((), (), (0, 1)), transfers)
    assert two.makespan(placed(tac(two.grouped(), transfers))) == pytest.approx(two.best())


def test_orders_by_timing_are_near_the_best_of_all() -> None:
    """CS-05 over 200 drawn graphs: 5 % from the best of all orders on average, and no worse than by counting. How often
    the best itself is found is said when this fails."""
    graphs = [drawn(seed) for seed in range(200)]
    best = [graph.best() for graph in graphs]
    by_time = [graph.makespan(placed(tac(graph.grouped(), graph.transfers))) for graph in graphs]
    by_count = [graph.makespan(placed(tic(graph.grouped(), len(graph.transfers)))) for graph in graphs]
    equal = sum(found <= least * (1 + 1e-9) for found, least in zip(by_time, best, strict=True))
    far = sum(found / least for found, least in zip(by_time, best, strict=True)) / len(graphs)
    assert far <= 1.05, f"{far:.3f}, equal to the best in {equal} of 200"
    assert sum(by_time) <= sum(by_count), f"equal to the best in {equal} of 200"
