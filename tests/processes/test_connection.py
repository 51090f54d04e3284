"""Which device a process takes, which routes payload takes, and when checkpoints are made."""

from __future__ import annotations

import pytest
import torch

from prlc.engines.processes import Layout, RunSettings
from prlc.engines.processes.connection import local_device, payload_groups, routes
from prlc.engines.processes.wire import Tag
from prlc.methods import ASGD, NSGD, PRLC, LocalSGD


def test_cuda_means_the_gpu_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert local_device("cuda") == torch.device("cuda", 3)
    assert local_device("cuda:1") == torch.device("cuda", 1)
    assert local_device("cpu") == torch.device("cpu")
    monkeypatch.delenv("LOCAL_RANK")
    assert local_device("cuda") == torch.device("cuda", 0)


def test_payload_has_a_group_for_each_way_that_it_goes() -> None:
    up, down = False, True  # whether from a lower rank to a higher; the server has the lowest
    assert routes(Layout("server", 5)) == [(Tag.PUSH, up), (Tag.PULL, down)]
    assert len(routes(Layout("sharded", 4))) == 4
    assert routes(Layout("sharded", 1)) == []
    four = payload_groups(Layout("sharded", 4), object, in_order=True)
    assert len(set(four.values())) == 4
    one = payload_groups(Layout("sharded", 4), object, in_order=False)
    assert one.keys() == four.keys()
    assert len(set(one.values())) == 1


def saved(settings: RunSettings, until: int = 40) -> list[int]:
    return [done for done in range(1, until + 1) if settings.saves(done)]


def test_checkpoints_are_made_every_so_many_steps_but_not_at_the_end() -> None:
    assert saved(RunSettings(PRLC(0.1), 4, steps=40, save_every=10)) == [10, 20, 30]
    assert saved(RunSettings(LocalSGD(8), 4, steps=40, save_every=10)) == [10, 20, 30]
    assert saved(RunSettings(NSGD(), 4, steps=40)) == []


def test_where_the_end_is_not_known_a_checkpoint_waits_for_the_next_push() -> None:
    assert saved(RunSettings(LocalSGD(8), 4, save_every=10)) == [16, 24, 32, 40]
    assert saved(RunSettings(LocalSGD(8), 4, save_every=3)) == [8, 16, 24, 32, 40]
    assert saved(RunSettings(PRLC(0.1), 4, save_every=10)) == [10, 20, 30, 40]
    assert saved(RunSettings(ASGD(), 4, save_every=10)) == [10, 20, 30, 40]
