"""What to keep and what to compute again: an integer programme over a step's forward values under a limit of bytes.

    least  sum of seconds(o) r(o)                                r: operator o is computed again; m: memory v is kept
    m(v) + r(o) >= 1          backward reads v, which o makes
    m(v) + r(u) >= r(o)       o reads v, which u of the same block makes; of another block: m(v) >= r(o)
    t(v) >= r(o) - m(v)       backward reads v, which is computed again in its block's turn
    (f - 1) kept + kept up to block g + made again in g + gradients in g <= limit       for every block g

With f microbatches in flight all but one keep everything. A view keeps the memory that it looks at. The limit is a
bound from above of what a block's turn holds: `budget` finds the limit whose exact peak fits (Chen et al. 2016; Jain et
al. 2020).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import highspy
import numpy as np

from partita.arrays import Reals
from partita.graph.cuts import Liveness, liveness
from partita.graph.graph import Graph
from partita.graph.homes import Homes
from partita.graph.recompute import recomputable
from partita.units import Seconds

GAP = 5e-3  # of the optimum
NODES = 200


@dataclass(frozen=True)
class Trade:
    """A step of `count` samples: `seconds` of each operator by name, the `block` of each forward operator, and how many
    microbatches are in `flight`."""

    graph: Graph
    seconds: Mapping[str, Seconds]
    block: Sequence[int]
    count: int
    flight: int = 1

    @cached_property
    def lives(self) -> Liveness:
        """The lifetimes of the step's values."""
        return liveness(self.graph)

    @cached_property
    def sizes(self) -> Reals:
        """Bytes of each value of the step."""
        return np.array([float(self.graph.tensor(v).size(self.count)) for v in self.lives.values])

    @cached_property
    def free(self) -> frozenset[str]:
        """What may be computed again: not what every stage makes for itself anyway."""
        return frozenset(name for name in recomputable(self.graph) if "@" not in name)

    @property
    def own(self) -> frozenset[str]:
        """The forward operators of this step."""
        return frozenset(o.name for o in self.graph.operators[: self.graph.forward_length])

    @cached_property
    def working(self) -> Reals:
        """By block, the most bytes that backward of its operators holds besides forward's values."""
        graph, lives = self.graph, self.lives
        rises = np.zeros(len(graph.operators) + 2)
        ends: dict[int, int] = {}
        for number, root in enumerate(lives.roots):
            ends[root] = max(ends.get(root, -1), lives.last[number])
        for number, root in enumerate(lives.roots):
            if root == number and lives.made[number] >= graph.forward_length:
                rises[lives.made[number]] += self.sizes[number]
                rises[max(ends[number], lives.made[number]) + 1] -= self.sizes[number]
        during, found = np.cumsum(rises), np.zeros(max(self.block) + 1)
        homes = Homes(graph).home
        for place in range(graph.forward_length, len(graph.operators)):
            at = self.block[min(homes[place], graph.forward_length - 1)]
            found[at] = max(found[at], during[place])
        return found

    def best(self, limit: float) -> frozenset[str] | None:
        """The operators to compute again, of least seconds together; None where nothing keeps to `limit` bytes."""
        return _Model(self, limit).solved()


