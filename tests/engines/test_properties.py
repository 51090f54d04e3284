"""Drawn at random: sizes, ratios, periods, seeds and shapes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from prlc.data import Dataset
from prlc.draws import Purpose, uniform
from prlc.encodings import Plain
from prlc.engines import Execution, Job, Reference, Simulator
from prlc.methods import (
    CMFL,
    LAGPS,
    LAGWK,
    LAQ,
    NSGD,
    PR,
    PRLC,
    LocalSGD,
    Method,
    Scheduled,
    Timetable,
)
from prlc.network.traffic import payload_bytes

from .builders import (
    assert_same_reports,
    global_tensors,
    job_of,
    largest_difference,
    run,
    simulator,
)

ratios = st.floats(0.01, 1.0)
periods = st.integers(1, 4)
methods: st.SearchStrategy[Method] = st.one_of(
    st.just(NSGD()),
    st.builds(PR, ratios, periods),
    st.builds(PRLC, ratios, periods),
    st.builds(LocalSGD, periods),
    st.builds(LAGWK, st.floats(0, 2), st.integers(1, 5)),
    st.builds(LAQ, st.floats(0, 2), st.integers(1, 5), st.integers(1, 4), st.just(Plain())),
    st.builds(CMFL, st.floats(0, 1), st.booleans()),
    st.builds(LAGPS, st.floats(0, 2), st.integers(1, 5), st.none() | st.floats(0.1, 10)),
)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Any small job: shards of any sizes, also smaller than a batch."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    num_classes = draw(st.integers(2, 4))
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(sum(sizes), *shape, generator=generator, dtype=torch.float64)
    targets = torch.randint(num_classes, (sum(sizes),), generator=generator)
    model = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), num_classes)).double()
    order = torch.randperm(sum(sizes), generator=generator).numpy()
    return Job(
        model=model,
        loss=F.cross_entropy,
        data=Dataset("drawn", inputs, targets, None, None, num_classes),
        method=draw(methods),
        shards=np.split(order, np.cumsum(sizes)[:-1]),
        batch_size=draw(st.integers(1, 5)),
        lr=lambda _: 0.1,
        seed=seed,
    )


@given(job=jobs(), chunk=st.integers(1, 6), steps=st.integers(1, 8))
@settings(max_examples=25)
def test_the_simulator_is_the_reference(job: Job, chunk: int, steps: int) -> None:
    oracle, engine = Reference(job), Simulator(job, execution=Execution(chunk, 1))
    assert_same_reports(run(oracle, steps), run(engine, steps))
    assert largest_difference(global_tensors(oracle), global_tensors(engine)) < 1e-10


@given(job=jobs(), steps=st.integers(1, 12))
@settings(max_examples=30)
def test_traffic_is_what_the_reports_say(job: Job, steps: int) -> None:
    engine = Reference(job)
    reports = run(engine, steps)
    assert np.array_equal(engine.traffic.pushes, np.sum([r.pushes for r in reports], 0))
    assert np.array_equal(engine.traffic.pulls, np.sum([r.pulls for r in reports], 0))
    size = payload_bytes(list(job.model.parameters()))
    assert engine.traffic.bytes_up == size * engine.traffic.pushes.sum()
    assert engine.traffic.bytes_down == size * engine.traffic.pulls.sum()
    if isinstance(job.method, Scheduled):
        assert (engine.traffic.pushes == steps // job.method.every).all()
        assert (engine.traffic.pulls <= engine.traffic.pushes).all()


@given(r=ratios, every=st.integers(1, 5), seed=st.integers(0, 2**63))
@settings(max_examples=60)
def test_the_fraction_of_pulls_is_the_ratio(r: float, every: int, seed: int) -> None:
    for method in (PR(r, every), PRLC(r, every)):
        timetable = Timetable(method, 10, seed)
        turns = [timetable[step] for step in range(400 * every)]
        pulls = np.array([turn.pulls for turn in turns])
        assert pulls.shape == (400 * every, 10)
        assert not pulls[[not turn.is_push for turn in turns]].any()
        n = 4000
        assert abs(pulls.sum() - r * n) <= 6 * math.sqrt(n * r * (1 - r)) + 6


def test_messages_count_the_buffers_that_travel() -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10)).double()
    engine = Reference(job_of(NSGD(), model, num_workers=2))
    run(engine, 3)
    numbers = 64 + 64 + 64 * 10 + 10 + 64 + 64  # weights, then running mean and variance
    assert engine.traffic.bytes_up == engine.traffic.bytes_down == 3 * 2 * numbers * 8


def test_every_method_counts_what_it_reports(any_method: Method) -> None:
    job = job_of(any_method)
    engine = simulator(6)(job)
    reports = run(engine, 20)
    assert np.array_equal(engine.traffic.pushes, np.sum([r.pushes for r in reports], 0))
    assert np.array_equal(engine.traffic.pulls, np.sum([r.pulls for r in reports], 0))
    assert engine.steps_done == 20
    assert all(0.0 < report.loss < 10.0 for report in reports if report.computes.any())


@pytest.mark.parametrize("seed", [0, 1])
def test_the_seed_decides_who_pulls(seed: int) -> None:
    engine = Reference(job_of(PRLC(0.3), seed=seed))
    pulls = np.array([report.pulls for report in run(engine, 10)])
    expected = uniform(seed, Purpose.PULL, np.arange(6), np.arange(10)[:, None]) < 0.3
    assert np.array_equal(pulls, expected)
