"""The same seed gives the same bits, also when a run is stopped and continued."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from itertools import islice

import pytest
import torch

from prlc.engines import Engine, Job, Reference, Simulator
from prlc.errors import CheckpointError, ConfigError
from prlc.methods import ASGD, LAGPS, LAGWK, PRLC, LocalSGD, Method
from prlc.network.clock import Arrival
from prlc.optim.optimizers import SERVER_OPTIMIZERS, WORKER_OPTIMIZERS, choose

from . import modules
from .builders import (
    ENGINES,
    arrivals_of,
    assert_identical,
    assert_same_reports,
    assert_same_traffic,
    global_tensors,
    job_of,
    run,
    saved_and_loaded,
    simulator,
    small_job,
)

BEFORE, AFTER = 7, 9
KINDS = [pytest.param("reference", marks=pytest.mark.slow), "all at once"]


def later_arrivals(job: Job) -> Iterator[Arrival]:
    """What is still to come after the first steps."""
    return islice(arrivals_of(job), BEFORE * job.num_workers, None)


def resumed(kind: str, job: Job) -> Engine:
    """A fresh engine for the second half of the run."""
    if kind == "reference":
        return Reference(job, later_arrivals(job))
    return simulator(6, later_arrivals)(job)


def assert_continues(kind: str, job: Job) -> None:
    """A run that goes through a file in the middle ends in the same bits as one that does not."""
    through = ENGINES[kind](job)
    run(through, BEFORE)
    state = saved_and_loaded(through.state())
    expected = run(through, AFTER)
    second = resumed(kind, job)
    second.load_state(state)
    assert second.steps_done == BEFORE
    assert_same_reports(run(second, AFTER), expected)
    assert_identical(global_tensors(second), global_tensors(through))
    assert_same_traffic(second, through)


@pytest.mark.parametrize("kind", KINDS)
class TestContinuing:
    def test_every_method_with_momentum(self, kind: str, any_method: Method) -> None:
        assert_continues(kind, job_of(any_method, optimizer=WORKER_OPTIMIZERS["momentum"]))

    @pytest.mark.parametrize("method", [PRLC(0.3), LAGWK(), ASGD()], ids=str)
    def test_adamw_and_momentum_on_the_server(self, kind: str, method: Method) -> None:
        worker, server = WORKER_OPTIMIZERS["adamw"], SERVER_OPTIMIZERS["nesterov"]
        assert_continues(kind, job_of(method, optimizer=worker, server_optimizer=server))

    @pytest.mark.parametrize("method", [PRLC(0.3), LAGPS(smoothness=1.0), ASGD()], ids=str)
    def test_batch_norm(self, kind: str, method: Method) -> None:
        assert_continues(kind, job_of(method, modules.with_batch_norm()))

    def test_buffers_that_a_checkpoint_of_the_module_leaves_out(self, kind: str) -> None:
        module = modules.MovingMeanInPlace(persistent=False)
        assert_continues(kind, job_of(PRLC(0.3), module))

    def test_dropout(self, kind: str) -> None:
        assert_continues(kind, job_of(PRLC(0.3), modules.with_dropout()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", [PRLC(0.3), LocalSGD(5), LAGPS(), LAGWK()], ids=str)
def test_an_engine_can_go_back_again_and_again(kind: str, method: Method) -> None:
    engine = ENGINES[kind](job_of(method, optimizer=WORKER_OPTIMIZERS["momentum"]))
    run(engine, 3)
    state = engine.state()
    run(engine, 4)
    expected = global_tensors(engine)
    for _ in range(2):  # the state is not worn out by being used
        engine.load_state(state)
        assert engine.steps_done == 3
        run(engine, 4)
        assert_identical(global_tensors(engine), expected)


#: With something to remember in every part: pulls under way, residuals, the server's momentum.
REMEMBERING = [
    "diloco:2:delay=1:up=int4,ef=yes,chunk=16",
    "prlc:0.5:meanwhile=snr:delay=2:down=int8,chunk=16",
    "prlc:0.5:every=2:meanwhile=gc:delay=3:blocks=2:down=topk,0.2,chunk=16,state=shared",
    "local-sgd:3:sample=0.5:up=topk,0.1,chunk=16:down=topk,0.3,chunk=16",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", REMEMBERING)
def test_parts_are_saved_inside_a_delay_rule_9(kind: str, text: str) -> None:
    """And may be loaded again and again."""
    job = small_job(text, num_workers=6, steps=BEFORE + AFTER)
    assert_continues(kind, job)
    engine = ENGINES[kind](job)
    run(engine, BEFORE)
    state = engine.state()
    run(engine, AFTER)
    expected = global_tensors(engine)
    for _ in range(2):
        again = ENGINES[kind](job)
        again.load_state(state)
        run(again, AFTER)
        assert_identical(global_tensors(again), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_the_server_keeps_its_optimizer_rule_21(kind: str) -> None:
    adamw = WORKER_OPTIMIZERS["adamw"]
    job = small_job("pr:0.5:delay=2", num_workers=6, optimizer=adamw, optimizer_at="server")
    assert_continues(kind, job)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_does_not_change_afterwards(kind: str, any_method: Method) -> None:
    job = job_of(
        any_method,
        optimizer=WORKER_OPTIMIZERS["momentum"],
        server_optimizer=choose(any_method.server, SERVER_OPTIMIZERS, "server"),
    )
    engine = ENGINES[kind](job)
    run(engine, 3)
    state = engine.state()
    before = BytesIO()
    torch.save(state, before)
    run(engine, 3)
    after = BytesIO()
    torch.save(state, after)
    assert before.getvalue() == after.getvalue()


@pytest.mark.parametrize("engine", KINDS)
def test_the_same_seed_gives_the_same_bits(engine: str, any_method: Method) -> None:
    first, second = (ENGINES[engine](job_of(any_method)) for _ in range(2))
    reports = run(first, 8)
    assert [r.loss for r in reports] == pytest.approx([r.loss for r in run(second, 8)], nan_ok=True)
    assert_identical(global_tensors(first), global_tensors(second))


@pytest.mark.parametrize("engine", KINDS)
def test_another_seed_gives_others(engine: str) -> None:
    first, other = (ENGINES[engine](job_of(PRLC(0.3), seed=seed)) for seed in (1, 2))
    run(first, 8)
    run(other, 8)
    with pytest.raises(AssertionError, match="differs"):
        assert_identical(global_tensors(first), global_tensors(other))


@pytest.mark.parametrize("engine", ENGINES)
def test_the_model_of_the_job_stays_as_it_was(engine: str) -> None:
    job = job_of(PRLC(0.3), modules.with_batch_norm())
    before = [tensor.clone() for tensor in job.model.state_dict().values()]
    made = ENGINES[engine](job)
    run(made, 3)
    assert_identical(list(job.model.state_dict().values()), before)
    assert all(parameter.grad is None for parameter in job.model.parameters())


@pytest.mark.parametrize("kind", [Reference, Simulator])
@pytest.mark.usefixtures("cache")
def test_asynchronous_methods_ask_for_arrivals(kind: type[Engine]) -> None:
    with pytest.raises(ConfigError, match=r"ASGD.*order of arrival.*network clock"):
        kind(job_of(ASGD())).step()


def test_models_in_another_memory_order_are_refused() -> None:
    engine = ENGINES["all at once"](job_of(PRLC(0.3)))
    state = engine.state()
    state["engine"]["workers"]["strides"][0] = [1, 1]
    with pytest.raises(CheckpointError, match="another order"):
        engine.load_state(state)
