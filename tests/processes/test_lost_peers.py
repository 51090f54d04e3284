"""A process that hangs or dies: the others say which, in a sentence, and end."""

from __future__ import annotations

import pytest

from .launch import Ended, asked_for, launch, some_slow
from .run_cases import Case

SERVER = -1
#: Layout, what befalls which worker at which step, method.
LOST = {
    "hung": ("server", "stop", 1, 5, "prlc:0.3"),
    "hung, lag-wk": ("server", "stop", 1, 5, "lag-wk"),
    "hung, lag-ps": ("server", "stop", 1, 0, "lag-ps"),
    "hung, asgd": ("server", "stop", 1, 5, "asgd"),
    "hung server": ("server", "stop", SERVER, 5, "pr:0.3"),
    "hung server, lag-ps": ("server", "stop", SERVER, 5, "lag-ps"),
    "hung, sharded": ("sharded", "stop", 1, 5, "nsgd"),
    "hung, sharded prlc": ("sharded", "stop", 1, 5, "prlc:0.3"),
    "dead": ("server", "die", 1, 5, "local-sgd:2"),
    "dead, lag-ps": ("server", "die", 1, 0, "lag-ps"),
    "dead, asgd": ("server", "die", 1, 5, "asgd"),
    "dead server": ("server", "die", SERVER, 5, "prlc:0.3"),
    "dead, sharded": ("sharded", "die", 1, 5, "prlc:0.3"),
    "dead, sharded asgd": ("sharded", "die", 1, 5, "asgd"),
    "dead, sharded lag-wk": ("sharded", "die", 1, 5, "lag-wk"),
}

SLOW = {"hung, lag-wk", "hung, asgd", "hung server, lag-ps", "hung, sharded prlc"}


@pytest.fixture(scope="module")
def ended(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Ended]:
    cases, names = [], asked_for(request)
    for name, (layout, what, worker, step, method) in LOST.items():
        if name not in names:
            continue
        command = ["train", "--engine", "distributed", "--workers", "3", "--layout", layout]
        command += ["--method", method, "--steps", "40", "--eval-every", "40"]
        command += ["--peer-timeout", "5s", "--out", f"run-{name}"]
        who = {"server": 0} if worker == SERVER else {"worker": worker}
        trouble = {"what": what, "step": step, **who}
        cases.append(
            Case(
                name=name,
                layout=layout,
                workers=3,
                command=command,
                trouble=trouble,
                limit=60.0,
            )
        )
    return launch(cases, "lost-peers-cases", tmp_path_factory, at_once=3)


@pytest.mark.parametrize("name", some_slow(LOST, SLOW))
def test_a_lost_process_is_named_and_all_others_end(ended: dict[str, Ended], name: str) -> None:
    run, (layout, what, worker, _, _) = ended[name], LOST[name]
    lost = worker + (layout == "server")
    codes = dict(run.codes[0])
    assert codes.pop(str(lost)) == ("stopped" if what == "stop" else -9)
    assert set(codes.values()) == {1}, run.everything()
    said = [run.said(int(rank)) for rank in codes]
    assert all("Traceback" not in text for text in said), run.everything()
    assert all("error (rank " in text for text in said), run.everything()
    called = "rank 0 (the server)" if worker == SERVER else f"rank {lost} (worker 1)"
    sentence = (
        f"Nothing came from {called} for" if what == "stop" else f"The connection to {called} broke"
    )
    if layout == "sharded":  # others may first see one who gave up because of the lost one
        assert any(called in text for text in said), run.everything()
        blamed = [text for text in said if "Nothing came from" in text]
        assert all(called in text for text in blamed), run.everything()
    elif worker == SERVER:
        assert all(sentence in text for text in said), run.everything()
    else:
        assert sentence in run.said(0), run.everything()
