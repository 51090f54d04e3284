"""Methods that are the same by mathematics are the same in every engine."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from numpy.typing import ArrayLike
from torch import Tensor

from prlc.engines import Engine
from prlc.methods import ASGD, LAGPS, LAGWK, NSGD, PR, PRLC, LocalSGD, Mask, Method

from .builders import (
    ENGINES,
    assert_identical,
    global_tensors,
    job_of,
    largest_difference,
    run,
)

STEPS = {"logistic": 52, "cnn": 12}
PERIOD = 4


class PullTogether(PRLC):
    """PRLC that pushes at every step and pulls at common ones: Local SGD, by another way."""

    def pulls(self, seed: int, workers: ArrayLike, steps: ArrayLike) -> Mask:
        del seed
        common = np.equal((np.asarray(steps) + 1) % PERIOD, 0)
        return np.broadcast_arrays(common, np.asarray(workers))[0]


CASES = [
    *((engine, "logistic") for engine in ENGINES),
    *((engine, "cnn") for engine in ("reference", "with a remainder")),
]


def trained(engine: str, model: str, method: Method, num_workers: int = 6) -> list[Tensor]:
    return global_tensors(ran(engine, model, method, num_workers))


@cache
def ran(engine: str, model: str, method: Method, num_workers: int = 6) -> Engine:
    made = ENGINES[engine](job_of(method, model, num_workers=num_workers, batch_size=2))
    run(made, STEPS[model])
    return made


@pytest.mark.parametrize(("engine", "model"), CASES)
class TestIdentities:
    def test_always_pulling_is_synchronous_sgd(self, engine: str, model: str) -> None:
        synchronous = trained(engine, model, NSGD())
        assert_identical(trained(engine, model, PR(1.0)), synchronous)
        assert_identical(trained(engine, model, PRLC(1.0)), synchronous)

    def test_pulling_together_is_local_sgd(self, engine: str, model: str) -> None:
        local = trained(engine, model, LocalSGD(PERIOD))
        assert_identical(trained(engine, model, PRLC(1.0, every=PERIOD)), local)
        assert largest_difference(trained(engine, model, PullTogether()), local) < 1e-12
        assert largest_difference(local, trained(engine, model, NSGD())) > 1e-6

    def test_local_sgd_of_one_step_is_synchronous_sgd(self, engine: str, model: str) -> None:
        assert_identical(trained(engine, model, LocalSGD(1)), trained(engine, model, NSGD()))

    @pytest.mark.parametrize("staleness_aware", [False, True])
    def test_asynchronous_alone_is_synchronous(
        self, engine: str, model: str, staleness_aware: bool
    ) -> None:
        alone = trained(engine, model, ASGD(staleness_aware), num_workers=1)
        assert largest_difference(alone, trained(engine, model, NSGD(), num_workers=1)) < 1e-13

    @pytest.mark.parametrize("method", [LAGPS(xi=0.0), LAGWK(xi=0.0)], ids=repr)
    def test_lag_without_patience_is_synchronous_sgd(
        self, engine: str, model: str, method: Method
    ) -> None:
        eager = ran(engine, model, method)
        difference = largest_difference(global_tensors(eager), trained(engine, model, NSGD()))
        assert difference < 1e-12
        assert (eager.traffic.pushes == STEPS[model]).all()
        assert (eager.traffic.pulls == STEPS[model]).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_compensation_changes_the_models_but_not_the_traffic(engine: str) -> None:
    held, compensated = ran(engine, "logistic", PR(0.3)), ran(engine, "logistic", PRLC(0.3))
    assert np.array_equal(held.traffic.pulls, compensated.traffic.pulls)
    assert largest_difference(global_tensors(held), global_tensors(compensated)) > 1e-6


@pytest.mark.parametrize("engine", ENGINES)
def test_lag_that_never_has_enough_reuses_old_gradients(engine: str) -> None:
    """With a huge xi only the first gradients are ever pushed."""
    made = ENGINES[engine](job_of(LAGWK(xi=1e12)))
    reports = run(made, 8)
    assert reports[0].pushes.all()
    assert not any(report.pushes.any() for report in reports[1:])
    assert all(report.pulls.all() for report in reports)
    server = ENGINES[engine](job_of(LAGPS(xi=1e12, smoothness=1.0)))
    reports = run(server, 8)
    assert reports[0].pushes.all()
    assert not any(report.pulls.any() for report in reports)
    assert not any(report.computes.any() for report in reports[1:])
    assert all(np.isnan(report.loss) for report in reports[1:])
    # Both take the very same step eight times.
    assert_identical(global_tensors(made), global_tensors(server))
