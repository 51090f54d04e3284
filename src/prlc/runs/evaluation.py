"""How good the server's model is."""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor, nn

from prlc.engines import Job
from prlc.models import cross_entropy

Metrics = dict[str, float | None]

_BATCH = 250  # samples evaluated at once; larger batches of wide layers only cost memory


class Evaluator:
    """Loss and accuracy on a fixed part of the training data and of the test data."""

    def __init__(self, job: Job, samples: int | None) -> None:
        """`samples` of each at most; None: all."""
        self._job = job
        data = job.data
        part = data
        if samples is not None and samples < data.num_train:
            part = data.take(samples, job.seed)
        self._train = part.train_inputs, part.train_targets
        self._test = self._all_test = None
        if data.test_inputs is not None and data.test_targets is not None:
            self._all_test = data.test_inputs, data.test_targets
            self._test = data.test_inputs[:samples], data.test_targets[:samples]

    def __call__(self, model: nn.Module) -> Metrics:
        """Training loss, test loss and test accuracy (None where there is none)."""
        return self._evaluate(model, self._test)

    def final(self, model: nn.Module) -> Metrics:
        """The same with all of the test data."""
        return self._evaluate(model, self._all_test)

    def _evaluate(self, model: nn.Module, test: tuple[Tensor, Tensor] | None) -> Metrics:
        train_loss, _ = self._measure(model, *self._train)
        test_loss, accuracy = self._measure(model, *test) if test else (None, None)
        return {"train_loss": train_loss, "test_loss": test_loss, "test_accuracy": accuracy}

    @torch.inference_mode()
    def _measure(
        self, model: nn.Module, inputs: Tensor, targets: Tensor
    ) -> tuple[float, float | None]:
        was_training = model.training
        model.eval()
        total, right, counts = 0.0, 0, False
        for x, y in zip(torch.split(inputs, _BATCH), torch.split(targets, _BATCH), strict=True):
            x, y = x.to(self._job.device), y.to(self._job.device)  # noqa: PLW2901
            output = model(x)
            total += float(self._job.loss(output, y)) * len(x)
            if self._are_scores(output, y):
                counts = True
                right += int((output.argmax(-1) == y).sum())
        model.train(was_training)
        return total / len(inputs), right / targets.numel() if counts else None

    def _are_scores(self, output: object, targets: Tensor) -> TypeGuard[Tensor]:
        """Whether the output has a score for each class along its last axis."""
        if not isinstance(output, Tensor) or targets.is_floating_point():
            return False
        return output.ndim == 2 or self._job.loss is cross_entropy
