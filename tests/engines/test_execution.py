"""How the simulator computes is measured once and remembered, and a broken memory does no harm."""

from __future__ import annotations

import contextlib
import gc
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from prlc.engines import Execution, Simulator
from prlc.engines.simulator import execution
from prlc.engines.simulator.execution import choose_execution, largest_chunk, use_threads
from prlc.errors import ConfigError
from prlc.methods import ASGD, LAGWK, PRLC, Method

from .builders import ENGINES, job_of, run


@given(st.integers(1, 1000), st.integers(0, 2**40))
def test_chunks_fit_and_are_of_nearly_equal_size(num_workers: int, size: int) -> None:
    chunk = largest_chunk(num_workers, size)
    assert 1 <= chunk <= num_workers
    assert chunk == 1 or chunk * size <= 16 * 2**20
    chunks = -(-num_workers // chunk)
    last = num_workers - (chunks - 1) * chunk
    assert 0 < last <= chunk
    assert chunk - last < chunks, "another cut would be more even"


def test_small_models_go_all_at_once_and_large_ones_alone() -> None:
    assert largest_chunk(20, 1000) == 20
    assert largest_chunk(20, 2**20) == 10  # 16 fit, but two chunks of 10 are more even
    assert largest_chunk(20, 50 * 2**20) == 1
    assert largest_chunk(3, 0) == 3


@pytest.mark.parametrize(("chunk", "threads"), [(0, 1), (1, 0), (-2, 1)])
def test_plans_of_nothing_are_refused(chunk: int, threads: int) -> None:
    with pytest.raises(ConfigError, match=rf"at least one worker.*{chunk} and {threads}"):
        Execution(chunk, threads)


def test_only_plans_of_several_workers_vectorise() -> None:
    assert Execution(2, 1).vectorise
    assert not Execution(1, 1).vectorise


def test_threads_are_put_back_even_after_an_error() -> None:
    before, inside = torch.get_num_threads(), 0
    with contextlib.suppress(ZeroDivisionError), use_threads(before + 1):
        inside = torch.get_num_threads()
        raise ZeroDivisionError
    assert inside == before + 1
    assert torch.get_num_threads() == before


def refuse_to_measure(*_: object) -> Execution:
    raise AssertionError("it should have been remembered")


def test_a_plan_is_remembered(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(PRLC(0.3))
    first = choose_execution(job)
    assert (cache / "executions.json").is_file()
    monkeypatch.setattr(execution, "_measure", refuse_to_measure)
    assert choose_execution(job) == first
    assert Simulator(job).execution == first
    with pytest.raises(AssertionError, match="remembered"):
        choose_execution(job, remember=False)
    with pytest.raises(AssertionError, match="remembered"):  # another job, another plan
        choose_execution(job_of(PRLC(0.3), batch_size=5))


def test_plans_of_other_jobs_stay(cache: Path) -> None:
    for batch_size in (2, 3):
        choose_execution(job_of(PRLC(0.3), batch_size=batch_size))
    assert len(json.loads((cache / "executions.json").read_text())) == 2
    assert [file.name for file in cache.iterdir()] == ["executions.json"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[1, 2]", b"null", b"\xff\xfe\x00", b'{"other": 3}'],
)
def test_a_damaged_memory_is_written_anew(cache: Path, content: bytes) -> None:
    cache.mkdir()
    (cache / "executions.json").write_bytes(content)
    chosen = choose_execution(job_of(PRLC(0.3)))
    known = json.loads((cache / "executions.json").read_text())
    assert {"chunk": chosen.chunk, "threads": chosen.threads} in known.values()


@pytest.mark.parametrize(
    "entry",
    ["junk", None, {}, {"chunk": 0, "threads": 1}, {"chunk": "x", "threads": 1}, {"rows": 3}],
)
def test_a_damaged_entry_is_measured_anew(cache: Path, entry: object) -> None:
    job = job_of(PRLC(0.3))
    choose_execution(job)
    file = cache / "executions.json"
    file.write_text(json.dumps(dict.fromkeys(json.loads(file.read_text()), entry)))
    assert isinstance(choose_execution(job), Execution)


def test_a_cache_that_cannot_be_written_only_costs_a_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("PRLC_CACHE", str(tmp_path / "file" / "cache"))
    assert isinstance(choose_execution(job_of(PRLC(0.3))), Execution)


@pytest.mark.parametrize("engine", ["reference", "all at once"])
@pytest.mark.parametrize("method", [PRLC(0.3), LAGWK(), ASGD()], ids=str)
def test_memory_does_not_grow_from_step_to_step(engine: str, method: Method) -> None:
    made = ENGINES[engine](job_of(method))

    def tensors_alive() -> int:
        gc.collect()
        return sum(type(thing) is Tensor for thing in gc.get_objects())

    run(made, 12)
    before = tensors_alive()
    run(made, 12)
    assert tensors_alive() <= before
