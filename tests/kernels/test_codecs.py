"""Every codec's kernels against its plain twin, bit by bit, and what the catalogue promises of each."""

from __future__ import annotations

from math import ceil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import PlanError
from partita.kernels.codecs import KERNELS, kernel_of
from partita.kernels.plain import PLAIN, decoded, encoded
from partita.plan.wire import Codec
from partita.wire.codec import SPECS, coded_size, message_dtype, read_codecs, room, settings_of, spec_of
from tests.kernels.agreement import LENGTHS, numbers

FLAT = [name for name, spec in SPECS.items() if spec.counts is None]
DTYPES = (torch.float32, torch.float64)


def through(codec: Codec, values: torch.Tensor, key: int = 7) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(message in bytes, what it says, what is left of the values)."""
    kernel, left = kernel_of(codec), values.clone()
    most = room(codec, len(values), values.element_size())
    message = torch.zeros(most, dtype=torch.uint8).view(getattr(torch, message_dtype(codec)))
    used = kernel.encode(left, message, key, back=True)
    message = message.view(torch.uint8)[:used].view(message.dtype)
    said = torch.full_like(values, float("nan"))
    kernel.decode(message, said)
    return message.view(torch.uint8), said, left


def test_every_codec_has_both_kernels() -> None:
    assert KERNELS.keys() == SPECS.keys()
    assert PLAIN.keys() == {*FLAT}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FLAT)
def test_a_kernel_equals_its_plain_twin(name: str, dtype: torch.dtype) -> None:
    """The same bytes, the same numbers, as many bytes as the specification says; sent + residual = gradient, to the
    bit; and decoding into others adds."""
    codec = Codec(name)
    for count in LENGTHS:
        values = numbers(count, dtype)
        message, said, left = through(codec, values)
        twin = encoded(name, values, settings_of(codec), 7)
        assert torch.equal(message, twin)
        assert spec_of(codec).varies or len(message) == coded_size(codec, count, values.element_size())
        assert torch.equal(said, decoded(name, twin, values, settings_of(codec)))
        assert torch.equal(left, values - said)
        summed = values.clone()
        kernel_of(codec).decode(message.view(getattr(torch, message_dtype(codec))), summed, add=True)
        assert torch.equal(summed, values + said)


@pytest.mark.parametrize("name", FLAT)
def test_nothing_comes_of_nothing(name: str) -> None:
    zeros = torch.zeros(100)
    _, said, left = through(Codec(name), zeros)
    assert torch.equal(said, zeros)
    assert torch.equal(left, zeros)


@pytest.mark.parametrize("name", [name for name in FLAT if SPECS[name].feedback])
def test_feedback_loses_nothing(name: str) -> None:
    """QU-05, SP-01, SP-02: the sum of all that was decoded and the residual is the sum of all gradients."""
    residual, sent, given_ = (torch.zeros(999, dtype=torch.float64) for _ in range(3))
    for step in range(20):
        gradient = numbers(999 + step, torch.float64)[:999]
        _, said, residual = through(Codec(name), residual + gradient)
        sent += said
        given_ += gradient
    assert torch.allclose(sent + residual, given_, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "bound"), [("fp16", 2.0**-11), ("bf16", 2.0**-8), ("truncate", 2.0**-7)])
def test_halves_keep_their_relative_error(name: str, bound: float) -> None:
    """QU-01: fp16 where it is normal, bf16 to the nearest, truncation towards zero; bytes exactly half."""
    values = numbers(10_000, scale=1.0)
    values = values[values.abs() > 2.0**-14]
    message, said, _ = through(Codec(name), values)
    assert len(message) == 2 * len(values)
    assert float(((said - values).abs() / values.abs()).max()) < bound * (1 + 1e-6)


def test_truncation_is_monotone_and_idempotent() -> None:
    """QU-01: and biased to zero."""
    values = numbers(10_000).sort().values
    _, said, _ = through(Codec("truncate"), values)
    assert bool((said.diff() >= 0).all())
    assert torch.equal(through(Codec("truncate"), said)[1], said)
    assert bool((said.abs() <= values.abs()).all())


@given(st.integers(1, 500), st.floats(1e-20, 1e20))
def test_eight_bits_err_by_half_a_step(count: int, scale: float) -> None:
    """QU-15: at most m / 254, four bytes and one for each number."""
    values = numbers(count, scale=scale)
    message, said, _ = through(Codec("q8"), values)
    assert len(message) == count + 4
    assert float((said - values).abs().max()) <= float(values.abs().max()) / 254 * (1 + 1e-5)


def test_one_bit_says_the_means_of_two_classes() -> None:
    """QU-05: ceil(N / 8) + 8 bytes a group."""
    values = numbers(5000, torch.float64)
    message, said, _ = through(Codec("onebit", settings=(("group", 1000.0),)), values)
    assert len(message) == 625 + 8 * 5
    for group, meant in zip(torch.split(values, 1000), torch.split(said, 1000), strict=True):
        assert torch.allclose(meant[group >= 0], group[group >= 0].mean(), rtol=1e-6)
        assert torch.allclose(meant[group < 0], group[group < 0].mean(), rtol=1e-6)


def deviations(say: torch.Tensor, values: torch.Tensor, draws: int) -> float:
    """The largest distance of a mean from its number, in its exact standard deviations, of terngrad's values."""
    scale = float(values.abs().max())
    sigma = (values.abs() * (scale - values.abs())).sqrt() / draws**0.5
    return float(((say / draws - values).abs() / (6 * sigma + 1e-7 * values.abs() + 1e-12)).max())


