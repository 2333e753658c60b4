"""What is wrong in a command line is said before anything slow is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from partita.__main__ import main
from partita.errors import OptionError
from partita.report.files import check_apart
from partita.report.given import check_words

CLUSTER = """
schema = 1
name = "two"
[device.cpu]
backend = "cpu"
cores = 0.5
{device}
[network]
link = {{ {bandwidth} = "1 Gbit/s" }}
members = [{{ device = "cpu", count = 2 }}]
"""
# Runs each command line in turn, then tells which of the heavy packages it took to refuse them.
REFUSED = """
import json, sys
from partita.__main__ import main
codes = [main(words) for words in json.loads(sys.argv[1])]
print(json.dumps([codes, [m for m in ("torch", "numba", "numpy") if m in sys.modules]]))
"""

BARRED = """
import sys
sys.modules["torch"] = None
from partita.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def wrong(tmp_path: Path) -> dict[str, str]:
    for name, device, bandwidth in (
        ("typo", "", "bandwith"),
        ("good", "", "bandwidth"),
        ("value", "price = 'x'", "bandwidth"),
    ):
        (tmp_path / f"{name}.toml").write_text(CLUSTER.format(device=device, bandwidth=bandwidth))
    (tmp_path / "plan.toml").write_text('schema = 1\nname = "ddp"\nmessh = 1\n')
    (tmp_path / "steps.toml").write_text("target = 0.5\n[[points]]\nbatch = 1\nsteps = 9.0\n")
    return {path.stem: str(path) for path in tmp_path.iterdir()}


