from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from partita import api
from partita.__main__ import main
from partita.cluster.cluster import Cluster
from partita.cluster.text import load_cluster
from partita.cluster.writing import write_cluster
from partita.errors import Ended, OptionError, PlanError, RunError, RunHung
from partita.graph.text import write_graph
from partita.plan.text import read_plan
from partita.recipes.reading import split_plans
from partita.report.page import comparison_page
from partita.report.record import read_record, write_run
from partita.report.setting import Setting
from partita.runs.directory import claimed
from partita.runtime.brake import stopping
from partita.searches.steps_file import read_steps
from tests.report.nine import nine
from tests.report.timelines import comparison, measured
from tests.small import two_layers

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Say:
    """Run a command line in this process; gives the exit code, stdout and stderr."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("PARTITA_TRACEBACK", raising=False)

    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(list(words))
        return code, *capfd.readouterr()

    return run


@pytest.fixture
def graph(tmp_path: Path) -> str:
    write_graph(two_layers(), tmp_path / "graph.json")
    return str(tmp_path / "graph.json")


def raising(error: BaseException) -> Callable[..., Any]:
    def stub(*given: Any, **named: Any) -> Any:
        print("noise on stdout")
        os.system("echo more noise")
        raise error

    return stub


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


ENDS = [
    (PlanError("bad plan"), 2, "bad plan"),
    (RunError("rank 1 failed"), 3, "rank 1 failed"),
    (RunHung("nothing moved"), 4, "nothing moved"),
    (KeyboardInterrupt(), 130, "interrupted"),
    (Ended(143), 143, "terminated"),
    (Ended(129), 129, "hung up"),
    (caused(RuntimeError("error calling __set_name__"), Ended(143)), 143, "terminated"),
    (SystemExit(143), 3, "something that was called left with exit code 143 before it was done"),
    (caused(ImportError("initialization failed"), KeyboardInterrupt()), 130, "interrupted"),
    (SystemExit(0), 3, "something that was called left with exit code 0 before it was done"),
    (OSError(errno.EMFILE, "Too many open files", "a"), 3, "this machine gives no more ([Errno 24] Too many open "
     "files: 'a'); raise the limit of open files (ulimit -n)"),
    (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), 3, "this machine gives no more ([Errno 11] "
     "Resource temporarily unavailable); raise the limit of processes (ulimit -u), or end some"),
    (OSError(errno.EXDEV, "x"), 3, "this should not have happened (OSError: [Errno 18] x); rerun with "
     "PARTITA_TRACEBACK=1 to see where"),
    (ValueError("x\ny"), 3, "this should not have happened (ValueError: x y); "
     "rerun with PARTITA_TRACEBACK=1 to see where"),
]  # fmt: skip


@pytest.mark.parametrize(("error", "code", "sentence"), ENDS, ids=lambda value: type(value).__name__)
def test_every_end_has_its_code_and_one_sentence(
    say: Say, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, sentence: str
) -> None:
    monkeypatch.setattr(api, "task_of", raising(error))
    words = ("simulate", "t", "--cluster", "local:2", "--plan", "ddp")
    assert say(*words)[::2] == (code, f"partita: {sentence}\n")
    given, out, _ = say(*words, "--json")
    assert given == code
    assert json.loads(out) == {"schema": 1, "error": sentence}


INTERRUPTED = """
import sys
from partita import api
from partita.__main__ import main
from partita.lab import fork_client
from partita.lab.fork_client import load_ahead
load_ahead()
print(fork_client.servers[0].process.pid, flush=True)
api.doctor = lambda: exec("raise KeyboardInterrupt")
sys.argv = ["partita", "doctor"]
sys.exit(main())
"""


def test_ctrl_c_is_an_exit_code_wherever_it_comes() -> None:
    """Python kills itself by SIGINT if the interrupt came out of a text that was executed, though it was caught."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (130, "partita: interrupted\n")
    assert not Path(f"/proc/{int(done.stdout)}").exists(), "what it had begun to load goes on without it"


