"""How good the server's model is."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from prlc.engines import Job

Metrics = dict[str, float | None]

_BATCH = 2_000  # samples evaluated at once


class Evaluator:
    """Loss and accuracy on the training data (or a fixed part of it) and the test data."""

    def __init__(self, job: Job, samples: int | None) -> None:
        self._job = job
        data = job.data
        part = (
            data if samples is None or samples >= data.num_train else data.take(samples, job.seed)
        )
        self._part = part.train_inputs, part.train_targets
        self._whole = data.train_inputs, data.train_targets
        self._test = None
        if data.test_inputs is not None and data.test_targets is not None:
            self._test = data.test_inputs, data.test_targets

    def __call__(self, model: nn.Module) -> Metrics:
        """Training loss on the part, test loss and test accuracy (None where there is none)."""
        return self._evaluate(model, self._part)

    def whole(self, model: nn.Module) -> Metrics:
        """The same with all of the training data."""
        return self._evaluate(model, self._whole)

    def _evaluate(self, model: nn.Module, train: tuple[Tensor, Tensor]) -> Metrics:
        test = self._test
        train_loss, _ = self._measure(model, *train)
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
            if isinstance(output, Tensor) and output.ndim == 2 and not y.is_floating_point():
                counts = True
                right += int((output.argmax(1) == y).sum())
        model.train(was_training)
        return total / len(inputs), right / len(inputs) if counts else None
