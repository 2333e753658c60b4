from __future__ import annotations

import io
import time

import pytest

from partita.cluster.text import load_cluster
from partita.errors import OptionError
from partita.lab.command import run_command

pytestmark = pytest.mark.usefixtures("state")


def run(name: str, script: str) -> tuple[int, list[str], list[str]]:
    out, err = io.BytesIO(), io.BytesIO()
    code = run_command(load_cluster(name), ["sh", "-c", script], out=out, err=err)
    return code, out.getvalue().decode().splitlines(), sorted(err.getvalue().decode().splitlines())


def test_rank_0_speaks_and_the_others_are_marked() -> None:
    code, out, err = run("local:3", 'echo "of $WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $OMP_NUM_THREADS"')
    assert code == 0
    assert out == ["of 3 0/3 1"]
    assert err == ["[1] of 3 1/3 1", "[2] of 3 2/3 1"]


class Closed(io.BytesIO):
    """A pipe whose reader has left, such as `head`."""

    def write(self, data: object, /) -> int:
        raise BrokenPipeError


def test_output_that_nobody_reads_is_dropped() -> None:
    assert run_command(load_cluster("local:2"), ["sh", "-c", "echo a; echo b"], out=Closed(), err=io.BytesIO()) == 0


@pytest.mark.lab
@pytest.mark.usefixtures("namespaces")
def test_the_environment_is_that_of_torchrun() -> None:
    place = "$MASTER_ADDR:$MASTER_PORT $GLOO_SOCKET_IFNAME"
    code, out, err = run("lab-2x2", f'echo "$RANK $LOCAL_RANK $LOCAL_WORLD_SIZE {place}"')
    assert code == 0
    assert out == ["0 0 2 10.77.0.1:29500 eth0"]
    assert err[2] == "[3] 3 1 2 10.77.0.1:29500 eth0"


def test_the_first_failure_decides_and_ends_the_others() -> None:
    start = time.monotonic()
    code, _, err = run("local:2", "test $RANK = 0 && exec sleep 60; echo bad >&2; exit 5")
    assert code == 5
    assert err == ["[1] bad"]
    assert time.monotonic() - start < 10


def test_a_signal_counts_as_in_a_shell() -> None:
    assert run("local:1", "kill -TERM $$")[0] == 143
    assert run_command(load_cluster("local:1"), ["no-such-program"], out=io.BytesIO(), err=io.BytesIO()) == 127


def test_there_must_be_a_command() -> None:
    with pytest.raises(OptionError, match="no command to run"):
        run_command(load_cluster("local:1"), [])
