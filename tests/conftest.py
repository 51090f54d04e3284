"""What all tests share: the table of methods, and one thread so that results repeat."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from prlc.methods import ASGD, LAGPS, LAGWK, NSGD, PR, PRLC, LocalSGD, Method

METHODS: list[Method] = [
    NSGD(),
    PR(0.3),
    PRLC(0.3),
    PRLC(0.5, every=4),
    LocalSGD(5),
    LAGPS(),
    LAGPS(smoothness=1.0),
    LAGWK(),
    ASGD(),
    ASGD(staleness_aware=True),
]


@pytest.fixture(scope="session", params=METHODS, ids=repr)
def any_method(request: pytest.FixtureRequest) -> Method:
    """Each method of the table in turn: a new method is a new row above."""
    method: Method = request.param
    return method


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, not made yet."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PRLC_CACHE", str(folder))
    return folder
