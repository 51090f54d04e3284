"""Reference and simulator agree on every choice of parts: models, messages and bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from prlc.data import Dataset
from prlc.engines import Job, Reference, Simulator
from prlc.errors import ConfigError, DivergedError
from prlc.methods import METHODS, NSGD, PRLC, Scheduled
from prlc.methods.check import SCHEDULES
from prlc.methods.compensation import COMPENSATIONS
from prlc.optim.optimizers import WORKER_OPTIMIZERS
from processes.problems import problem

from .builders import (
    assert_plans_match_reference,
    assert_same_reports,
    assert_same_traffic,
    global_tensors,
    largest_difference,
    reference,
    roles,
    run,
    simulator,
    small_job,
)

STEPS = 60
#: How long every choice runs in `make test`, and in `make test-slow`.
LENGTHS = [24, pytest.param(STEPS, marks=pytest.mark.slow)]
#: Presets with settings that suit a small model: chunks of which it has several, short rounds.
SMALL = [
    "pr:0.3", "prlc:0.3", "local-sgd:5", "local-sgd:7", "cocod-sgd:5", "diloco:5",
    "fedprox:5:mu=0.5", "sparseloco:5:up=topk,0.2,bits=2,decay=0.95,chunk=16",
    "qsgd:up=int8,l2,chunk=16", "terngrad:up=ternary,chunk=16",
    "topk:up=topk,0.1,bits=32,chunk=16", "ef21-p:down=topk,0.1,bits=32,chunk=16",
    "scaffold:5", "eager-diloco:5", "streaming-diloco:6:up=int4,chunk=16", "stc:0.2:chunk=16",
    "demo:0.2:chunk=16",
]  # fmt: skip
_SCHEDULED = {name for name, kind in METHODS.items() if issubclass(kind, Scheduled)}
#: Every preset that is a choice of parts; the others as they are.
PRESETS = [*SMALL, *sorted(_SCHEDULED - {text.partition(":")[0] for text in SMALL})]
ENCODED = [
    "float32", "bfloat16", "float16", "int8,chunk=16", "int8,l2,chunk=16", "int4,chunk=16",
    "int2,chunk=16", "ternary,chunk=16", "topk,0.2,chunk=16", "topk,0.2,bits=2,chunk=16",
    "topk,0.2,bits=32,chunk=16", "topk,0.2,bits=1,chunk=16", "topk,0.2,chunk=16,transform=yes",
    "signs,chunk=16", "signs,chunk=16,ef=yes",
]  # fmt: skip
CHOICES = [
    # how late, in blocks (rules 1, 2, 3, 5)
    *(f"prlc:0.3:delay={delay}:blocks={blocks}" for delay in (0, 1, 7) for blocks in (1, 3)),
    "pr:0.3:delay=3", "local-sgd:7:delay=7:blocks=3", "prlc:0.5:every=4:delay=3",
    "prlc:0.3:meanwhile=share,0.4:delay=3", "prlc:0.3:meanwhile=share,1.3:blocks=3",
    # who pulls (rule 2)
    *(f"prlc:0.25:schedule={schedule}" for schedule in SCHEDULES),
    *(f"prlc:0.25:every=2:schedule={schedule}:delay=3" for schedule in SCHEDULES),
    # compensations that learn (rules 14, 19)
    "prlc:0.3:meanwhile=snr", "prlc:0.3:meanwhile=snr:delay=2:blocks=2",
    "prlc:0.3:every=3:meanwhile=snr:up=topk,0.2,chunk=16", "prlc:0.3:meanwhile=gc",
    "prlc:0.3:every=2:meanwhile=gc:delay=3:blocks=2", "prlc:0.3:meanwhile=prox,0.5:delay=2",
    # who takes part (rules 4, 6)
    "local-sgd:4:sample=0.5", "local-sgd:4:sample=0.3:weights=samples:up=topk,0.2,chunk=16",
    "nsgd:weights=samples", "prlc:0.3:weights=samples:meanwhile=snr",
    "fedprox:4:sample=0.5:mu=0.3", "local-sgd:4:sample=0.5:down=topk,0.3,chunk=16",
    # what rides along, what a push says, blocks with push steps of their own (rules 5, 12, 14)
    "scaffold:4:option=1:sample=0.5", "scaffold:4:weights=samples:sample=0.7:down=int8,chunk=16",
    "local-sgd:5:sends=displacement:up=int4,chunk=16,ef=yes", "local-sgd:4:meanwhile=mix,0.3",
    "local-sgd:7:blocks=3:push_blocks=turn", "streaming-diloco:7:blocks=3:delay=1:up=plain",
    "local-sgd:8:blocks=3:push_blocks=turn:delay=2:down=topk,0.3,chunk=16:up=topk,0.2,chunk=16",
    "local-sgd:6:blocks=2:push_blocks=turn:meanwhile=snr:weights=samples",
    "local-sgd:6:blocks=2:push_blocks=turn:meanwhile=gc:delay=3",
    # error feedback
    "nsgd:up=int2,chunk=16,ef=yes", "nsgd:up=int2,chunk=16,ef=yes,decay=0.9",
    "nsgd:meanwhile=ahead:up=topk,0.2,chunk=16",
    "local-sgd:4:meanwhile=ahead-snr:up=topk,0.2,bits=1,chunk=16:blocks=2:delay=2",
    "local-sgd:4:meanwhile=ahead:up=int2,ef=yes:delay=4",
    "prlc:0.3:meanwhile=ahead:up=topk,0.2,chunk=16,decay=0.9:delay=3:blocks=2:weights=samples",
    "nsgd:up=topk,0.2,chunk=16,ef=no", "prlc:0.3:up=topk,0.2,chunk=16:blocks=3",
    # what a pull carries (rule 13)
    "qsgd:up=int4,chunk=16:down=gather", "nsgd:up=int4,chunk=16:down=int4,chunk=16,what=mean",
    "nsgd:down=topk,0.2,chunk=16,what=mean", "demo:0.2:chunk=16:down=signs,what=mean,chunk=16",
    "stc:0.3:chunk=16:sample=0.5", "prlc:0.3:down=topk,0.3,chunk=16,state=shared",
    "prlc:0.3:down=topk,0.3,chunk=16,state=own", "nsgd:down=int4,chunk=16,state=own",
    "local-sgd:4:down=int8,chunk=16:blocks=3", "prlc:0.5:down=int8,chunk=16:delay=4:blocks=2",
    "prlc:0.25:schedule=aligned:down=int4,chunk=16",
    "prlc:0.25:every=5:delay=5:up=topk,0.1,bits=4,chunk=16:down=int8,chunk=16:schedule=staggered",
]  # fmt: skip


def slowly(step: int) -> float:
    return 0.02 if step < 25 else 0.01


@pytest.mark.parametrize("steps", LENGTHS)
@pytest.mark.parametrize("text", [*PRESETS, *CHOICES])
def test_every_choice(text: str, steps: int) -> None:
    """The step of rule_1, and all that rules rule_2 to rule_7, rule_14 and rule_19 add to it."""
    assert_plans_match_reference(small_job(text, steps=steps), steps, shards=[2], plans=[2])


@pytest.mark.parametrize("steps", LENGTHS)
@pytest.mark.parametrize("encoding", ENCODED)
def test_every_encoding_up_and_down(encoding: str, steps: int) -> None:
    """What messages say, rule_12 and rule_13, chunk by chunk, rule_16, with draws, rule_17."""
    one_way = f"prlc:0.5:up={encoding}:down={encoding}"
    assert_plans_match_reference(small_job(one_way, steps=steps), steps, shards=[2], plans=[3])


@pytest.mark.parametrize(
    "text", ["prlc:0.3:every=2:meanwhile=gc:delay=3:blocks=2", "fedprox:4:sample=0.5:mu=0.3"]
)
@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_workers_with_optimizers_that_remember(text: str, optimizer: str) -> None:
    """Who sits out keeps its optimizer's state (rule_6)."""
    job = small_job(text, optimizer=WORKER_OPTIMIZERS[optimizer], lr=slowly)
    assert_plans_match_reference(job, STEPS, shards=[2], plans=[2])


