"""FAULTS section 5: whatever is wrong in a model, its data, a plan or an option is one sentence, and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from partita.__main__ import main
from partita.errors import TaskError
from partita.oracles import check
from partita.runs.weights import first_weights
from tests.small import perceptron

TASKS = Path(__file__).with_name("bad_tasks.py")
# number in the list -> function of bad_tasks.py, what is said
MODELS = {
    "2": ("absent", "has no function 'absent'; name the function that returns a Task"),
    "2 value": ("A_NUMBER", "has 'A_NUMBER', of type int; name the function that returns a Task"),
    "2 raises": ("fails", "failed (RuntimeError: my own bug); it takes no arguments and returns a partita.Task"),
    "2 leaves": ("leaves", "failed (SystemExit: 0); it takes no arguments"),
    "2 arguments": ("wants", "failed (TypeError: wants() missing 1 required positional argument"),
    "2 no task": ("is_none", "returned int; it must return a partita.Task"),
    "3": ("no_module", "returned int; return a torch.nn.Module"),
    "3 raises": ("no_model", "cannot be built (TypeError"),
    "3 leaves": ("leaves_early", "Task.model of 'perceptron' left with exit code 7 before it was done"),
    "4": ("no_parameters", "has no parameters; give a model that can be trained"),
    "5": ("frozen", "requires a gradient; set requires_grad"),
    "6": ("other_inputs", "make task.loss(task.model(), batch) work on its own first"),
    "7 scalar": ("no_scalar", "return one float, the mean over the samples"),
    "7 detached": ("detached", "is detached from the parameters"),
    "7 tensor": ("no_tensor", "is of type float; return a scalar tensor or (sum, weight)"),
    "10": ("changes_a_parameter", "'inner.weight' in place; bound what it reads instead, in forward() (weight.clamp("),
    "14": ("sparse", "is sparse or quantized; make it a dense float tensor"),
    "47 empty": ("no_samples", "holds no samples; give 12 or more"),
    "47": ("too_few", "lower batch_size to 5 or less"),
    "47 batch": ("no_batch", "Task.batch_size is 0"),
    "48": ("no_length", "has no length; give a map-style dataset"),
    "49 nothing": ("samples_of_nothing", "could not be made a batch"),
    "49 fails": ("data_fails", "could not be made a batch (ZeroDivisionError"),
    "optimizer": ("no_optimizer", "return a torch.optim.Optimizer over the parameters given"),
    "rate": ("bad_rate", "Invalid learning rate"),
    "complex": ("complex_weight", "parameter 'phases' is complex; keep it as real numbers, two in its last dimension"),
    "lazy": ("lazy", "parameter 'weight' has no shape before the model has run; run it once on a sample"),
    "buffer": ("trains_a_buffer", "buffer 'scale' requires a gradient; make it a Parameter, or detach it"),
    "hook": ("steps_early", "parameter 'inner.weight' has a hook that runs once its gradient is there"),
    "sparse gradient": ("sparse_gradient", "parameter '0.weight' gets a sparse gradient; use a layer without"),
    "schedule": ("watches_the_loss", "could not be stepped without arguments (TypeError"),
    "wide": ("wide_model", "parameter 'weight' is float64 and Task.precision is 'fp32'; give precision='fp64'"),
    "short": ("short_model", "parameter 'weight' is bfloat16 and Task.precision is 'fp32'; give precision='bf16'"),
    "closure": ("wants_a_closure", "over the parameters given whose step takes no arguments"),
    "bound": ("no_bound", "Task.clip_norm is -1.0; give a bound above 0, or None"),
}  # fmt: skip
OPTIONS = {
    "30": (["--plan", "gpipe(stages=2,microbatches=100)"], "a larger batch_size"),
    "32": (["--plan", "gpipe(stages=99)"], "gpipe needs 99 x 1 devices and local:2 has 2; ask for fewer"),
    "35": (["--plan", "newer.toml"], "the plan has schema 7; this version reads schema 1"),
    "36": (["--plan", "hand.toml"], "mine needs 3 devices"),
    "28": (["--plan", "nan.toml"], "plan.memory.budget is nan; a finite number belongs there"),
    "23 all": (["--plan", "ps_sync(servers=2)"], "mesh axis 'data' has length 0; 1 or more is allowed"),
    "23": (["--plan", "ps_sync(servers=9)"], "1 or more is allowed, and 9 devices serve: ask for fewer servers"),
    "23 tiers": (["--plan", "ps_hierarchical"], "and 2 devices serve: take a cluster of 3 devices or more"),
    "39": (["--plan", "magic(x=1)"], "there is no recipe 'magic'"),
    "39 unit": (["--plan", "ddp(bucket_bytes=4MiB)"], "bucket_bytes takes a number, as in ddp(bucket_bytes=1048576)"),
    "39 code": (["--plan", "__import__('os').system('true')"], "is no recipe call"),
    "39 lag": (["--plan", "pipe_sgd(staleness=100000000)"], "up to 1000 gradients in flight"),
    "39 period": (["--plan", "local_sgd(period=100000)"], "10000 steps of a period are allowed"),
}  # fmt: skip
PLANS = {
    "newer": 'schema = 7\nname = "mine"\n',
    "hand": 'schema = 1\nname = "mine"\nsync = [{}]\n[mesh]\naxes = [["data", 3]]\n',
    "nan": 'schema = 1\nname = "mine"\nsync = [{}]\n[mesh]\naxes = [["data", 2]]\n[memory]\nbudget = nan\n',
}


def said(words: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """The one sentence with which a command line is refused; progress apart."""
    monkeypatch.delenv("PARTITA_TRACEBACK", raising=False)
    capfd.readouterr()
    code, (out, err) = main(words), capfd.readouterr()
    assert (code, out) == (2, ""), err
    assert "Traceback" not in err
    told, last = err.splitlines()[:-1], err.splitlines()[-1]
    assert all(line.startswith("partita: capturing") for line in told), err
    assert last.startswith("partita: ")
    return last


def test_a_model_too_large_to_verify_is_refused_at_once(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["verify", "gpt3-175b", "--plan", "ddp", "--cluster", "local:2"]
    assert "verifying 'gpt3-175b' takes 5.08 TiB and more" in said(words, capfd, monkeypatch)


def test_what_lies_there_is_not_lost(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "result.json").touch()
    words = ["compare", "digits-cnn", "--cluster", "local:2", "--plans", "ddp", "--out", str(tmp_path)]
    assert f"{tmp_path} holds a training run; give another --out" in said(words, capfd, monkeypatch)
    mine = tmp_path / "mine.toml"
    assert main(["cluster", "show", "lab-2x2", "-o", str(mine)]) == 0
    assert main(["cluster", "show", "lab-2x2", "-o", str(mine)]) == 0
    mine.write_text(f"# mine\n{mine.read_text()}")
    words = ["cluster", "show", "lab-2x2", "-o", str(mine)]
    assert "is there and says something else" in said(words, capfd, monkeypatch)
    assert mine.read_text().startswith("# mine")


@pytest.mark.parametrize("number", MODELS)
def test_a_bad_model_or_bad_data_is_one_sentence(
    number: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    function, sentence = MODELS[number]
    assert sentence in said(["capture", f"{TASKS}:{function}"], capfd, monkeypatch)


@pytest.mark.parametrize(
    ("function", "code", "sentence"),
    [
        ("leaves_out", 2, "the optimizer leaves out 5 of 6 parameters that it is given"),
        ("labels_beyond", 3, "a step of 'perceptron' failed (IndexError: Target 9"),
        ("tires", 3, "a step of 'perceptron' failed (KeyError: 'late'); look at its samples"),
    ],
)
def test_a_step_that_cannot_be_taken_is_one_sentence(
    function: str, code: int, sentence: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bad input 50, and what only a step of the whole model shows."""
    monkeypatch.delenv("PARTITA_TRACEBACK", raising=False)
    assert main(["verify", f"{TASKS}:{function}", "--plan", "ddp", "--cluster", "local:2"]) == code
    assert sentence in capfd.readouterr().err.splitlines()[-1]


