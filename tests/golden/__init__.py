"""Golden traces: what runs gave when they were recorded, to notice what changes them.

`pytest -n 0 --update-golden -m "slow or not slow"` records anew. On the kind of machine that
recorded them parameters and counts are compared exactly. Elsewhere counts are exact and the rest
close, but for methods that decide by what they compute: rounded otherwise, they may push otherwise.
"""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from prlc.methods import Lazy, Method

_COUNTS = ("pulls_per_worker", "pushes_per_worker", "bytes_up", "bytes_down")
_SUMS = ("length", "simulated_seconds")  # their last bits depend on the order of additions
_ELSEWHERE = 0.05


def trace(tensors: dict[str, Tensor], summary: dict[str, Any]) -> dict[str, Any]:
    """What is remembered of a run."""
    digest = hashlib.sha256()
    tensors = {name: tensor.detach() for name, tensor in tensors.items()}
    for tensor in tensors.values():
        digest.update(tensor.contiguous().numpy().tobytes())
    return {
        "digest": digest.hexdigest()[:24],
        "length": sum(float(t.double().square().sum()) for t in tensors.values()),
        "simulated_seconds": summary["simulated_seconds"],
        **{name: summary[name] for name in _COUNTS},
    }


def machine() -> str:
    """What bits depend on besides the code; virtual machines of many kinds share a model's name."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    known = {name.strip(): value.strip() for name, _, value in (ln.partition(":") for ln in lines)}
    kind = [known.get(name, "?") for name in ("model name", "cpu family", "model")]
    vectors = torch.backends.cpu.get_cpu_capability()
    return " ".join([platform.machine(), *kind, vectors, f"torch {torch.__version__}"])


class Golden:
    """One file of traces."""

    def __init__(self, name: str, update: bool) -> None:
        self._file, self._update = Path(__file__).with_name(f"{name}.json"), update
        self._known = json.loads(self._file.read_text()) if self._file.exists() else {}

    def check(self, name: str, found: dict[str, Any], method: Method) -> None:
        """Compare a trace with the one recorded, or record it."""
        if self._update:
            known = {**self._known.get("traces", {}), name: found}
            self._known = {"machine": machine(), "traces": dict(sorted(known.items()))}
            self._file.write_text(json.dumps(self._known, indent=1) + "\n")
            return
        expected = self._known["traces"][name]
        here = self._known["machine"] == machine()
        close = 1e-9 if here else _ELSEWHERE
        if here:
            assert found["digest"] == expected["digest"]
        if here or not isinstance(method, Lazy):
            assert {k: found[k] for k in _COUNTS} == {k: expected[k] for k in _COUNTS}
        numbers = (*_COUNTS, *_SUMS)
        assert [found[k] for k in numbers] == pytest.approx(
            [expected[k] for k in numbers], rel=close
        )
