"""The zoo's own networks under every plan: BatchNorm against the same sub-batches, dropout keyed by sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from partita.oracles.check import TOLERANCE, checked
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.workload import Workload
from partita.task import Task
from partita.zoo.convolutional import AlexNet, Vgg16
from partita.zoo.data import Image, Synthetic
from partita.zoo.resnet import ResNet50
from partita.zoo.tasks import on_images
from tests.captures import capture
from tests.small import cluster_of, perceptron

PLANS = ("single", "ddp", "ps_sync", "pipe_sgd", "local_sgd(period=2)")
CLASSES = 4
TASKS: dict[str, Callable[[], Task]] = {  # the smallest images and minibatches that the models take
    "resnet50": lambda: on_images("resnet50", partial(ResNet50, CLASSES), 32, classes=CLASSES, batch_size=4),
    "vgg16": lambda: on_images("vgg16", partial(Vgg16, 32, CLASSES), 32, classes=CLASSES, batch_size=2),
    "alexnet": lambda: on_images("alexnet", partial(AlexNet, CLASSES), 224, classes=CLASSES, batch_size=2),
}


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", TASKS)
def test_a_plan_equals_its_serial_training(name: str, plan: str) -> None:
    machines = cluster_of(2)
    found = checked(TASKS[name](), lambda graph: call(plan, graph, machines), machines, steps=2)
    assert found["max_difference"] <= TOLERANCE


def test_samples_that_are_drawn_are_the_same_in_every_precision() -> None:
    """The graph's precision is none of the data set's business."""

    def loss(model: Any, batch: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(batch[0].flatten(1)[:, :6]), batch[1])

    task = replace(perceptron(), data=Synthetic(48, Image(2, 3)), loss=loss)
    losses = {}
    for precision in ("fp32", "fp64"):
        graph, machines = capture(task, precision=precision), cluster_of(2)
        plan = call("ddp", graph, machines)
        losses[precision] = train_in_process(Workload(task, graph, precision=precision), plan, machines, 1)[1][0]
    assert losses["fp32"] == pytest.approx(losses["fp64"], rel=1e-5)
    assert torch.get_default_dtype() is torch.float32