def test_a_fault_of_our_own_is_told_as_one(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PARTITA_TRACEBACK", raising=False)
    monkeypatch.delitem(check.AGAINST, "exact")
    assert main(["verify", f"{TASKS}:perceptron", "--plan", "ddp", "--cluster", "local:2"]) == 3
    assert "this should not have happened (KeyError: 'exact')" in capfd.readouterr().err


@pytest.mark.parametrize("number", OPTIONS)
def test_a_bad_plan_is_one_sentence(
    number: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, text in PLANS.items():
        (tmp_path / f"{name}.toml").write_text(text)
    words, sentence = OPTIONS[number]
    words = [str(tmp_path / word) if word.endswith(".toml") else word for word in words]
    given = ["simulate", f"{TASKS}:perceptron", "--cluster", "local:2", "--costs", "datasheet"]
    assert sentence in said([*given, *words], capfd, monkeypatch)


@pytest.mark.parametrize("text", ["def f(:", "import what_is_not_there", "raise ValueError('early')"])
def test_a_file_that_is_no_python_is_one_sentence(
    text: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Bad input 1."""
    (tmp_path / "mine.py").write_text(text)
    found = said(["capture", f"{tmp_path}/mine.py:task"], capfd, monkeypatch)
    assert "mine.py cannot be loaded (" in found
    assert "there is no file" in said(["capture", f"{tmp_path}/absent.py:task"], capfd, monkeypatch)


@pytest.mark.parametrize("value", ["-1", "0", "nan", "inf", "1e300"])
def test_a_negative_or_huge_timeout_is_one_sentence(
    value: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bad input 59."""
    given = ["train", f"{TASKS}:perceptron", "--cluster", "local:2", "--plan", "ddp", "--steps", "1"]
    assert "--timeout" in said([*given, "--timeout", value], capfd, monkeypatch)


def test_weights_that_are_none_are_one_sentence(tmp_path: Path) -> None:
    """`--init` with a file of something else."""
    (tmp_path / "weights").write_text("something else")
    with pytest.raises(TaskError, match=r"weights holds no weights .* give a file that `partita train --out` wrote"):
        first_weights(perceptron(), 0, str(tmp_path / "weights"))
