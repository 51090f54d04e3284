"""What all tests share: the table of methods, and one thread so that results repeat."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

from prlc.cli import main
from prlc.encodings import Grid
from prlc.methods import (
    ASGD,
    CMFL,
    EF21P,
    LAGPS,
    LAGWK,
    LAQ,
    NSGD,
    PR,
    PRLC,
    QSGD,
    SCAFFOLD,
    SSP,
    STC,
    Asynchronous,
    CoCoDSGD,
    DeMo,
    DiLoCo,
    EagerDiLoCo,
    FedProx,
    LocalSGD,
    Method,
    PipeSGD,
    SparseLoCo,
    StreamingDiLoCo,
    TernGrad,
    TopKSGD,
    Whisper,
    parse_method,
)

PUBLISHED = os.environ.get("PRLC_DATA_DIR")  # read before tests change it

#: A new method is a new row here: it then goes through the tests of every engine.
METHODS: list[Method] = [
    NSGD(),
    PR(0.3),
    PRLC(0.3),
    PRLC(0.5, every=4),
    LocalSGD(5),
    PipeSGD(),
    CoCoDSGD(5),
    DiLoCo(5),
    StreamingDiLoCo(6),
    EagerDiLoCo(5),
    FedProx(5, mu=0.5),
    SCAFFOLD(5),
    SparseLoCo(5),
    QSGD(),
    TernGrad(),
    TopKSGD(),
    EF21P(),
    STC(0.1),
    DeMo(),
    Whisper(),
    # What no preset has: each with several parts, so that they meet.
    *map(
        parse_method,
        [
            "prlc:0.4:every=2:schedule=staggered:delay=3:blocks=2:up=topk,0.1:down=int8",
            "prlc:0.3:meanwhile=gc:delay=2:up=int4,ef=yes:down=topk,0.2,state=shared",
            "pr:0.5:schedule=exact:meanwhile=snr:down=int8,state=own",
            "prlc:0.5:every=2:delay=2:blocks=2:meanwhile=ahead:up=topk,0.2,decay=0.9:down=int8",
            "local-sgd:3:sample=0.5:weights=samples:up=bfloat16:down=topk,0.3",
            "scaffold:3:option=1:sample=0.5:up=int8",
            "stc:0.2:sample=0.5",
            "demo:0.1:transform=no:down=signs,what=mean",
        ],
    ),
    LAGPS(),
    LAGPS(smoothness=1.0),
    LAGWK(),
    LAQ(2.0, longest=4, up=Grid(3, chunk=16)),
    CMFL(0.55),
    ASGD(),
    ASGD(staleness_aware=True),
    SSP(1),
]


# The same examples each time, however long one takes.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.load_profile("repeatable")

# torch describes every traced tensor to this logger, and pytest keeps it all: a tenth of all time.
logging.getLogger("torch.__trace").disabled = True

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So it is in a background job, and so it would be in the processes that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="record golden traces anew")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start processes first: they take longest and wait most, so others run beside."""
    places = {"processes", "testbed", "experiments", "test_processes.py", "test_examples.py"}
    items.sort(key=lambda item: places.isdisjoint(item.path.parts))


def pytest_collection_finish() -> None:
    """Garbage is looked for less often, and not among what was imported: a tenth of all time."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(scope="session")
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden traces are recorded rather than compared."""
    return bool(request.config.getoption("--update-golden"))


ARRIVING = [method for method in METHODS if isinstance(method, Asynchronous)]
REPEATABLE = [method for method in METHODS if method not in ARRIVING]


@pytest.fixture(scope="session")
def all_methods() -> list[Method]:
    """The whole table."""
    return METHODS


@pytest.fixture(scope="session", params=METHODS, ids=str)
def any_method(request: pytest.FixtureRequest) -> Method:
    """Each method of the table in turn."""
    method: Method = request.param
    return method


@pytest.fixture(scope="session", params=REPEATABLE, ids=str)
def repeatable_method(request: pytest.FixtureRequest) -> Method:
    """Each method whose result does not depend on the order of arrival in real processes."""
    method: Method = request.param
    return method


@pytest.fixture(scope="session", params=ARRIVING, ids=str)
def asynchronous_method(request: pytest.FixtureRequest) -> Method:
    """Each method that applies updates as they arrive."""
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
