"""What computing takes more behind a wait is what it took, over all that there was to fetch again."""

from __future__ import annotations

import pytest

from partita.probes import disturbance
from partita.probes.disturbance import WAITS, cooling_of
from partita.simulator.cooling import FETCHED


@pytest.mark.parametrize("slope", [0.1, 0.0, -0.1])
def test_more_of_it_behind_longer_waits_and_never_less(monkeypatch: pytest.MonkeyPatch, slope: float) -> None:
    """Computing of three times what fetches most of it takes `slope` of each wait more."""
    now, waited, calls = [0.0], [0.0], list[str]()

    def sleep(seconds: float) -> None:
        waited[0] = seconds

    def compute() -> None:
        calls.append("compute")
        now[0] += 3 * FETCHED + slope * waited[0]

    monkeypatch.setattr(disturbance.time, "sleep", sleep)
    monkeypatch.setattr(disturbance.time, "thread_time", lambda: now[0])
    rows = cooling_of(compute, lambda: calls.append("other"))
    assert calls[::2] == ["other"] * len(calls[::2])
    assert [wait for wait, _ in rows] == list(WAITS)
    expected = [max(slope, 0.0) * wait for wait in WAITS]
    assert [more for _, more in rows] == pytest.approx(expected, rel=0.06, abs=1e-12)