@pytest.mark.parametrize(
    ("text", "optimizer"),
    [
        ("nsgd", "sgd"),
        ("nsgd", "momentum"),
        ("nsgd", "adamw"),
        ("pr:0.3", "adamw"),
        ("pr:0.4:blocks=2:delay=2", "momentum"),
        ("pr:0.5:every=3:up=int4,chunk=16", "adamw"),
        ("nsgd:up=int4,chunk=16:down=int4,chunk=16,what=mean", "adamw"),
        ("pipe-sgd", "sgd"),
    ],
)
def test_the_optimizer_on_the_server_rule_21(text: str, optimizer: str) -> None:
    def cosine(step: int) -> float:
        return 0.02 * 0.5 * (1 + math.cos(math.pi * step / STEPS))

    job = small_job(text, optimizer=WORKER_OPTIMIZERS[optimizer], optimizer_at="server", lr=cosine)
    assert_plans_match_reference(job, STEPS, shards=[2], plans=[3])


def test_the_last_shorter_round_is_pushed_rule_8() -> None:
    job = small_job("local-sgd:10", steps=19)
    engine = Reference(job)
    reports = run(engine, 19)
    assert [step for step, report in enumerate(reports) if report.pushes.all()] == [9, 18]
    assert_plans_match_reference(job, 19, shards=[2], plans=[3])
    endless = Reference(replace(job, steps=None))
    run(endless, 19)
    assert largest_difference(global_tensors(engine), global_tensors(endless)) > 1e-3
    assert (engine.traffic.pushes == 2).all()
    assert (endless.traffic.pushes == 1).all()