class _Model:
    """The rows and columns of one programme; columns are r by operator, then m and t by value, then sums by block."""

    def __init__(self, trade: Trade, limit: float) -> None:
        self.trade, self.limit, graph, lives = trade, limit, trade.graph, trade.lives
        self.cost: list[float] = []
        self.upper: list[float] = []
        self.lower: list[float] = []
        self.whole: list[bool] = []
        self.rows: list[tuple[float, float, list[tuple[int, float]]]] = []
        self.place = {ref: number for number, ref in enumerate(lives.values)}
        self.again: dict[str, int] = {}
        self.kept: dict[int, int] = {}
        self.anew: dict[int, int] = {}
        for operator in graph.operators[: graph.forward_length]:
            if operator.name in trade.free:
                price = trade.seconds[operator.name.split("@")[0]]
                self.again[operator.name] = self._column(max(price, 1e-9), whole=True)
        self._reads()
        self._blocks()

    def _column(self, cost: float = 0.0, *, whole: bool = False, bound: float = 1.0) -> int:
        self.cost.append(cost)
        self.lower.append(0.0)
        self.upper.append(bound)
        self.whole.append(whole)
        return len(self.cost) - 1

    def _memory(self, number: int) -> int:
        """The column that says whether the memory of a value is kept."""
        root = self.trade.lives.roots[number]
        if root not in self.kept:
            self.kept[root] = self._column()
        return self.kept[root]

    def _reads(self) -> None:
        graph, lives, block = self.trade.graph, self.trade.lives, self.trade.block
        direct = {ref for o in graph.operators[graph.forward_length :] for ref in o.reads()}
        for number, ref in enumerate(lives.values):
            if ref in direct and lives.made[number] < graph.forward_length and lives.roots[number] >= 0:
                memory, again = self._memory(number), self.again.get(ref.name)
                if again is None:
                    self.lower[memory] = 1.0
                    continue
                self.rows.append((1.0, np.inf, [(memory, 1.0), (again, 1.0)]))
                anew = self.anew.setdefault(lives.roots[number], -1)
                if anew < 0:
                    anew = self.anew[lives.roots[number]] = self._column()
                self.rows.append((0.0, np.inf, [(anew, 1.0), (again, -1.0), (memory, 1.0)]))
        for place, operator in enumerate(graph.operators[: graph.forward_length]):
            for ref in operator.reads() if operator.name in self.again else ():
                number = self.place.get(ref, -1)
                if number < 0 or lives.roots[number] < 0:
                    continue
                row = [(self._memory(number), 1.0), (self.again[operator.name], -1.0)]
                near = block[lives.made[number]] == block[place]
                row += [(self.again[ref.name], 1.0)] if near and ref.name in self.again else []
                self.rows.append((0.0, np.inf, row))

    def _blocks(self) -> None:
        lives, block, sizes = self.trade.lives, self.trade.block, self.trade.sizes / max(self.limit, 1.0)
        count = max(block) + 1
        kept: list[list[tuple[int, float]]] = [[] for _ in range(count)]
        anew: list[list[tuple[int, float]]] = [[] for _ in range(count)]
        for root, column in self.kept.items():
            kept[block[lives.made[root]]].append((column, -sizes[root]))
        for root, column in self.anew.items():
            anew[block[lives.made[root]]].append((column, sizes[root]))
        sums = [self._column(bound=np.inf) for _ in range(count)]
        for g in range(count):
            before = [(sums[g - 1], -1.0)] if g else []
            self.rows.append((0.0, np.inf, [(sums[g], 1.0), *before, *kept[g]]))
        for g in range(count):
            room = 1.0 - self.trade.working[g] / max(self.limit, 1.0)
            others = [(sums[-1], self.trade.flight - 1.0)] if self.trade.flight > 1 else []
            row = dict(others)
            row[sums[g]] = row.get(sums[g], 0.0) + 1.0
            self.rows.append((-np.inf, room, [*row.items(), *anew[g]]))

    def solved(self) -> frozenset[str] | None:
        lp: Any = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.cost), len(self.rows)
        lp.col_cost_ = np.array(self.cost) / max(self.cost)
        lp.col_lower_, lp.col_upper_ = np.array(self.lower), np.array(self.upper)
        lp.row_lower_ = np.array([low for low, _, _ in self.rows])
        lp.row_upper_ = np.array([high for _, high, _ in self.rows])
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.cumsum([0, *(len(row) for _, _, row in self.rows)])
        lp.a_matrix_.index_ = np.array([column for _, _, row in self.rows for column, _ in row])
        lp.a_matrix_.value_ = np.array([value for _, _, row in self.rows for _, value in row])
        kinds = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
        lp.integrality_ = [kinds[0] if whole else kinds[1] for whole in self.whole]
        solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        for option, value in (("output_flag", False), ("mip_rel_gap", GAP), ("mip_max_nodes", NODES)):
            solver.setOptionValue(option, value)
        solver.passModel(lp)
        solver.run()
        if solver.getInfo().primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return None
        values = solver.getSolution().col_value
        return frozenset(name for name, column in self.again.items() if values[column] > 0.5)