def test_one_more_ctrl_c_while_it_ends_is_no_traceback() -> None:
    again = "fork_client.end_fork_server = lambda: os.kill(os.getpid(), 2)"
    text = INTERRUPTED.replace("sys.argv =", f"import os\n{again}\nsys.argv =")
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "partita: interrupted\n")


EARLY = """
import os, signal, sys
class Finder:
    def find_spec(name, path, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), 0)
sys.meta_path.insert(0, Finder)
sys.argv = ["partita", "recipes", *sys.argv[1:]]
from runpy import run_module
{run}
"""
RUN = ("from partita.__main__ import main; sys.exit(main())", "run_module('partita', run_name='__main__')")


@pytest.mark.parametrize("run", RUN, ids=["script", "module"])
@pytest.mark.parametrize(("words", "out"), [([], ""), (["--json"], '{"schema": 1, "error": "interrupted"}\n')])
def test_ctrl_c_while_the_commands_are_loaded_is_one_sentence(run: str, words: list[str], out: str) -> None:
    text = EARLY.format(run=run)
    done = subprocess.run([sys.executable, "-c", text, *words], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, out, "partita: interrupted\n")


def test_a_traceback_is_shown_on_demand(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "task_of", raising(ValueError("x")))
    monkeypatch.setenv("PARTITA_TRACEBACK", "1")
    assert "Traceback" in say("simulate", "t", "--cluster", "local:2", "--plan", "ddp")[2]


@pytest.mark.parametrize(("number", "word"), [(signal.SIGTERM, "terminated"), (signal.SIGHUP, "hung up")])
def test_a_signal_lets_what_runs_clean_up(say: Say, monkeypatch: pytest.MonkeyPatch, number: int, word: str) -> None:
    cleaned = []

    def stub(*given: Any, **named: Any) -> Any:
        try:
            os.kill(os.getpid(), number)
            signal.pause()
        finally:
            cleaned.append(True)

    before = signal.signal(number, signal.SIG_DFL)
    monkeypatch.setattr(api, "graph_of", stub)
    try:
        assert say("capture", "t") == (128 + number, "", f"partita: {word}\n")
        assert cleaned == [True]
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


ENDED_HERE = {
    "loaded": "import signal\nsignal.raise_signal({})",
    "called": "import signal\ndef task():\n    signal.raise_signal({})",
    "built": "import signal\nfrom dataclasses import replace\nfrom tests.small import perceptron\n"
             "def task():\n    return replace(perceptron(), model=lambda: signal.raise_signal({}))",
}  # fmt: skip


@pytest.mark.parametrize("text", ENDED_HERE.values(), ids=ENDED_HERE)
@pytest.mark.parametrize(("number", "word"), [(signal.SIGTERM, "terminated"), (signal.SIGHUP, "hung up")])
def test_a_signal_in_a_users_code_is_no_fault_of_that_code(
    say: Say, tmp_path: Path, text: str, number: int, word: str
) -> None:
    (tmp_path / "task.py").write_text(text.format(int(number)))
    code, _, said = say("capture", f"{tmp_path / 'task.py'}:task")
    assert (code, said.splitlines()[-1]) == (128 + number, f"partita: {word}")