def test_buffers_stay_statistics_rule_7() -> None:
    """A share above one would make variances negative: of buffers it is one at most."""
    for engine in (reference, simulator(3)):
        made = engine(small_job("prlc:0.1:meanwhile=share,1.9:delay=5", lr=slowly))
        run(made, STEPS)
        target = made.job.model
        made.copy_global_model(target)
        norm = target[1]  # type: ignore[index]
        assert bool((norm.running_var > 0).all())


@pytest.mark.parametrize("ready", [reference, simulator(3)], ids=["reference", "simulator"])
def test_weights_count_samples_rule_4(ready: Callable[[Job], Any]) -> None:
    """With one step of everybody, the update is the mean weighted by the sizes of the shards."""
    job = small_job("nsgd:weights=samples", model=nn.Linear(6, 4).double(), steps=1)
    order = np.arange(job.data.num_train)
    job = replace(job, shards=np.split(order, [100, 150]))
    engine = ready(job)
    run(engine, 1)
    each = []
    for i in range(3):
        chosen = job.batches().take(np.array([i]), np.array([0]))[0]
        model = nn.Linear(6, 4).double()
        model.load_state_dict(job.model.state_dict())
        outputs = model(job.data.train_inputs[chosen])
        loss = F.cross_entropy(outputs, job.data.train_targets[chosen])
        each.append(torch.autograd.grad(loss, list(model.parameters())))
    for k, (now, before) in enumerate(
        zip(global_tensors(engine), job.model.state_dict().values(), strict=True)
    ):
        mean = (100 * each[0][k] + 50 * each[1][k] + 50 * each[2][k]) / 200
        torch.testing.assert_close(now, before - job.lr(0) * mean)


# -- drawn at random from what `check` accepts ----------------------------------------------------

encodings = st.sampled_from(["plain", *ENCODED])


@st.composite
def methods(draw: st.DrawFn) -> Scheduled:
    every = draw(st.integers(1, 4))
    down = draw(encodings)
    if down != "plain":
        down += draw(st.sampled_from(["", ",what=mean", ",state=own", ",state=shared"]))
    try:
        return Scheduled(
            pull_ratio=draw(st.sampled_from([1.0, 0.5, 0.25, 0.2])),
            every=every,
            schedule=draw(st.sampled_from(SCHEDULES)),
            delay=draw(st.sampled_from([0, 0, 1, 2, 5])),
            blocks=draw(st.sampled_from([1, 1, 2, 3])),
            sample=draw(st.sampled_from([1.0, 1.0, 0.5])),
            weights=draw(st.sampled_from(["equal", "samples"])),
            up=draw(encodings),  # type: ignore[arg-type]
            down=draw(st.sampled_from([down, "gather"])),  # type: ignore[arg-type]
            meanwhile=draw(st.sampled_from(list(COMPENSATIONS))),  # type: ignore[arg-type]
            push_blocks=draw(st.sampled_from(["all", "turn"])),
            sends=draw(st.sampled_from(["updates", "updates", "displacement"])),
        )
    except ConfigError:
        assume(False)
        raise


@given(method=methods(), chunk=st.integers(1, 4), steps=st.integers(3, 14))
@settings(max_examples=20, suppress_health_check=[HealthCheck.filter_too_much])
def test_whatever_check_accepts_rule_22(method: Scheduled, chunk: int, steps: int) -> None:
    job = small_job(method, steps=steps)
    oracle = Reference(job)
    expected = run(oracle, steps)
    for engine in (simulator(chunk)(job), roles(2)(job)):
        assert_same_reports(expected, run(engine, steps))
        assert largest_difference(global_tensors(oracle), global_tensors(engine)) < 1e-10
        assert_same_traffic(oracle, engine)


