"""What commands say of machines to people: units, not Python's."""

from __future__ import annotations

from dataclasses import asdict, replace

from partita.api import machines
from partita.cost.wiring import Wiring
from partita.program.ledger import Merge
from partita.report.answers import comparison_answer, doctor_answer, probe_answer, verdict_answer
from partita.report.verdict import Verdict
from partita.report.words import findings
from tests.report.timelines import comparison


def test_this_machine_in_lines() -> None:
    answer = doctor_answer(machines.doctor())
    assert {line.partition(":")[0] for line in answer.text} >= {"python", "torch", "processor", "cores", "memory"}
    assert not any("{" in line or "[" in line for line in answer.text)
    assert answer.body["memory_bytes"] > 10**6


def test_measured_links_in_lines() -> None:
    wiring = asdict(Wiring(start=2e-4, message=3e-4, sent=0.25e-9, received=0.2e-9, reduced=0.5e-9, efficiency=0.94))
    answer = probe_answer({"cluster": "two", "bandwidth": 1.175e8, "wiring": wiring, "notes": ["a note"]})
    assert answer.text == (
        "two", "payload: 940 Mbit/s, 94% of the narrowest link", "latency of a message: 300 us",
        "core-seconds of its call: 200 us", "core-seconds of a GB: sent 250 ms, received 200 ms, reduced 500 ms",
        "a note",
    )  # fmt: skip


def test_one_device_has_no_links() -> None:
    answer = probe_answer({"cluster": "one", "bandwidth": None, "wiring": None, "notes": ["nothing to measure"]})
    assert answer.text == ("one", "nothing to measure")


def test_how_late_updates_are_is_said_of_plans_that_have_a_ledger() -> None:
    def late(versions: int) -> tuple[Merge, ...]:
        return tuple(Merge("b0", worker, turn, turn, turn + versions, 1) for turn in range(12) for worker in (0, 1))

    found = comparison()
    assert "versions late" not in " ".join(comparison_answer(found).text[2:3])
    first = found.rows[0]
    assert first.predicted
    assert first.measured
    row = replace(
        first, predicted=replace(first.predicted, ledger=late(2)), measured=replace(first.measured, ledger=late(3))
    )
    told = replace(found, rows=(row, *found.rows[1:]))
    sentence = "3.00 versions late on average, predicted 2.00 (distributions 1.00 apart)"
    assert any(sentence in str(part) for part in comparison_answer(told).text)
    assert any(sentence in finding.text for finding in findings(told) if finding.about == "Staleness")


def test_what_fp32_is_compared_with_is_said() -> None:
    found = Verdict(True, "exact", 1e-12, 1e-9, "one-process training", 1e-7, 2e-7)
    assert verdict_answer(found, "ddp").text == (
        "ddp is equal (exact): 1e-12 apart from one-process training, tolerance 1e-09",
        "in fp32 1e-07 apart; the serial training fed in two halves is 2e-07 from itself",
    )