def test_terngrad_is_unbiased_and_ternary() -> None:
    """QU-06: without clipping the mean over draws is the number, 6 sigma for each; ceil(N / 4) + 4 bytes; a codec that
    rounds to the nearest of the three is found out."""
    values, total, rounded = numbers(64, torch.float64), torch.zeros(64).double(), torch.zeros(64).double()
    scale = float(values.abs().max().float())
    for key in range(4000):
        message, said, _ = through(Codec("terngrad", settings=(("clip", 0.0),)), values, key)
        total += said
        rounded += torch.where(values.abs() > scale / 2, values.sign() * scale, 0.0)
    assert len(message) == 16 + 4
    assert set(said.unique().tolist()) <= {-scale, 0.0, scale}
    assert deviations(total, values, 4000) <= 1
    assert deviations(rounded, values, 4000) > 1


def test_terngrad_clips_at_two_and_a_half_deviations() -> None:
    """QU-06: s = 2.5 sigma where a number is beyond that, max |v| where none is; s is sent for what is beyond. Sigma is
    about zero: of equal numbers all is sent."""
    values = numbers(5000, torch.float64)
    sigma = float(values.square().mean().sqrt())
    assert float(values.abs().max()) > 2.5 * sigma
    _, said, _ = through(Codec("terngrad"), values)
    assert float(said.abs().max()) == pytest.approx(2.5 * sigma, rel=1e-6)
    assert torch.equal(said.sign()[values.abs() > 2.5 * sigma], values.sign()[values.abs() > 2.5 * sigma])
    even = torch.tensor([1.0, -1.0, 0.5] * 30, dtype=torch.float64)
    assert float(through(Codec("terngrad"), even)[1].abs().max()) == 1.0
    for count in (1, 2, 100):
        assert torch.equal(through(Codec("terngrad"), torch.full((count,), -0.75))[1], torch.full((count,), -0.75))


@pytest.mark.parametrize("name", ["q8", "dettmers8"])
def test_what_no_scale_reaches_waits(name: str) -> None:
    """Where 1 / max |v| is no number in fp32, nothing is sent and everything is left."""
    values = torch.tensor([1e-42, 0.0, -3e-42, 1e-45, 0.0])
    message, said, left = through(Codec(name), values)
    assert torch.equal(message, encoded(name, values, settings_of(Codec(name)), 7))
    assert not said.any()
    assert torch.equal(left, values)


@given(st.integers(1, 40_000), st.sampled_from([0.001, 0.01, 0.1, 0.5, 1.0]))
def test_topk_sends_the_largest(count: int, ratio: float) -> None:
    """SP-02: ceil(ratio N) of them, exactly; everything bit by bit at ratio 1."""
    values = numbers(count)
    _, said, left = through(Codec("topk", settings=(("ratio", ratio),)), values)
    k = min(max(ceil(ratio * count - 1e-9), 1), count)
    assert int((said != 0).sum()) == k
    assert float(left.abs().max()) <= float(said[said != 0].abs().min())
    assert ratio < 1 or torch.equal(said, values)


def test_topk_takes_the_first_of_equals() -> None:
    values = torch.tensor([1.0, -2.0, 2.0, 2.0, -2.0, 0.5])
    _, said, _ = through(Codec("topk", settings=(("ratio", 0.5),)), values)
    assert said.tolist() == [0.0, -2.0, 2.0, 2.0, 0.0, 0.0]


def test_a_threshold_says_itself() -> None:
    """SP-01: every value is +-tau, a word each."""
    values, tau = numbers(5000), 0.03
    message, said, left = through(Codec("threshold", settings=(("threshold", tau),)), values)
    beyond = values.abs() > tau
    assert len(message) == 4 * int(beyond.sum())
    assert torch.equal(said, torch.where(beyond, values.sign() * torch.tensor(tau), 0.0))
    assert torch.equal(left, values - said)


def test_a_higher_threshold_never_sends_more() -> None:
    """SP-01: on a stream of gradients of constant signs that are all below the threshold, twice of it sends no more."""
    signs, counts = numbers(200).sign(), []
    for tau in (0.02, 0.04, 0.08, 0.16):
        residual, sent = torch.zeros(200), 0
        for step in range(100):
            gradient = signs * numbers(1000 + step)[:200].abs().clamp(max=0.0199)
            message, _, residual = through(Codec("threshold", settings=(("threshold", tau),)), residual + gradient)
            sent += len(message) // 4
        counts.append(sent)
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 4 * counts[-1] > 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("topq", "did you mean 'topk'?"),
        ("topk(share=1)", "it has ratio"),
        ("topk(ratio=0)", "above 0"),
        ("topk(ratio=x)", "no number"),
        ("threshold(threshold=0)", "a threshold above 0"),
        ("q8(where=middle)", "end, hop, server"),
        ("threshold(where=hop)", "vary in length"),
        ("powersgd(where=hop)", "whole matrices"),
        ("dorefa(bits=1)", "2 to 32"),
        ("1bit", "no codec"),
    ],
)
def test_what_is_no_codec(text: str, words: str) -> None:
    with pytest.raises(PlanError) as caught:
        read_codecs(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_codecs_as_they_are_written() -> None:
    assert read_codecs("none") == ()
    assert read_codecs("q8") == (Codec("q8", "hop"),)
    assert not read_codecs("topk(where=server,feedback=false)")[0].error_feedback
    for words in ("where=hop,feedback=true", "feedback=true,where=hop"):
        with pytest.raises(PlanError, match="partial sums have no residual"):
            read_codecs(f"q8({words})")
    assert read_codecs("topk(ratio=0.1, feedback=false)") == (Codec("topk", settings=(("ratio", 0.1),)),)
    assert read_codecs("onebit") == (Codec("onebit", error_feedback=True),)
