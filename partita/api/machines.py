"""What this machine has, its links measured, and commands on the devices of an emulated cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from partita.api.checking import cluster_given
from partita.cluster.cluster import Cluster
from partita.telling import Tell, quiet


def lab(cluster: Cluster | str, argv: Sequence[str]) -> int:
    """Run a command on every device of an emulated cluster; returns the first exit code that is not 0."""
    from partita.lab.command import run_command

    return run_command(cluster_given(cluster), list(argv))


def probe(cluster: Cluster | str, *, tell: Tell = quiet) -> dict[str, Any]:
    """The measured latency and bandwidth of a cluster's links, as plain data."""
    from partita.lab.link_costs import probe_links

    return json.loads(json.dumps(probe_links(cluster_given(cluster), tell)))  # type: ignore[no-any-return]


def doctor() -> dict[str, Any]:
    """What this machine has and lacks for Partita."""
    from partita.lab.doctor import examine

    return examine()
