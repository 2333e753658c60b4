"""The kind of processor is read off its flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from partita.cost.scratch import Processor
from partita.lab.processor import processor_here


@pytest.mark.parametrize(
    ("about", "kind"),
    [
        ("processor : 0\nflags : fpu avx avx2\n", Processor.NARROW),
        ("processor : 0\nflags : fpu avx2 avx512f\n", Processor.WIDE),
        ("processor : 0\nFeatures : fp asimd\n", Processor.WIDE),
    ],
)
def test_narrow_is_what_lacks_512_bits(tmp_path: Path, about: str, kind: Processor) -> None:
    (tmp_path / "cpuinfo").write_text(about)
    assert processor_here(tmp_path / "cpuinfo") is kind


def test_what_is_not_told_is_wide(tmp_path: Path) -> None:
    assert processor_here(tmp_path / "none") is Processor.WIDE