def test_every_verb_refuses_before_it_loads_anything(wrong: dict[str, str]) -> None:
    to_loss = ("--objective", "time-to-loss", "--steps-to-loss")
    words = [
        *(["plan", "digits-cnn", "--cluster", wrong[name]] for name in ("typo", "value")),
        ["plan", "digits-cnn", "--cluster", wrong["good"], "--objective", "cost"],
        ["plan", "digits-cnn", "--cluster", wrong["good"], "-o", "/nowhere/plan.toml"],
        ["plan", "digits-cnn", "--cluster", wrong["good"], "--steps-to-loss", "absent.toml"],
        *(
            ["plan", "digits-cnn", "--cluster", wrong["good"], *to_loss, file]
            for file in ("absent.toml", wrong["plan"], wrong["steps"])
        ),
        ["cluster", "show", wrong["typo"]],
        ["cluster", "probe", wrong["typo"]],
        ["cluster", "lab", wrong["typo"], "--", "true"],
        ["verify", "digits-cnn", "--plan", "dpd"],
        *(
            ["train", "digits-cnn", "--cluster", wrong["good"], "--plan", "ddp", "--steps", "5", *more]
            for more in (["--init", "absent"], ["--resume"], ["--checkpoint-every", "2"], ["--keep", "2"])
        ),
        ["report", "x" * 300],
        ["recipes", "dpd"],
        ["capture", "digits-cnn", "-o", "/nowhere/graph.json"],
        ["capture", "absent.py:task"],
        ["train", "digits-cn", "--cluster", "local:2", "--plan", "ddp", "--steps", "1"],
    ]
    for verb in (["simulate"], ["fit"], ["train", "--steps", "1"]):
        for plan in (
            "ddp(bucket_bytes=1,bucket_bytes=2)",
            "ddp(bucket_byte=1)",
            "dpd",
            "ddp(",
            "absent.toml",
            wrong["plan"],
        ):
            words.append([verb[0], "digits-cnn", "--cluster", "local:2", "--plan", plan, *verb[1:]])
        words.append([verb[0], "digits-cnn", "--cluster", wrong["typo"], "--plan", "ddp", *verb[1:]])
    words.append(["compare", "digits-cnn", "--cluster", "local:2", "--plans", "ddp,pipe_sgd(stalenes=1)"])
    words.append(["compare", "digits-cnn", "--cluster", "local:2", "--plans", "ddp", "--report", "/nowhere/page.html"])
    command = [sys.executable, "-c", REFUSED, json.dumps(words)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    codes, loaded = json.loads(done.stdout)
    said = done.stderr.splitlines()
    assert codes == [2] * len(words), said
    assert len(said) == len(words)
    assert all(line.startswith("partita: ") for line in said)
    assert not {"torch"} & set(loaded)
    meant = ("bandwidth", "bucket_bytes", "ddp", "mesh", "digits-cnn", "staleness")
    for hint in (*(f"did you mean {word!r}" for word in meant), "give each knob once", "price = 2.5"):
        assert any(hint in line for line in said), hint


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["plan", "digits-cnn", "--cluster", "local:2", "--top", "x"],
            "Invalid value for '--top': Input should be a valid integer, not 'x'; see partita plan --help",
        ),
        (
            ["report", "nowhere"],
            "nowhere cannot be read (No such file or directory); give a folder that `partita train --out` or `partita "
            "compare --out` wrote",
        ),
    ],
)
def test_a_sentence_says_what_was_given_once_and_what_to_give(
    words: list[str], sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert capfd.readouterr().err == f"partita: {sentence}\n"


COMPARE = ["compare", "digits-cnn", "--cluster", "local:2", "--plans", "ddp", "--steps", "2"]


@pytest.mark.parametrize(
    ("words", "behind"),
    [
        (["train", "digits-cnn", "--cluster", "local:2", "--plan", "ddp", "--steps", "2", "--out", ""], "--out"),
        ([*COMPARE, "--out="], "--out"),
        ([*COMPARE, "--sweep", ""], "--sweep"),
        (["verify", "digits-cnn", "--plan", "ddp", "--cluster", ""], "--cluster"),
        (["recipes", ""], "recipes"),
        (["", "digits-cnn"], "partita"),
    ],
)
def test_an_empty_text_is_not_taken_for_nothing(
    words: list[str], behind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """`--out "$OUT"` where the variable is not set must not train and keep nothing."""
    assert main(words) == 2
    said = capfd.readouterr().err
    assert said == f"partita: an empty text is given behind {behind}; give a value there, or leave it out\n"


@pytest.mark.parametrize(
    ("words", "twice"), [(["--cluster=a", "--cluster", "b"], "--cluster"), (["-o", "a", "-o", "a"], "-o")]
)
def test_an_option_that_is_given_twice_is_not_half_ignored(words: list[str], twice: str) -> None:
    with pytest.raises(OptionError, match=f"^{twice} is given twice; give it once$"):
        check_words(["plan", "digits-cnn", *words])
    check_words(["cluster", "lab", "local:2", "--", "peer", "-v", "-v"])
    check_words(["report", "run", "run"])  # whatever is no option has its own place


def test_an_empty_text_is_another_programs_affair() -> None:
    check_words(["cluster", "lab", "local:2", "--", "echo", "", "--x="])


@pytest.mark.parametrize("second", ["--trace", "--out"])
def test_two_answers_in_one_place_are_refused(second: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert main([*COMPARE, "--report", str(tmp_path / "a"), second, str(tmp_path / "link" / "a")]) == 2
    assert "is given for two things that are written; give each a path of its own" in capfd.readouterr().err
    check_apart(Path("/dev/null"), Path("/dev/null"), None)  # takes both


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("plan task.py:task --cluster c.toml -o c.toml", "c.toml"),
        ("plan task.py:task --cluster c.toml -o s.toml --objective time-to-loss --steps-to-loss s.toml", "s.toml"),
        ("simulate task.py:task --cluster c.toml --plan p.toml --trace p.toml", "p.toml"),
        ("simulate g.json --cluster c.toml --plan ddp --trace g.json", "g.json"),
        ("simulate task.py:task --cluster c.toml --plan ddp --trace link/task.py", "task.py"),
        ("compare task.py:task --cluster c.toml --plans ddp,p.toml --report p.toml", "p.toml"),
        ("report run -o run/result.json", "run/result.json"),
        ("report run/report.json -o run/report.json", "run/report.json"),
    ],
)
def test_what_a_command_reads_is_not_written_over(
    words: str, kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("c.toml", "p.toml", "s.toml", "g.json", "task.py", "run/result.json", "run/report.json"):
        (tmp_path / name).write_text("mine")
    assert main(words.split()) == 2
    assert "is read by this command and would be written over; give another file to write" in capfd.readouterr().err
    assert (tmp_path / kept).read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("train", "absent.py:task", "--cluster", "h100-dgx-x4", "--plan", "ddp", "--steps", "2"),
            "is more than one machine;",
        ),
        (("compare", "absent.py:task", "--cluster", "h100-dgx-x4", "--plans", "ddp"), "is more than one machine;"),
        (("capture", "absent.py:task", "-o", "graph.txt"), "files that end in .json"),
        (
            ("plan", "absent.py:task", "--cluster", "local:2", "-o", "plan.json"),
            "plans are read from files that end in .toml",
        ),
        (("plan", "absent.py:task", "--cluster", "folder"), "folder cannot be read (Is a directory)"),
        (("plan", "absent.py:task", "--cluster", "h100-dgx", "--costs", "measured"), "h100-dgx stands elsewhere"),
        (
            ("simulate", "absent.py:task", "--cluster", "h100-dgx", "--plan", "ddp", "--costs", "measured"),
            "h100-dgx stands elsewhere",
        ),
        (
            ("simulate", "absent.py:task", "--cluster", "local:2", "--plan", "ddp", "--allow", "exact"),
            "--allow exact says what --plan auto may choose, and --plan is ddp; leave --allow out, or give auto",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_before_the_task_is_read(
    words: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    assert main([*words]) == 2
    assert sentence in capfd.readouterr().err


def test_a_rank_of_no_world_is_refused_before_the_task_is_read(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Bad input 40: a process that torchrun did not start learns it at once, not behind the capture."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert main(["train", "absent.py:task", "--cluster", "local:2", "--plan", "ddp", "--steps", "1"]) == 2
    assert "RANK is '0' and WORLD_SIZE is ''; start with torchrun" in capfd.readouterr().err


def test_a_python_without_torch_is_told_so() -> None:
    """By what needs it, and by the doctor."""

    def run(*words: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-c", BARRED, *words], capture_output=True, text=True, check=False, timeout=60
        )
        return done.returncode, done.stdout, done.stderr

    for words in (("capture", "digits-cnn"), ("train", "digits-cnn", "--cluster=local:2", "--plan=ddp", "--steps=1")):
        code, _, said = run(*words)
        assert code == 2
        assert said.startswith(f"partita: this Python ({sys.executable}) has no package torch; install it")
        assert said.count("\n") == 1
    code, found, _ = run("doctor", "--json")
    body = json.loads(found)
    assert (code, body["torch"], body["cuda"]) == (0, "", [])
    assert any(sentence.startswith("torch cannot be loaded") for sentence in body["missing"])
