"""Every method gives what it gave when the golden traces were recorded."""

from __future__ import annotations

import pytest

import prlc
from golden import Golden, trace
from prlc.methods import Method
from processes.problems import problem, settings


@pytest.mark.parametrize("engine", ["reference", pytest.param("simulator", marks=pytest.mark.slow)])
def test_as_recorded(any_method: Method, engine: str, update_golden: bool) -> None:
    given = settings(
        {
            "method": any_method,
            "server_optimizer": any_method.server,
            "network": "mobile",
            "steps": 24,
        },
        workers=6,
    )
    execution = prlc.Execution(4, 1) if engine == "simulator" else None
    result = prlc.train(*problem("bn"), engine=engine, execution=execution, **given)
    found = trace(dict(result.model.named_parameters()), result.summary)
    Golden(engine, update_golden).check(str(any_method), found, any_method)
