"""What all tests share: the table of methods, and one thread so that results repeat."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from prlc.cli import main
from prlc.methods import ASGD, LAGPS, LAGWK, NSGD, PR, PRLC, LocalSGD, Method

PUBLISHED = os.environ.get("PRLC_DATA_DIR")  # read before tests change it

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


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So it is in a background job, and so it would be in the processes that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
def published() -> Callable[[str], str]:
    """The folder that PRLC_DATA_DIR names, if it holds a file like the one given; else skips."""

    def find(pattern: str) -> str:
        if PUBLISHED is None:
            pytest.skip("PRLC_DATA_DIR does not name a folder with the published files")
        if not any(Path(PUBLISHED).rglob(pattern)):
            pytest.skip(f"the folder that PRLC_DATA_DIR names holds no {pattern}")
        return PUBLISHED

    return find


@pytest.fixture
def prlc(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run a command; gives its exit status, standard output and standard error."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["prlc", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        printed = capsys.readouterr()
        code = stopped.value.code
        return (code if isinstance(code, int) else 0 if code is None else 1), *printed

    return run


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, not made yet."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PRLC_CACHE", str(folder))
    return folder
