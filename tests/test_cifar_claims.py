"""The paper's setting for logistic regression on the real CIFAR-10, at a small step size."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch.nn import functional as F

import prlc

pytestmark = [pytest.mark.cifar, pytest.mark.timeout(1800)]


def test_prlc_reaches_nsgds_loss_with_a_tenth_of_the_pulls_and_pr_breaks_first(
    published: Callable[[str], str],
) -> None:
    data = prlc.data.load("cifar10", published("data_batch_1*"))
    model = prlc.models.build("logistic", data.sample_shape, data.num_classes, 0)
    nsgd, tenth, hundredth, uncompensated = prlc.compare(
        model,
        F.cross_entropy,
        data,
        methods=[prlc.NSGD(), prlc.PRLC(0.1), prlc.PRLC(0.01), prlc.PR(0.01)],
        workers=20,
        batch_size=10,
        epochs=18,
        lr=0.01,
        schedule="step:9:0.1",
        eval_every=1125,
        eval_samples=None,
    ).rows()
    assert nsgd["steps"] == 4500
    assert tenth["train_loss"] == pytest.approx(nsgd["train_loss"], rel=0.01)
    assert tenth["pull_fraction"] == pytest.approx(0.1, abs=0.005)
    assert uncompensated["train_loss"] > 1.02 * hundredth["train_loss"]
