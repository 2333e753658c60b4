"""A comparison in sentences: what came out, why, how good the prediction was, and what to be careful about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import expm1, isfinite, log
from statistics import fmean
from typing import Final

from partita.program.timeline import Timeline
from partita.report.comparison import Comparison, Row, binding, errors_of, late, learned, order, seconds_of
from partita.units import show_bytes, show_seconds

CLASSES: Final = {
    "delayed": "gradients are applied late, as in a named serial recurrence",
    "lossy": "part of what is computed or sent is rounded or left out",
    "consensus": "replicas are trained apart and averaged",
    "racy": "the order of arrival decides, so that no two runs are alike",
}
GUESSES: Final = {"sum": "computing plus communication", "max": "the larger of the two"}


@dataclass(frozen=True, slots=True)
class Finding:
    """A few sentences under one word."""

    about: str
    text: str


def findings(comparison: Comparison) -> tuple[Finding, ...]:
    """What a reader should know before any table, in the order of importance."""
    rows = comparison.rows
    parts = (
        ("Result", _result(rows)), ("Limit", _limit(rows)), ("Prediction", _prediction(rows)),
        ("Memory", _memory(rows)), ("Learning", _learning(rows)), ("Not exact", _classes(rows)),
        ("Staleness", [f"{said}." for said in late(rows)]),
        ("Not run", _refused(rows)), ("Caveats", _caveats(comparison)),
    )  # fmt: skip
    return tuple(Finding(about, " ".join(text)) for about, text in parts if text)


def naive_ratio(row: Row, name: str) -> float | None:
    """ln(guess / measured) of a step, as a simpler predictor guesses it; None where either is missing."""
    guess, measured = row.naive.get(name, 0.0), row.measured.step_seconds if row.measured else 0.0
    return log(guess / measured) if guess > 0 and measured > 0 else None


def _best(rows: Sequence[Row]) -> tuple[tuple[Row, Timeline], ...]:
    """Rows with the Timeline that counts, fastest first; measured ones only, where any plan was measured."""
    ran = [row for row in rows if row.measured] or rows
    timed = [(row, t) for row in ran if (t := row.measured or row.predicted) is not None]
    return tuple(sorted(timed, key=lambda each: each[1].step_seconds))


def _result(rows: Sequence[Row]) -> list[str]:
    timed = _best(rows)
    if not timed:
        return ["No plan could be timed."]
    row, best = timed[0]
    spread = f" ({show_seconds(best.low)} to {show_seconds(best.high)} in {best.n} repeats)" if best.n > 1 else ""
    how = "took" if best.origin == "measured" else "is predicted to take"
    if len(timed) == 1:
        return [f"{row.plan} {how} {show_seconds(best.step_seconds)} a step{spread}."]
    text = (
        f"{row.plan} is fastest: it {how} {show_seconds(best.step_seconds)} a step{spread}, {_times(best, *timed[1])}"
    )
    if len(timed) > 2:
        text += f" and {_times(best, *timed[-1])}"
    said = [f"{text}."]
    if (second := timed[1][1]).n > 1 < best.n and second.low <= best.high:
        said.append(f"The ranges of {row.plan} and {timed[1][0].plan} overlap, so which of them is faster is open.")
    return said


def _times(best: Timeline, row: Row, other: Timeline) -> str:
    text = f"{other.step_seconds / best.step_seconds:.2f} times as fast as {row.plan}"
    if best.n < 2 or other.n < 2 or not best.low:
        return text
    return f"{text} ({other.low / best.high:.2f} to {other.high / best.low:.2f})"


def _limit(rows: Sequence[Row]) -> list[str]:
    timed = _best(rows)
    said = binding(timed[0][1]) if timed else []
    return [f"{sentence}." for sentence in said]


def _prediction(rows: Sequence[Row]) -> list[str]:
    errors = errors_of(rows)
    if not errors:
        return []
    worst, plan = errors[0]
    most = f", most for {plan} (ln p/m {worst:+.2f})" if len(errors) > 1 else ""
    mean = fmean(abs(ratio) for ratio, _ in errors)
    said = [
        f"Made before the runs, it missed the step by {expm1(mean):.0%} on average (mean |ln p/m| {mean:.3f}){most}."
    ]
    beside = []
    for name in dict.fromkeys(name for row in rows for name in row.naive):
        ratios = [abs(ratio) for row in rows if (ratio := naive_ratio(row, name)) is not None]
        if ratios:
            meaning = f" ({GUESSES[name]})" if name in GUESSES else ""
            beside.append(f"{name}{meaning} by {expm1(fmean(ratios)):.0%}")
    if beside:
        said.append(f"Simpler guesses from the same costs missed: {', '.join(beside)}.")
    return said + [f"{sentence}." for sentence in order(rows)]


def _memory(rows: Sequence[Row]) -> list[str]:
    peaks = [(max(t.memory), row.plan) for row, t in _best(rows) if t.memory]
    if not peaks:
        return []
    said = []
    if len(peaks) > 1:
        (least, plan), (most, other) = min(peaks), max(peaks)
        said.append(
            f"{plan} needs least, {show_bytes(least)} on its fullest rank; {other} needs most, {show_bytes(most)}."
        )
    pairs = [
        (max(row.predicted.memory), max(row.measured.memory)) for row in rows
        if row.predicted and row.measured and row.predicted.memory and row.measured.memory
    ]  # fmt: skip
    errors = [abs(predicted / measured - 1) for predicted, measured in pairs if measured]
    if errors:
        said.append(f"The predicted peak missed by {fmean(errors):.1%} on average, {max(errors):.1%} at most.")
    return said


def _learning(rows: Sequence[Row]) -> list[str]:
    final = [(row.final_loss, row.plan) for row in rows if row.final_loss is not None and isfinite(row.final_loss)]
    said = [f"{sentence}." for sentence in learned(rows)]
    if len(final) > 1:
        (least, one), (most, other) = min(final), max(final)
        taken = sorted({len(row.loss) for row in rows if row.final_loss is not None})
        after = "equally many steps" if len(taken) == 1 else f"{taken[0]} to {taken[-1]} steps (rounds are of several)"
        said.append(f"After {after} the loss is {least:.4g} ({one}) to {most:.4g} ({other}).")
    return said


def _classes(rows: Sequence[Row]) -> list[str]:
    loose = [name for name in CLASSES if any(row.semantics == name for row in rows)]
    said = [
        f"{name.capitalize()} ({CLASSES[name]}): {_list([row.plan for row in rows if row.semantics == name])}."
        for name in loose
    ]
    return [*said, "Judge such a plan by its loss as well as by its step."] if said else []


def _refused(rows: Sequence[Row]) -> list[str]:
    refused = [row.plan for row in rows if row.error]
    return [f"{_list(refused)}; Table 1 says why."] if refused else []


def _caveats(comparison: Comparison) -> list[str]:
    plans = {row.plan for row in comparison.rows}  # by whose names sentences may begin
    said = [f"{note}." if note.partition(": ")[0] in plans else _sentence(note) for note in comparison.notes]
    measured = [row.measured for row in comparison.rows if row.measured]
    if measured and all(timeline.n < 2 for timeline in measured):
        said.append("Each plan ran once, so there are no intervals: differences of a few per cent mean nothing.")
    if not measured and any(seconds_of(row) is not None for row in comparison.rows):
        said.append("Nothing was run: all times are predictions.")
    lost = [row.plan for row in comparison.rows if any(not isfinite(loss) for _, _, loss in row.loss)]
    if lost:
        said.append(f"The loss of {_list(lost)} left the numbers (infinite or NaN); those points are not drawn.")
    return said


def _sentence(note: str) -> str:
    return f"{note[:1].upper()}{note[1:]}{'' if note.endswith('.') else '.'}"


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
