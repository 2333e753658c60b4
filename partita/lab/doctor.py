"""What this machine has and lacks for Partita."""

from __future__ import annotations

import os
import platform
import shutil
from typing import Any

import psutil
import torch

from partita.cost.cache import processor_name


def examine() -> dict[str, Any]:
    """Versions and abilities, with a sentence on each thing that is missing and what it costs."""
    tools = {name: shutil.which(name) or shutil.which(f"/usr/sbin/{name}") or "" for name in ("ip", "tc")}
    missing = []
    if not (tools["ip"] and tools["tc"]):
        missing.append("ip and tc are missing: the lab falls back to plain loopback processes; install iproute2")
    if os.geteuid() != 0:
        missing.append("not root: the lab limits bandwidth only, not processors, so it makes no claims about time")
    if not torch.cuda.is_available():
        missing.append("no CUDA device: GPU clusters can be planned for, not run")
    if not torch.distributed.is_available():
        missing.append("this torch has no torch.distributed: only one process can run; install another build")
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": processor_name(),
        "cores": os.cpu_count() or 1,
        "memory_bytes": psutil.virtual_memory().total,
        "cuda": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "tools": tools,
        "missing": missing,
    }