def test_what_is_started_under_nohup_does_not_hear_that_the_terminal_is_gone(
    say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stub(*given: Any, **named: Any) -> Any:
        os.kill(os.getpid(), signal.SIGHUP)
        raise ValueError("gone on")

    monkeypatch.setattr(api, "graph_of", stub)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert "gone on" in say("capture", "t")[2]
        assert stopping() == (signal.SIGTERM, signal.SIGINT)
    finally:
        signal.signal(signal.SIGHUP, before)


USAGE = [
    ("nope",), ("plan",), ("plan", "t", "--top", "0", "--cluster", "c"), ("simulate", "t", "--cluster", "c"),
    ("compare", "t", "--cluster", "c", "--plans", "a,,b"),
    ("simulate", "t", "--cluster", "c", "--plan", "p", "--allow", "x"),
    ("train", "t", "--cluster", "local:2", "--plan", "ddp"), ("cluster", "show", "nope"), ("recipes", "nope"),
    ("train", "t", "--cluster", "local:2", "--plan", "ddp", "--steps", "1", "--epochs", "1"),
    ("capture", "nope"), ("capture", "absent.py:task"), ("plan", ":", "--cluster", "local:2"),
    ("capture", "..a:task"), ("capture", "module:"), ("plan", "absent.json", "--cluster", "local:2"),
]  # fmt: skip


@pytest.mark.parametrize("words", USAGE, ids=" ".join)
def test_bad_input_gets_one_sentence_and_two(say: Say, words: tuple[str, ...]) -> None:
    code, out, err = say(*words)
    assert (code, out) == (2, "")
    assert err.startswith("partita: ")
    assert err.count("\n") == 1
    code, out, _ = say(*words, "--json")
    assert code == 2
    assert set(json.loads(out)) == {"schema", "error"}


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--steps", "0", "greater than or equal to 1, not '0'; see partita train --help"),
        ("--steps=-3", "", "greater than or equal to 1, not '-3'; see partita train --help"),
        ("--seed", "x", "not 'x'; see"),
        ("--timeout", "nan", "less than or equal to 604800, not 'nan'; see"),
    ],
)
def test_a_wrong_value_is_repeated(say: Say, option: str, value: str, sentence: str) -> None:
    words = ["train", "t", "--cluster", "local:2", "--plan", "ddp", option, *([value] if value else [])]
    code, _, err = say(*words)
    assert code == 2
    assert sentence in err


def test_a_missing_argument_is_not_a_word_of_its_name(say: Say) -> None:
    """`cluster` is a command and the name of an argument."""
    assert say("cluster", "show") == (2, "", "partita: Missing argument 'C'; see partita cluster show --help\n")


@pytest.mark.parametrize("words", [("plan", "--top", "2"), ("simulate", "--plan", "ddp"), ("fit",)], ids=" ".join)
def test_a_saved_graph_is_planned_for(say: Say, graph: str, words: tuple[str, ...]) -> None:
    command, *options = words
    code, out, _ = say(command, graph, "--cluster", "lab-4x1g", *options, "--json")
    assert code == 0
    body = json.loads(out)
    assert body["schema"] == 1
    expected = {
        "plan": {"candidates", "search_seconds", "lower_bound_seconds", "gap", "explanation"},
        "simulate": {"plan", "step_seconds", "peak_memory_bytes", "wire_bytes_sent", "breakdown"},
        "fit": {"fits", "margin_bytes", "change"},
    }
    assert set(body) >= expected[command]
    assert say(command, graph, "--cluster", "lab-4x1g", *options)[0] == 0


