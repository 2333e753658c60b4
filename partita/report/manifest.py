"""What a run is, written down before it begins: DIR/manifest.json.

{"schema": 1, "format": "partita run", "task": "file.py:function", "plan": TOML, "cluster": TOML, "seed": 0,
 "steps": 100, "init": "", "deterministic": false, "versions": {...}, "command": [...], "begun": "2026-01-01T00:00:00"}
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from partita.cluster.cluster import Cluster
from partita.cluster.writing import write_cluster
from partita.errors import OptionError
from partita.plan.plan import Plan
from partita.plan.text import write_plan
from partita.report.environment import versions
from partita.report.files import write_file

SCHEMA: Final = 1
NAME: Final = "manifest.json"


def write_manifest(out: str, task: str, plan: Plan, cluster: Cluster, *, seed: int, steps: int, **more: Any) -> None:
    """Write the manifest into the folder `out`, which is made, whole or not at all. Raises OptionError."""
    body = {
        "schema": SCHEMA, "format": "partita run", "task": task, "plan": write_plan(plan),
        "cluster": write_cluster(cluster), "seed": seed, "steps": steps, **more, "versions": dict(versions()),
        "command": sys.argv, "begun": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
    path = Path(out) / NAME
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"--out is {out!r}, where nothing can be written ({error.strerror}); give a folder") from None
    write_file(path, json.dumps(body, indent=1) + "\n")
