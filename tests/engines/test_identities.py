"""Methods that are the same by mathematics are the same in every engine."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from prlc.encodings import Plain
from prlc.engines import Engine, Job
from prlc.methods import (
    ASGD,
    CMFL,
    LAGPS,
    LAGWK,
    LAQ,
    NSGD,
    PR,
    PRLC,
    SSP,
    LocalSGD,
    Method,
    parse_method,
)
from prlc.methods.compensation import ControlVariates, Share, State
from prlc.optim.optimizers import SERVER_OPTIMIZERS, WORKER_OPTIMIZERS, choose, set_lr

from .builders import (
    ENGINES,
    SIMULATOR_FIRST,
    assert_identical,
    global_tensors,
    job_of,
    largest_difference,
    run,
    small_data,
    small_job,
    small_model,
)

STEPS = {"logistic": 52, "cnn": 12}
PERIOD = 4


#: PRLC that pushes at every step and pulls at common ones: Local SGD, by another way.
PULL_TOGETHER = PRLC(1 / PERIOD, schedule="aligned")
CASES = [
    ("all at once", "logistic"),
    *(
        pytest.param(engine, model, marks=pytest.mark.slow)
        for engine, model in [
            ("reference", "logistic"),
            ("roles in two shards", "logistic"),
            ("reference", "cnn"),
            ("with a remainder", "cnn"),
        ]
    ),
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
        assert largest_difference(trained(engine, model, PULL_TOGETHER), local) < 1e-12
        assert largest_difference(local, trained(engine, model, NSGD())) > 1e-6

    def test_local_sgd_of_one_step_is_synchronous_sgd(self, engine: str, model: str) -> None:
        assert_identical(trained(engine, model, LocalSGD(1)), trained(engine, model, NSGD()))

    def test_gains_of_zero_and_one_are_pr_and_prlc(self, engine: str, model: str) -> None:
        for gain, plain in ((0.0, PR(0.3)), (1.0, PRLC(0.3))):
            shared = trained(engine, model, PR(0.3, meanwhile=Share(gain)))
            assert_identical(shared, trained(engine, model, plain))

    def test_ahead_of_messages_that_leave_nothing_out_is_a_share(
        self, engine: str, model: str
    ) -> None:
        """Whatever is sent at once is not waited for; only the own updates since count, by 1/P."""
        whole = parse_method("local-sgd:4:delay=3:up=topk,1.0,bits=32:meanwhile=ahead")
        share = LocalSGD(4, delay=3, meanwhile=Share(1 / 6))
        ours, theirs = (trained(engine, model, method) for method in (whole, share))
        assert largest_difference(ours, theirs) < 1e-8  # values travel in 32 bits
        assert largest_difference(ours, trained(engine, model, LocalSGD(4, delay=3))) > 1e-6

    @pytest.mark.parametrize("staleness_aware", [False, True])
    def test_asynchronous_alone_is_synchronous(
        self, engine: str, model: str, staleness_aware: bool
    ) -> None:
        alone = trained(engine, model, ASGD(staleness_aware), num_workers=1)
        assert largest_difference(alone, trained(engine, model, NSGD(), num_workers=1)) < 1e-13

    def test_ssp_without_a_limit_is_asgd_and_alone_it_is_synchronous(
        self, engine: str, model: str
    ) -> None:
        assert_identical(trained(engine, model, SSP(math.inf)), trained(engine, model, ASGD()))
        alone = trained(engine, model, SSP(2), num_workers=1)
        assert largest_difference(alone, trained(engine, model, NSGD(), num_workers=1)) < 1e-13

    @pytest.mark.parametrize("method", [LAGPS(xi=0.0), LAGWK(xi=0.0)], ids=str)
    def test_lag_without_patience_is_synchronous_sgd(
        self, engine: str, model: str, method: Method
    ) -> None:
        eager = ran(engine, model, method)
        difference = largest_difference(global_tensors(eager), trained(engine, model, NSGD()))
        assert difference < 1e-12
        assert (eager.traffic.pushes == STEPS[model]).all()
        assert (eager.traffic.pulls == STEPS[model]).all()

    def test_laq_that_loses_nothing_is_lag(self, engine: str, model: str) -> None:
        """Its messages are changes, so that sums differ in their last digits."""
        exact = ran(engine, model, LAQ(1.5, 4, math.inf, Plain()))
        lag = ran(engine, model, LAGWK(1.5, 4))
        assert np.array_equal(exact.traffic.pushes, lag.traffic.pushes)
        assert lag.traffic.pushes.sum() < 6 * STEPS[model]
        assert largest_difference(global_tensors(exact), global_tensors(lag)) < 1e-12

    def test_cmfl_without_a_threshold_is_synchronous_sgd(self, engine: str, model: str) -> None:
        eager = ran(engine, model, CMFL(0.0))
        difference = largest_difference(global_tensors(eager), trained(engine, model, NSGD()))
        assert difference < 1e-13
        assert (eager.traffic.pushes == STEPS[model]).all()


class Uncontrolled(ControlVariates):
    """Its control variates stay zero."""

    def push(self, state: State, own: Tensor, *_: Any) -> tuple[State, Tensor, Tensor]:
        return state, own, torch.zeros_like(own)


def small(engine: str, text: str, **more: Any) -> Engine:
    made = ENGINES[engine](small_job(text, steps=40, **more))
    run(made, 40)
    return made


def assert_same_by(engine: str, one: str, other: str, within: float = 0.0, **more: Any) -> None:
    ours, theirs = (global_tensors(small(engine, text, **more)) for text in (one, other))
    assert largest_difference(ours, theirs) <= within


@pytest.mark.parametrize("engine", SIMULATOR_FIRST)
class TestIdentitiesOfParts:
    @pytest.mark.parametrize("text", ["prlc:0.3", "local-sgd:5:up=topk,0.2,chunk=16"])
    def test_no_delay_is_a_delay_of_zero_rule_11(self, engine: str, text: str) -> None:
        assert_same_by(engine, f"{text}:delay=0", text)

    @pytest.mark.parametrize("text", ["prlc:0.3:delay=3", "pr:0.3:down=int8,chunk=16"])
    def test_one_block_is_the_whole_model_rule_5(self, engine: str, text: str) -> None:
        assert_same_by(engine, f"{text}:blocks=1", text)

    def test_a_sample_of_all_is_everybody_rule_6(self, engine: str) -> None:
        assert_same_by(engine, "local-sgd:5:sample=1", "local-sgd:5")

    def test_equal_shards_weigh_the_same_rule_4(self, engine: str) -> None:
        job = small_job("prlc:0.3:weights=samples", num_workers=4)
        assert len({len(shard) for shard in job.shards}) == 1
        assert_same_by(engine, "prlc:0.3:weights=samples", "prlc:0.3", within=1e-13, num_workers=4)

    @pytest.mark.parametrize("up", ["float32", "topk,1,bits=32,ef=no,chunk=16"])
    def test_an_encoding_that_loses_nothing_is_plain_rule_16(self, engine: str, up: str) -> None:
        """In a model of 32 bits; only the order of additions may differ."""
        singles = {"model": small_model().float(), "data": small_data().to("cpu", torch.float32)}
        assert_same_by(engine, f"prlc:0.3:up={up}", "prlc:0.3", within=2e-5, **singles)

    def test_a_single_worker_that_pulls_late_but_adds_its_own_rule_2(self, engine: str) -> None:
        """It knows all that the server knows, so delay and blocks change nothing."""
        for text in ("cocod-sgd:5", "prlc:0.3:delay=4:blocks=2", "prlc:0.25:schedule=exact"):
            assert_same_by(engine, text, "nsgd", within=1e-12, num_workers=1)

    def test_with_everybody_pulling_schedules_agree_rule_2(self, engine: str) -> None:
        for schedule in ("staggered", "aligned", "exact"):
            assert_same_by(engine, f"prlc:1:every=3:schedule={schedule}", "local-sgd:3")

    def test_streaming_in_one_piece_is_diloco_rule_12(self, engine: str) -> None:
        """One fragment, tau 0, alpha 0 and plain messages: a displacement is the sum of updates."""
        whole = "streaming-diloco:5:blocks=1:delay=0:up=plain:meanwhile=mix,0"
        assert_same_by(engine, whole, "diloco:5", within=1e-12)

    def test_eager_alone_is_diloco_alone(self, engine: str) -> None:
        alone: dict[str, Any] = {"num_workers": 1}
        alone["server_optimizer"] = choose("nesterov,lr=0.4", SERVER_OPTIMIZERS, "server")
        assert_same_by(engine, "eager-diloco:5", "diloco:5", within=1e-12, **alone)

    def test_scaffold_without_control_variates_is_local_sgd(self, engine: str) -> None:
        made = ENGINES[engine](small_job(LocalSGD(5, meanwhile=Uncontrolled()), steps=40))
        run(made, 40)
        plain = global_tensors(small(engine, "local-sgd:5"))
        assert largest_difference(global_tensors(made), plain) < 1e-12
        assert made.traffic.bytes_up > small(engine, "local-sgd:5").traffic.bytes_up

    def test_stc_of_everything_as_it_is_is_synchronous(self, engine: str) -> None:
        """In a model of 32 bits, whose numbers travel as they are."""
        singles = {"model": small_model().float(), "data": small_data().to("cpu", torch.float32)}
        assert_same_by(engine, "stc:1:bits=32:chunk=16", "nsgd", within=2e-5, **singles)

    def test_signs_of_the_mean_are_all_that_a_sign_step_needs(self, engine: str) -> None:
        gathered = "demo:0.2:chunk=16:transform=no"
        assert_same_by(engine, f"{gathered}:down=signs,what=mean,chunk=16", gathered, within=1e-12)

    def test_blocks_in_turn_without_messages_between_are_pushed_in_the_end(
        self, engine: str
    ) -> None:
        """A last shorter round sends all blocks, so that nothing that was computed is lost."""
        alone = {"num_workers": 1, "steps": 40}
        made = ENGINES[engine](small_job("local-sgd:7:blocks=3:push_blocks=turn", **alone))
        run(made, 40)
        assert largest_difference(
            global_tensors(made), global_tensors(small(engine, "nsgd", num_workers=1))
        ) < 1e-12  # fmt: skip

    def test_pipe_sgd_keeps_workers_equal_and_one_step_behind(self, engine: str) -> None:
        """x(t+1) = x(t) - lr g(x(t-1)): by hand, with everybody's batches joined."""
        job = small_job("pipe-sgd", model=nn.Linear(6, 4).double(), steps=20)
        made = ENGINES[engine](job)
        run(made, 20)
        models = [list(job.model.parameters())] * 2
        for step in range(20):
            gradients = joint_gradients(job, models[-2], step)
            pairs = zip(models[-1], gradients, strict=True)
            models.append([(x - job.lr(step) * g).detach() for x, g in pairs])  # type: ignore[misc]
        assert largest_difference(global_tensors(made), models[-1]) < 1e-12

    @pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw"])
    def test_the_optimizer_on_the_server_is_one_process_rule_21(
        self, engine: str, optimizer: str
    ) -> None:
        """Synchronous SGD equals torch on the joint batch, with a cosine schedule."""

        def cosine(step: int) -> float:
            return 0.01 * (1 + math.cos(math.pi * step / 60))

        factory = WORKER_OPTIMIZERS[optimizer]
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()
        job = small_job(
            "nsgd", model=model, optimizer=factory, optimizer_at="server", lr=cosine, steps=60
        )
        made = ENGINES[engine](job)
        run(made, 60)
        own = copy.deepcopy(model)
        torch_optimizer = (factory or partial(torch.optim.SGD, lr=1.0))(own.parameters())
        for step in range(60):
            for parameter, gradient in zip(
                own.parameters(), joint_gradients(job, list(own.parameters()), step), strict=True
            ):
                parameter.grad = gradient
            set_lr(torch_optimizer, cosine(step))
            torch_optimizer.step()
        theirs = [parameter.detach() for parameter in own.parameters()]
        assert largest_difference(global_tensors(made), theirs) < 1e-10