def test_the_best_plan_is_written_and_read_back(say: Say, graph: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    code, out, _ = say("plan", graph, "--cluster", "lab-4x1g", "-o", str(path), "--json")
    best = json.loads(out)["candidates"][0]
    assert (code, read_plan(path.read_text()).name) == (0, best["plan"])
    code, out, _ = say("simulate", graph, "--cluster", "lab-4x1g", "--plan", str(path), "--json")
    assert json.loads(out)["plan"] == best["plan"]


def test_a_cluster_is_written_to_begin_with(say: Say, tmp_path: Path) -> None:
    place = tmp_path / "mine.toml"
    assert say("cluster", "show", "lab-2x2", "-o", str(place))[0] == 0
    assert load_cluster(str(place)) == load_cluster("lab-2x2")
    place.write_text(place.read_text().replace("schema = 1\n", ""))
    code, _, err = say("cluster", "show", str(place))
    assert code == 2
    assert "lacks 'schema'; add schema = 1" in err


def test_a_fit_that_fails_names_the_change(say: Say, graph: str, tmp_path: Path) -> None:
    roomy = load_cluster("lab-4x1g")
    device = replace(roomy.devices[0], memory=64)
    tight = str(tmp_path / "tight.toml")
    Path(tight).write_text(write_cluster(Cluster("tight", replace(roomy.root, members=(device,) * 4))))
    code, out, _ = say("fit", graph, "--cluster", tight, "--json")
    body = json.loads(out)
    assert (code, body["fits"]) == (1, False)
    assert body["change"].startswith("give each device ")
    assert body["bound_bytes"] > 64
    assert body["margin_bytes"] < 0
    assert "does not fit" in body["error"]
    code, out, _ = say("plan", graph, "--cluster", tight, "--json")
    body = json.loads(out)
    assert code == 1
    assert body["candidates"]
    assert re.search("bytes a parameter are .* on each of 4 devices.*; partita fit says what would$", body["error"])


def test_two_comparisons_do_not_write_to_one_folder(say: Say, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(api, "compare", raising(AssertionError("it must not begin")))
    words = ("compare", "t", "--cluster", "local:2", "--plans", "ddp", "--out", str(tmp_path))
    with claimed(str(tmp_path)):
        code, _, said = say(*words)
    assert (code, "wait for its end or give another --out" in said) == (2, True)


def test_compare_passes_its_options_on(say: Say, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def stub(spec: str, plans: list[str], cluster: Cluster, **named: Any) -> api.Comparison:
        seen.update(named, spec=spec, plans=plans)
        return replace(comparison(), setting=Setting(samples=40))

    monkeypatch.setattr(api, "compare", stub)
    page, trace = tmp_path / "page.html", tmp_path / "trace.json"
    words = ("compare", "t", "--cluster", "local:2", "--plans", "ddp,pipe_sgd(staleness=1,warmup=2)", "--seed", "3")
    code, out, _ = say(
        *words, "--target-loss", "0.5", "--steps", "5", "--report", str(page), "--trace", str(trace), "--json"
    )
    body = json.loads(out)
    assert (code, seen["plans"]) == (0, ["ddp", "pipe_sgd(staleness=1,warmup=2)"])
    assert (seen["steps"], seen["target_loss"], seen["seed"], seen["repeat"]) == (5, 0.5, 3, 1)
    assert body["rows"][0]["measured"]["epoch_seconds"] == pytest.approx(0.4 * 5)
    assert page.read_text().startswith("<!doctype html>")
    assert {event["pid"] for event in json.loads(trace.read_text())["traceEvents"]} == {1, 2, 3, 4}
    steps = tmp_path / "steps.toml"
    code, out, _ = say(*words, "--target-loss", "0.5", "--write-steps", str(steps))
    assert (code, read_steps(steps).devices) == (0, comparison().cluster.size)  # type: ignore[union-attr]
    code, _, err = say(*words, "--write-steps", str(steps))
    assert (code, err.count("\n")) == (2, 1)
    assert "--write-steps is given without a loss; add --target-loss LOSS" in err
    code, out, _ = say(*words, "--out", str(tmp_path / "run"))
    assert (code, seen["steps"]) == (0, 0)
    assert "ddp is fastest" in out
    assert read_record(tmp_path / "run").rows[1:] == comparison().rows[1:]


def test_a_kept_run_becomes_a_page(say: Say, tmp_path: Path) -> None:
    write_run(nine(), tmp_path / "run")
    code, out, _ = say("report", str(tmp_path / "run"), "--json")
    page = tmp_path / "run" / "report.html"
    assert (code, json.loads(out)["path"], page.read_text()) == (0, str(page), comparison_page(nine()))
    code, out, _ = say("report", str(tmp_path / "run" / "report.json"), "-o", str(tmp_path / "other.html"))
    assert (code, (tmp_path / "other.html").read_text()) == (0, page.read_text())
    assert "local_sgd(period=4) is fastest" in out
    code, _, err = say("report", str(tmp_path))
    assert (code, err.count("\n")) == (2, 1)


def test_train_says_the_final_loss(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    from partita.plan.plan import Plan

    seen: dict[str, Any] = {}

    def stub(spec: str, plan: str, cluster: Cluster, **named: Any) -> api.Trained:
        seen.update(named)
        named["tell"]("training")
        return api.Trained(Plan("ddp"), measured(), ((0, 0.1, 2.0),), 1.5, 7, "run/model.safetensors")

    monkeypatch.setattr(api, "train", stub)
    words = (
        "train",
        "t",
        "--cluster",
        "local:2",
        "--plan",
        "ddp",
        "--steps",
        "7",
        "--out",
        "run",
        "--resume",
        "--deterministic",
    )
    code, out, err = say(*words, "--timeout", "9", "--init", "w", "--json")
    body = json.loads(out)
    assert (code, err) == (0, "partita: training\n")
    assert (body["final_loss"], body["steps"], body["step_seconds"]) == (1.5, 7, 0.4)
    given = {key: seen[key] for key in ("steps", "epochs", "out", "resume", "deterministic", "timeout", "init")}
    assert given == {
        "steps": 7, "epochs": 0, "out": "run", "resume": True, "deterministic": True, "timeout": 9.0, "init": "w",
    }  # fmt: skip
    monkeypatch.setenv("RANK", "1")
    assert say(*words, "--json")[1] == ""


@pytest.mark.parametrize("equal", [True, False])
def test_verify_answers_yes_or_no(say: Say, monkeypatch: pytest.MonkeyPatch, equal: bool) -> None:
    found = api.Verdict(equal, "exact", 1e-12, 1e-9, "one process", 1e-7, 2e-7)
    monkeypatch.setattr(api, "verify", lambda *given, **named: found)
    code, out, _ = say("verify", "t", "--plan", "ddp", "--json")
    body = json.loads(out)
    assert code == (0 if equal else 1)
    assert (body["equal"], body["class"], body["tolerance"], body["against"]) == (equal, "exact", 1e-9, "one process")
    assert ("error" in body) is not equal


def test_lab_runs_the_words_after_the_dashes(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def stub(cluster: Cluster, argv: list[str]) -> int:
        seen.extend(argv)
        return os.system("echo from the devices") or 5

    monkeypatch.setattr(api, "lab", stub)
    code, out, _ = say("cluster", "lab", "lab-2x2", "--", "python", "-c", "x", "--json")
    assert (code, seen, out) == (5, ["python", "-c", "x", "--json"], "from the devices\n")
    code, out, err = say("cluster", "lab", "lab-2x2", "--json", "--", "true")
    assert json.loads(out) == {"schema": 1, "exit_code": 5, "error": "true left with exit code 5"}
    assert err.startswith("from the devices\n")


@pytest.mark.parametrize(
    ("text", "plans"),
    [("ddp", ["ddp"]), ("a(x=1,y=2), b", ["a(x=1,y=2)", "b"]), ("a(x=(1,2),y=3),b", ["a(x=(1,2),y=3)", "b"])],
)
def test_commas_inside_parentheses_do_not_split(text: str, plans: list[str]) -> None:
    assert split_plans(text) == plans


@pytest.mark.parametrize("text", ["", "a,", "a(,b"])
def test_plans_that_cannot_be_split_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--plans"):
        split_plans(text)


@pytest.mark.parametrize("words", [("-h",), ("train", "-h"), ("cluster", "show", "--help")], ids=" ".join)
def test_help_is_asked_for_in_two_ways(say: Say, words: tuple[str, ...]) -> None:
    code, out, err = say(*words)
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: partita {' '.join(words[:-1])}".rstrip())


def test_help_has_whole_sentences_for_every_command(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert "..." not in say("--help")[1].partition("Commands:")[2]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("pln",), "partita: No such command 'pln'; did you mean 'plan'? see partita --help\n"),
        (("nope",), "partita: No such command 'nope'; see partita --help\n"),
    ],
)
def test_the_nearest_command_is_suggested(say: Say, words: tuple[str, ...], sentence: str) -> None:
    assert say(*words) == (2, "", sentence)


def test_help_names_the_variables(say: Say) -> None:
    out = " ".join(say("--help")[1].split())
    for name in ("PARTITA_PLUGINS", "PARTITA_TRACEBACK", "NO_COLOR", "RANK"):
        assert name in out


LIGHT = "import sys; from partita.__main__ import main; main(['--help']); "
LOADED = "print([m for m in ('torch', 'numpy', 'pydantic', 'rich', 'numba') if m in sys.modules])"


def test_help_is_quick_because_it_loads_little() -> None:
    out = subprocess.run([sys.executable, "-c", LIGHT + LOADED], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.splitlines()[-1] == "[]"
    assert "compare" in out.stdout


def test_the_module_is_a_command() -> None:
    words = [sys.executable, "-m", "partita", "recipes", "nope", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "error" in json.loads(done.stdout)
