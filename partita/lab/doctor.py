"""What this machine has and lacks for Partita."""

from __future__ import annotations

import os
import platform
import shutil
from typing import Any

import psutil

from partita.cost.cache import processor_name


def examine() -> dict[str, Any]:
    """Versions and abilities, with a sentence on each thing that is missing and what it costs."""
    tools = {name: shutil.which(name) or shutil.which(f"/usr/sbin/{name}") or "" for name in ("ip", "tc")}
    missing = []
    if absent := " and ".join(name for name, path in tools.items() if not path):
        missing.append(f"no {absent}: the lab falls back to plain loopback processes; install iproute2")
    if os.geteuid() != 0:
        missing.append("not root: the lab limits bandwidth only, not processors, so it makes no claims about time")
    version, cards, lacks = _torch()
    return {
        "python": platform.python_version(),
        "torch": version,
        "processor": processor_name(),
        "cores": os.cpu_count() or 1,
        "memory_bytes": psutil.virtual_memory().total,
        "cuda": cards,
        "tools": tools,
        "missing": missing + lacks,
    }


def _torch() -> tuple[str, list[str], list[str]]:
    """Torch's version, the cards that it sees, and what it lacks."""
    try:
        import torch
    except ImportError as error:
        lack = f"torch cannot be loaded ({error}): saved graphs can be planned for, nothing be captured or run"
        return "", [], [f"{lack}; pip install torch"]
    lacks = []
    if not torch.cuda.is_available():
        lacks.append("no CUDA device: GPU clusters can be planned for, not run")
    if not torch.distributed.is_available():
        lacks.append("this torch has no torch.distributed: only one process can run; install another build")
    return torch.__version__, [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())], lacks