def joint_gradients(job: Job, parameters: Sequence[Tensor], step: int) -> list[Tensor]:
    """The gradients of the loss on the batches of all workers together."""
    P = job.num_workers
    chosen = job.batches().take(np.arange(P), np.full(P, step)).reshape(-1)
    model = copy.deepcopy(job.model)
    for own, given in zip(model.parameters(), parameters, strict=True):
        own.data.copy_(given)
    loss = job.loss(model(job.data.train_inputs[chosen]), job.data.train_targets[chosen])
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("engine", SIMULATOR_FIRST)
def test_compensation_changes_the_models_but_not_the_traffic(engine: str) -> None:
    held, compensated = ran(engine, "logistic", PR(0.3)), ran(engine, "logistic", PRLC(0.3))
    assert np.array_equal(held.traffic.pulls, compensated.traffic.pulls)
    assert largest_difference(global_tensors(held), global_tensors(compensated)) > 1e-6


@pytest.mark.parametrize("engine", SIMULATOR_FIRST)
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


@pytest.mark.parametrize("engine", SIMULATOR_FIRST)
def test_of_cmfl_that_never_agrees_one_pushes(engine: str) -> None:
    reports = run(ENGINES[engine](job_of(CMFL(1.0))), 20)
    assert reports[0].pushes.all()
    drawn = [CMFL(1.0).always_pushes(1, step, 6) for step in range(1, 20)]
    assert [np.flatnonzero(report.pushes).tolist() for report in reports[1:]] == [
        [i] for i in drawn
    ]


@pytest.mark.parametrize("engine", SIMULATOR_FIRST)
@pytest.mark.parametrize("window", [1, 2])
def test_with_ssp_nobody_is_further_ahead_than_the_window(engine: str, window: int) -> None:
    """Whoever waits has finished one step more; ASGD's stragglers stay far behind."""

    def furthest(method: Method) -> int:
        made = ENGINES[engine](job_of(method))
        pushes = np.cumsum([report.pushes for report in run(made, 30)], axis=0)
        return int((pushes.max(1) - pushes.min(1)).max())

    assert furthest(SSP(window)) == window + 1
    assert furthest(ASGD()) > 10
