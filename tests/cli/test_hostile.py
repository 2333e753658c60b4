"""Texts and files that nobody writes by mistake: each is refused by one sentence, whatever it holds."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from threading import Timer

import pytest

from partita.__main__ import main
from partita.report.record import write_run
from tests.report.timelines import comparison

WIDE = f"0x{'f' * 5000}"  # Python reads it, and does not print it
DEEP = "[" * 3000 + "]" * 3000
SIMULATE = ("simulate", "digits-cnn", "--cluster", "local:2", "--plan")
FILES = {
    "cluster": "schema = 1\n[device.cpu]\ncores = {}\n[network]\nlink = {{ bandwidth = '1 GB/s' }}\n"
    "members = [{{ device = 'cpu' }}]\n",
    "plan": "schema = 1\nname = 'mine'\n[mesh]\naxes = [['data', {}]]\n",
    "steps": "schema = 1\ntarget = 0.5\n[[points]]\nbatch = 16\nsteps = {}\n",
}
WORDS = {
    "cluster": ("cluster", "show"),
    "plan": SIMULATE,
    "steps": ("plan", "digits-cnn", "--cluster", "local:2", "--objective", "time-to-loss", "--steps-to-loss"),
}


def refused(words: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> str:
    """The one line with which words are refused."""
    capfd.readouterr()
    code, (out, err) = main([*words]), capfd.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1), err[:500]
    return err


@pytest.mark.parametrize(("value", "why"), [(WIDE, "a number of 20000 bits"), (DEEP, "nested too deep")])
@pytest.mark.parametrize("kind", FILES)
def test_a_file_with_a_number_too_long_to_print_or_too_deep(
    kind: str, value: str, why: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"{kind}.toml"
    path.write_text(FILES[kind].format(value))
    said = refused((*WORDS[kind], str(path)), capfd)
    assert why in said
    assert str(path) in said or "the plan is not valid TOML" in said


@pytest.mark.parametrize("text", [f"ddp(bucket_bytes={WIDE})", f"ddp(codec=topk(k={WIDE}))", f"ddp(order={WIDE})"])
def test_a_call_with_a_number_too_long_to_print(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert "gives a number of 20000 bits; less than 9223372036854775808 is allowed" in refused((*SIMULATE, text), capfd)


def test_what_a_terminal_would_obey_is_not_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither of what is answered nor of what is complained of."""
    evil = "a\x1b[2J\x9b31m\u202eb\rc"
    found = comparison()
    write_run(replace(found, rows=(replace(found.rows[0], plan=evil),), notes=(evil,)), tmp_path)
    assert main(["report", str(tmp_path)]) == 0
    out, _ = capfd.readouterr()
    assert "a\ufffd[2J\ufffd31m\ufffdb\ufffdc takes 400 ms a step" in out
    assert main(["report", evil]) == 2
    _, err = capfd.readouterr()
    for said in (out, err):
        assert {letter for letter in said if not letter.isprintable()} == {"\n"}


def test_a_name_of_a_cluster_too_long_for_a_file(capfd: pytest.CaptureFixture[str]) -> None:
    assert "there is no cluster 'hhhh" in refused(("cluster", "show", "h" * 5000), capfd)


READ = {  # a kind of file: the command that reads it
    "cluster.toml": ("cluster", "show"),
    "plan.toml": SIMULATE,
    "steps.toml": WORDS["steps"],
    "graph.json": ("fit", "--cluster", "local:2", "--"),
    "run.json": ("report",),
}


@pytest.mark.parametrize("name", READ)
def test_a_pipe_that_nobody_writes_to_is_not_waited_for(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / name)
    assert "it is a pipe that nobody writes to" in refused((*READ[name], str(tmp_path / name)), capfd)


def test_what_somebody_writes_to_a_pipe_later_is_waited_for() -> None:
    """As where a shell gives `--cluster <(command)`."""
    reads, writes = os.pipe()
    with open(writes, "w") as end:
        timer = Timer(0.1, lambda: (end.write(FILES["cluster"].format(1.0)), end.close()))
        timer.start()
        assert main(["cluster", "show", f"/dev/fd/{reads}"]) == 0
        timer.join()
    os.close(reads)


def test_a_device_is_no_file(capfd: pytest.CaptureFixture[str]) -> None:
    assert "/dev/zero cannot be read (it is a device)" in refused(("cluster", "show", "/dev/zero"), capfd)


def test_a_link_to_itself_is_no_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    assert "there is no file" in refused(("capture", f"{tmp_path}/loop.py:task"), capfd)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("cluster", "show", "loacl:2"), "local:2"), (("cluster", "show", "local"), "local:2"),
        ((*SIMULATE, "autp"), "auto"),
        (("capture", f"{Path(__file__).with_name('bad_tasks.py')}:percepton"), "perceptron"),
    ],
)  # fmt: skip
def test_a_name_that_is_nearly_one(words: tuple[str, ...], meant: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert f"did you mean {meant!r}?" in refused(words, capfd)


def test_a_link_in_a_run_by_another_hand_leads_nowhere(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mine, run = tmp_path / "mine", tmp_path / "run"
    mine.write_text("mine")
    write_run(comparison(), run)
    (run / "report.html").symlink_to(mine)
    assert "report.html is a link, and what it leads to would be written over" in refused(("report", str(run)), capfd)
    assert mine.read_text() == "mine"
    (run / "report.json").rename(tmp_path / "report.json")
    (run / "report.json").symlink_to(mine)
    compare = ("compare", "digits-cnn", "--cluster", "local:2", "--plans", "ddp", "--out", str(run))
    assert "report.json is a link, and what it leads to would be written over" in refused(compare, capfd)
    assert mine.read_text() == "mine"
    (tmp_path / "report.json").replace(run / "report.json")
    assert main(["report", str(run), "-o", str(run / "report.html")]) == 0  # named by its user
    assert mine.read_text().startswith("<!doctype html>")


HUGE = "h" * 100_000


@pytest.mark.parametrize(
    "words",
    [
        ("cluster", "show", HUGE), (*SIMULATE, HUGE), (*SIMULATE, f"ddp({HUGE}=1)"), ("report", HUGE), (HUGE,),
        ("plan", HUGE, "--cluster", "local:2"), ("plan", "digits-cnn", "--cluster", "local:2", "--top", HUGE),
    ],
    ids=lambda words: words[0][:9],
)  # fmt: skip
def test_a_value_that_nobody_would_read_is_quoted_in_part(
    words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    said = refused(words, capfd)
    assert "hhh[...]hhh" in said
    assert len(said) < 2000


def test_a_long_value_in_a_file_leaves_place_and_advice(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(FILES["cluster"].format(repr("1 2 " * 30_000)))
    said = refused((*WORDS["cluster"], str(path)), capfd)
    assert f"in cluster {path}, device 'cpu', cores is '1 2 1 2" in said
    assert " letters ...] " in said
    assert said.endswith("give a number, such as 0.5\n")
    assert len(said) < 1700
