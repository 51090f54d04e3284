"""Training through the Python interface."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import prlc
from prlc.engines import Execution
from prlc.methods import parse_method

EXECUTION = Execution(chunk=4, threads=1)
#: Of every family, and with something to remember on each side; slow tests run the whole table.
SOME = ["prlc:0.3", "diloco:5", "whisper:4", "scaffold:3:sample=0.5", "laq", "lag-ps", "ssp:1"]


class BrokenOffError(Exception):
    """Breaks a run off in the middle."""


def break_off(progress: prlc.Progress) -> None:
    if progress.step == 23:
        raise BrokenOffError


def train(method: prlc.Method, **settings: object) -> prlc.Result:
    data = prlc.data.load_digits()
    model = prlc.models.build("logistic", data.sample_shape, data.num_classes, 0)
    fixed = {"workers": 4, "steps": 40, "execution": EXECUTION, "network": "mobile"}
    return prlc.train(model, F.cross_entropy, data, method=method, **{**fixed, **settings})  # type: ignore[arg-type]


def assert_same(a: prlc.Result, b: prlc.Result) -> None:
    for x, y in zip(a.model.parameters(), b.model.parameters(), strict=True):
        assert torch.equal(x, y)
    assert a.metrics.equals(b.metrics)


def assert_resumes(method: prlc.Method, engine: str, folder: Path) -> None:
    """A run broken off resumes to the result of one that was not."""
    settings = {"engine": engine, "eval_every": 7, "checkpoint_every": 5}
    undisturbed = train(method, **settings)
    with pytest.raises(BrokenOffError):
        train(method, **settings, folder=folder, on_progress=break_off)
    assert_same(train(method, **settings, folder=folder, resume=True), undisturbed)


@pytest.mark.parametrize("engine", ["simulator", "reference"])
@pytest.mark.parametrize("text", SOME)
def test_a_run_broken_off_resumes_to_the_same_result(
    text: str, engine: str, tmp_path: Path
) -> None:
    assert_resumes(parse_method(text), engine, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["simulator", "reference"])
def test_every_run_broken_off_resumes_to_the_same_result(
    any_method: prlc.Method, engine: str, tmp_path: Path
) -> None:
    assert_resumes(any_method, engine, tmp_path / "run")


def assert_learns(method: prlc.Method) -> None:
    result = train(method, steps=150)
    assert result.summary["train_loss"] < 0.5
    assert result.summary["test_accuracy"] > 0.85


@pytest.mark.parametrize("text", SOME)
def test_a_method_learns(text: str) -> None:
    assert_learns(parse_method(text))


@pytest.mark.slow
def test_every_method_learns(any_method: prlc.Method) -> None:
    if any_method == prlc.LAGPS(smoothness=1.0):
        any_method = prlc.LAGPS(smoothness=20.0)  # nearer to this problem's: else nobody is asked
    assert_learns(any_method)


def test_the_same_seed_gives_the_same_result_and_another_does_not() -> None:
    assert_same(train(prlc.PRLC(0.3)), train(prlc.PRLC(0.3)))
    assert not train(prlc.PRLC(0.3), seed=1).metrics.equals(train(prlc.PRLC(0.3)).metrics)


def test_metrics_tell_traffic_and_time() -> None:
    nsgd, half = train(prlc.NSGD()), train(prlc.PRLC(0.5))
    size = (64 * 10 + 10) * 4
    last = nsgd.metrics.iloc[-1]
    assert last["bytes_up"] == last["bytes_down"] == 40 * 4 * size
    assert last["pulls_per_worker"] == last["pushes_per_worker"] == 40
    assert half.metrics["bytes_down"].iloc[-1] < last["bytes_down"]
    assert nsgd.metrics["simulated_seconds"].is_monotonic_increasing
    assert half.summary["simulated_seconds"] < nsgd.summary["simulated_seconds"]


def test_run_ahead_is_not_slower_than_a_barrier_among_unequal_workers() -> None:
    network = prlc.Network.of("lan", stragglers=0.25, straggler_factor=5.0, spread=0.5)
    barrier = prlc.Network.of(network, run_ahead=False)
    ahead = train(prlc.PRLC(0.1), network=network).summary["simulated_seconds"]
    assert ahead < train(prlc.PRLC(0.1), network=barrier).summary["simulated_seconds"]


def test_the_users_model_is_left_alone() -> None:
    model = nn.Linear(3, 2)
    before = [p.detach().clone() for p in model.parameters()]
    data = TensorDataset(torch.randn(60, 3), torch.randint(0, 2, (60,)))
    result = prlc.train(model, F.cross_entropy, data, workers=3, steps=5, execution=EXECUTION)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert not torch.equal(before[0], next(result.model.parameters()))


def test_regression_with_an_own_optimizer_and_no_test_data() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(200, 5)
    targets = inputs @ torch.randn(5, 1)
    result = prlc.train(
        nn.Linear(5, 1),
        F.mse_loss,
        (inputs, targets),
        method=prlc.PRLC(0.2),
        workers=5,
        steps=200,
        lr=0.05,
        schedule="cosine",
        optimizer=partial(torch.optim.AdamW, weight_decay=0.0),
        execution=EXECUTION,
    )
    assert result.summary["train_loss"] < 0.02
    assert result.summary["test_accuracy"] is None
    assert result.metrics["test_accuracy"].isna().all()


def test_momentum_on_the_server_speeds_up_small_steps() -> None:
    plain, outer = (
        train(prlc.LocalSGD(4), lr=0.005, server_optimizer=name) for name in ("add", "nesterov")
    )
    assert outer.summary["train_loss"] < 0.8 * plain.summary["train_loss"]


def test_label_skew_hurts_prlc() -> None:
    iid, skewed = (train(prlc.PRLC(0.05), partition=p) for p in ("iid", "shards:1"))
    assert skewed.summary["train_loss"] > 1.2 * iid.summary["train_loss"]


@pytest.mark.parametrize("engine", ["simulator", "reference"])
@pytest.mark.parametrize(
    ("model", "loss", "reason"),
    [
        (nn.Linear(5, 3), F.cross_entropy, "cannot be multiplied"),
        (nn.Linear(4, 2), F.cross_entropy, "out of bounds"),
        (nn.Linear(4, 3).double(), F.cross_entropy, "dtype"),
        (nn.Linear(4, 3), lambda outputs, _: outputs, "shape"),
        (nn.Linear(4, 3), lambda *_: 1.0, "a float, not a tensor"),
        (nn.Linear(4, 3).requires_grad_(False), F.cross_entropy, "frozen"),
        (nn.BatchNorm1d(4), F.cross_entropy, "more than 1 value per channel"),
    ],
)
def test_what_does_not_go_together_is_said(
    engine: str, model: nn.Module, loss: prlc.Loss, reason: str, tmp_path: Path
) -> None:
    data = (torch.randn(40, 4), torch.arange(40) % 3)
    settings = {"workers": 4, "steps": 3, "batch_size": 1, "execution": EXECUTION, "engine": engine}
    with pytest.raises(prlc.ConfigError, match=f"do not go together.*{reason}"):
        prlc.train(model, loss, data, folder=tmp_path / "r", **settings)  # type: ignore[arg-type]
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([[0, 1], [2, 3]], "made 2 parts, but there are 3 workers"),
        ([[0], [1], []], "2 has none"),
        ([[0], [1], [40]], "worker 2 samples numbered 40 to 40, but the data has 0 to 39"),
    ],
)
def test_a_partition_of_ones_own_is_checked(parts: list[list[int]], reason: str) -> None:
    class Own:
        def split(self, *_: object) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
            return [np.array(part, np.int64) for part in parts]

    data = (torch.randn(40, 4), torch.arange(40) % 3)
    with pytest.raises(prlc.DataError, match=reason):
        prlc.train(nn.Linear(4, 3), F.cross_entropy, data, workers=3, partition=Own(), steps=1)


@pytest.mark.parametrize("factory", [torch.optim.LBFGS, lambda _: None])
def test_optimizers_that_cannot_serve_are_refused(factory: Any) -> None:
    data = (torch.randn(40, 4), torch.arange(40) % 3)
    with pytest.raises(prlc.ConfigError, match="optimizer"):
        prlc.train(
            nn.Linear(4, 3),
            F.cross_entropy,
            data,
            workers=2,
            steps=1,
            optimizer=factory,
            execution=EXECUTION,
        )


def test_recurrent_and_sparse_modules_train() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(9, 6, sparse=True)
            self.read = nn.LSTM(6, 5, batch_first=True)
            self.out = nn.Linear(5, 3)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            states, _ = self.read(self.embed(tokens))
            output: torch.Tensor = self.out(states[:, -1])
            return output

    torch.manual_seed(0)
    model, data = Reader(), (torch.randint(0, 9, (60, 7)), torch.arange(60) % 3)
    settings: dict[str, Any] = {"workers": 3, "steps": 6, "batch_size": 4, "method": "prlc:0.5"}
    fast, plain = (
        prlc.train(model, F.cross_entropy, data, engine=e, execution=EXECUTION, **settings).model
        for e in ("simulator", "reference")
    )
    for x, y in zip(fast.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(x, y)


def test_tied_weights_stay_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.second(torch.tanh(self.first(inputs)))
            return output

    data = (torch.randn(40, 4), torch.randint(0, 4, (40,)))
    model = prlc.train(Tied(), F.cross_entropy, data, workers=4, steps=5, execution=EXECUTION).model
    assert isinstance(model, Tied)
    assert model.second.weight is model.first.weight


def test_the_trained_model_can_be_trained_on() -> None:
    model = train(prlc.PRLC(0.3)).model
    data = prlc.data.load_digits()
    F.cross_entropy(model(data.train_inputs), data.train_targets).backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("engine", ["simulator", "reference"])
def test_a_gpu_gives_the_same_and_resumes(
    any_method: prlc.Method, engine: str, tmp_path: Path
) -> None:
    settings = {"engine": engine, "eval_every": 7, "checkpoint_every": 5, "device": "cuda"}
    with pytest.raises(BrokenOffError):
        train(any_method, **settings, folder=tmp_path / "r", on_progress=break_off)
    resumed = train(any_method, **settings, folder=tmp_path / "r", resume=True)
    for x, y in zip(resumed.model.parameters(), train(any_method).model.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)


def test_evaluation_on_a_part_ends_with_all_test_data() -> None:
    part, whole = train(prlc.NSGD(), eval_samples=100), train(prlc.NSGD(), eval_samples=None)
    assert part.summary["test_accuracy"] == whole.summary["test_accuracy"]
    assert part.metrics["test_loss"].iloc[-1] != whole.metrics["test_loss"].iloc[-1]
    assert part.metrics["train_loss"].iloc[-1] != whole.metrics["train_loss"].iloc[-1]


def test_accuracy_and_loss_count_every_target_of_a_sample() -> None:
    text = torch.randint(5, (64, 9), generator=torch.Generator().manual_seed(0)).cumsum(1) % 5
    data = prlc.Dataset.of(((text[:48, :-1], text[:48, 1:]), (text[48:, :-1], text[48:, 1:])))
    torch.manual_seed(0)
    start = prlc.models.transformer((8,), 5, layers=1, width=8)
    result = prlc.train(
        start, prlc.models.cross_entropy, data, workers=3, steps=5, execution=EXECUTION
    )
    assert data.test_inputs is not None
    assert data.test_targets is not None
    scores = result.model(data.test_inputs)
    right = (scores.argmax(-1) == data.test_targets).double().mean().item()
    loss = F.cross_entropy(scores.movedim(-1, 1), data.test_targets).item()
    assert result.summary["test_accuracy"] == pytest.approx(right)
    assert result.summary["test_loss"] == pytest.approx(loss)


def test_a_method_is_compared_once() -> None:
    data = (torch.randn(40, 4), torch.randint(0, 4, (40,)))
    methods: list[str | prlc.Method] = ["nsgd", prlc.LAGPS(xi=2.0), prlc.LAGPS(), prlc.NSGD()]
    with pytest.raises(prlc.ConfigError, match="NSGD was given twice"):
        prlc.compare(nn.Linear(4, 4), F.cross_entropy, data, methods=methods, workers=2, steps=2)


def test_a_comparison_is_a_table_and_a_plot(tmp_path: Path) -> None:
    data = prlc.data.load_digits()
    model = prlc.models.build("mlp", data.sample_shape, data.num_classes, 0)
    comparison = prlc.compare(
        model,
        F.cross_entropy,
        data,
        methods=["nsgd", prlc.PRLC(0.1)],
        workers=4,
        steps=10,
        execution=EXECUTION,
    )
    assert comparison.table["method"].tolist() == ["NSGD", "PRLC r=0.1"]
    comparison.plot(tmp_path / "c.png")
    assert (tmp_path / "c.png").stat().st_size > 10_000
    figure = comparison[0].plot()
    assert len(figure.axes) == 3
    assert np.isfinite(comparison.table["train_loss"]).all()