@pytest.mark.slow
@given(method=methods(), chunk=st.integers(1, 4))
@settings(max_examples=400, suppress_health_check=[HealthCheck.filter_too_much])
def test_whatever_check_accepts_for_long_rule_22(method: Scheduled, chunk: int) -> None:
    job = small_job(method)
    oracle = Reference(job)
    try:
        expected = run(oracle, STEPS)
    except DivergedError:
        return
    for engine in (simulator(chunk)(job), roles(2)(job)):
        assert_same_reports(expected, run(engine, STEPS))
        assert largest_difference(global_tensors(oracle), global_tensors(engine)) < 1e-10
        assert_same_traffic(oracle, engine)


# -- the general step and the short way -----------------------------------------------------------


@pytest.fixture
def general(monkeypatch: pytest.MonkeyPatch) -> Callable[[Job, int], Simulator]:
    """A simulator that takes no short way."""

    def make(job: Job, chunk: int) -> Simulator:
        with monkeypatch.context() as patched:
            patched.setattr(Simulator, "_takes_short_way", staticmethod(lambda _: False))
            engine = simulator(chunk)(job)
        assert engine._parts is not None
        return engine

    return make


@pytest.mark.parametrize(
    ("text", "optimizer"),
    [
        ("nsgd", "sgd"),
        ("pr:0.3", "sgd"),
        ("prlc:0.3", "momentum"),
        ("prlc:0.5:every=4", "momentum"),
        ("diloco:7", "sgd"),
    ],
)
def test_trivial_parts_the_general_way_rule_29(
    general: Callable[[Job, int], Simulator], text: str, optimizer: str
) -> None:
    job = small_job(text, optimizer=WORKER_OPTIMIZERS[optimizer], lr=slowly)
    assert isinstance(job.method, Scheduled)
    assert job.method.trivial
    short, long = simulator(2)(job), general(job, 2)
    assert short._parts is None
    assert_same_reports(run(short, STEPS), run(long, STEPS))
    assert largest_difference(global_tensors(short), global_tensors(long)) < 1e-12
    assert_same_traffic(short, long)


@pytest.mark.parametrize("text", ["nsgd:up=float32", "prlc:0.5:delay=2:down=int8,chunk=16"])
def test_numbers_of_two_kinds_the_general_way_rule_29(text: str) -> None:
    model, loss, data = problem("mixed")
    job = small_job(text, model=model, loss=loss, data=Dataset.of(data))
    oracle, engine = Reference(job), simulator(2)(job)
    assert_same_reports_closely(oracle, engine, 30)
    ours = global_tensors(engine)
    assert {tensor.dtype for tensor in ours} == {torch.float32, torch.float64}
    assert largest_difference(ours, global_tensors(oracle)) < 1e-3


def assert_same_reports_closely(oracle: Reference, engine: Simulator, steps: int) -> None:
    """In single precision, losses are not equal to ten digits."""
    for ours, theirs in zip(run(engine, steps), run(oracle, steps), strict=True):
        assert np.array_equal(ours.pulls, theirs.pulls)
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-3)


def test_models_in_16_bits_add_up_small_updates_rule_10() -> None:
    """A server in bfloat16 would lose updates of a thousandth; here none is lost."""
    data = small_job(NSGD()).data.to("cpu", torch.bfloat16)
    torch.manual_seed(0)
    halves = nn.Linear(6, 4).bfloat16()
    singles = nn.Linear(6, 4)
    singles.load_state_dict(halves.float().state_dict())
    halves.bfloat16()

    def tiny(_: int) -> float:
        return 1e-4

    text = "prlc:0.3:delay=1"
    job = small_job(text, model=halves, data=data, lr=tiny)
    precise = small_job(text, model=singles, data=data.to("cpu", torch.float32), lr=tiny)
    oracle, engine, wanted = Reference(job), simulator(2)(job), Reference(precise)
    for each in (oracle, engine, wanted):
        run(each, STEPS)
    assert engine._parts is not None
    assert engine._parts.server.dtype == oracle.server.values.dtype == torch.float32
    start = oracle.flat
    assert start.dtype == torch.float32
    before = torch.cat([p.detach().float().flatten() for p in halves.parameters()])
    moved = wanted.server.values - before
    assert float(moved.abs().max()) > 1e-3
    for found in (oracle.server.values, engine._parts.server):
        assert float((found - before - moved).abs().max()) < 0.05 * float(moved.abs().max())


def test_a_block_count_above_the_number_of_tensors_rule_22() -> None:
    job = small_job(PRLC(0.3, blocks=6))
    for kind in (reference, simulator(3)):
        with pytest.raises(ConfigError, match=r"5 tensors of parameters.*6 blocks: take at most 5"):
            kind(job)
