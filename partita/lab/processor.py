"""What kind of processor this machine has."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from partita.cost.scratch import Processor


@cache
def processor_here(about: Path = Path("/proc/cpuinfo")) -> Processor:
    """By its flags, as oneDNN chooses kernels; wide where they are not told."""
    try:
        flags = next((line for line in about.read_text().splitlines() if line.startswith("flags")), "avx512f").split()
    except OSError:
        return Processor.WIDE
    return Processor.WIDE if "avx512f" in flags else Processor.NARROW
