"""What commands say of machines to people: units, not Python's."""

from __future__ import annotations

from dataclasses import asdict

from partita.api import machines
from partita.cost.wiring import Wiring
from partita.report.answers import doctor_answer, probe_answer


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
