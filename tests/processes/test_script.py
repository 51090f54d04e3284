"""A script as one process, and the page that says what happens to scripts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import prlc
from prlc.engines.job import travelling
from prlc.engines.processes.cluster import RunSettings
from prlc.engines.processes.scheduled import ScheduledServer
from prlc.engines.roles.local_model import ScriptModel
from prlc.engines.roles.notes import Kind
from prlc.engines.roles.packing import Packing
from prlc.engines.roles.scheduled import RoleSettings
from prlc.engines.roles.scheduled_worker import ScheduledWorkerRole
from prlc.engines.roles.selection import Models, Selection
from prlc.methods import Scheduled, parse_method

PROJECT = Path(__file__).parents[2]


def losses(team: prlc.Team | None) -> list[float]:
    """A loop with and without its four lines."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(20, 3))
    model, averaged = nn.Linear(3, 1), nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=4, shuffle=True)
    found = []
    run = None
    if team is not None:
        loader = team.shard(loader)
        run = team.train(model, optimizer, also=[averaged])
    for (x,) in loader:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
        if team is not None and team.any(False):
            break
    if run is not None:
        with run.global_model():
            found.append(float(run.steps_done))
        run.finish()
        optimizer.step()  # counts no more
        assert run.steps_done == found[-1]
    return found


def test_a_process_alone_trains_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    team = prlc.join("prlc:0.1", layout="server")
    assert (team.worker, team.num_workers) == (0, 1)
    assert losses(team) == [*losses(None), 5.0]
    with pytest.raises(prlc.ConfigError, match="belong to no model"):
        team.train(nn.Linear(2, 2), torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0))


def test_alone_a_run_is_over_after_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with prlc.join("lag-ps", steps=3).train(model, optimizer) as run:
        while not run.over:
            model(torch.ones(2)).sum().backward()
            optimizer.step()
    assert run.steps_done == 3


def test_an_error_that_ends_a_script_is_a_sentence_with_its_line(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text("import prlc\n\nprlc.join('prlc:0')\n")
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    (said,) = ended.stderr.splitlines()
    assert said.startswith("error (mine.py, line 3): The pull ratio must lie in (0, 1] but is 0")
    script.write_text("import prlc\n\nprlc.join()\nraise KeyError('mine')\n")
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert "Traceback" in ended.stderr, "other errors are the script's own"


def test_processes_that_a_script_has_spawned_are_joined(tmp_path: Path) -> None:
    """As in torch's tutorials: without torchrun, ranks given by hand."""
    script = tmp_path / "spawned.py"
    script.write_text(SPAWNED)
    ended = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.split()) == ["0/2", "1/2"]


SPAWNED = """
import os, socket, sys
import torch.distributed as dist
import torch.multiprocessing as mp
import prlc

def main(rank):
    dist.init_process_group("gloo", rank=rank, world_size=2)
    team = prlc.join("nsgd")
    print(f"{team.worker}/{team.num_workers}", flush=True)
    dist.destroy_process_group()

if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as free:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    mp.spawn(main, nprocs=2)
"""


def test_what_travels_is_looked_up_by_name() -> None:
    first, second = nn.BatchNorm1d(2), nn.Linear(2, 2)
    second.bias.requires_grad_(False)
    tied = nn.Linear(2, 2)
    tied.weight = second.weight
    models = Models([first, second, tied], [torch.optim.SGD([*first.parameters(), second.weight])])
    assert models.trained() == ["0.weight", "0.bias", "1.weight"]
    chosen = Selection(models.models, [*models.trained(), "0.running_mean"])
    assert [t.shape for t in travelling(chosen)] == [(2,), (2,), (2, 2), (2,)]
    first.running_mean = torch.ones(2)  # another tensor, as some modules do it
    assert travelling(chosen)[-1] is first.running_mean
    first.running_mean = None
    with pytest.raises(prlc.ConfigError, match="'running_mean' has been taken out"):
        travelling(chosen)


@pytest.mark.parametrize("text", ["nsgd", "prlc:0.1", "local-sgd:4"])
@pytest.mark.parametrize("goes_back", [False, True])
def test_an_update_that_is_not_finite_leaves_the_last_model(text: str, goes_back: bool) -> None:
    """Also where an update is written in place of the values to go back to."""
    method = parse_method(text)
    assert isinstance(method, Scheduled)
    model = nn.Linear(2, 1)
    models = Models([model], [torch.optim.SGD(model.parameters(), lr=0.1)])
    chosen = Selection(models.models, models.trained())
    packing = Packing(chosen, method=method)
    local = ScriptModel(chosen, models, packing, method=method, goes_back=goes_back)
    role = ScheduledWorkerRole(local, packing, 0, RoleSettings(method, 2))
    update = role.target(role.new_buffer())
    assert (update is local.values) == (text != "prlc:0.1" and not goes_back)
    before = [tensor.detach().clone() for tensor in travelling(chosen)]
    with torch.no_grad():
        model.weight.add_(1.0)
        model.bias.fill_(torch.inf)
    assert local.update(update) is Kind.INFINITE
    assert all(map(torch.equal, travelling(chosen), before))


def test_a_checkpoint_of_another_optimizer_is_refused() -> None:
    model = nn.Linear(3, 2)
    chosen = Selection([model], ["0.weight", "0.bias"])
    kept, other = (
        ScriptModel(chosen, Models([model], [make()]), Packing(chosen), method=prlc.NSGD())
        for make in (
            lambda: torch.optim.SGD(model.parameters(), lr=0.1),
            lambda: torch.optim.Adam(model.parameters()),
        )
    )
    kept.load_state(kept.state())
    with pytest.raises(prlc.PrlcError, match="is of SGD of 2 tensors, but the script gives Adam"):
        other.load_state(kept.state())


@pytest.mark.parametrize("goes_back", [False, True])
def test_values_follow_a_model_that_moves_by_its_updates(goes_back: bool) -> None:
    method = prlc.PRLC(0.1)
    model = nn.Linear(3, 2)
    models = Models([model], [torch.optim.SGD(model.parameters(), lr=0.1)])
    chosen = Selection(models.models, models.trained())
    packing = Packing(chosen, method=method)
    local = ScriptModel(chosen, models, packing, method=method, goes_back=goes_back)
    update = packing.zeros()
    for _ in range(3):
        before = [flat.clone() for flat in local.values]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        assert local.update(update) is Kind.UPDATE
        local.move(update, 1.0)
        assert all(map(torch.equal, packing.tensors(local.values), travelling(chosen)))
        for change, now, then in zip(update, local.values, before, strict=True):
            assert torch.equal(change, now - then)


def test_running_statistics_wait_for_a_backward_pass_as_parameters_do() -> None:
    """A GAN: one optimizer steps and pulls while a backward pass through the other model waits."""
    made, judge = nn.BatchNorm1d(2), nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (made, judge)]
    models = Models([made, judge], optimizers)
    chosen = Selection(
        models.models, [*models.trained(), *(f"0.running_{each}" for each in ("mean", "var"))]
    )
    packing = Packing(chosen)
    local = ScriptModel(chosen, models, packing, method=prlc.NSGD())
    fake = made(torch.randn(4, 2))
    local.stepped_by(optimizers[1])
    for flat in local.values:
        flat.add_(1.0)
    local.show()
    mean = packing.tensors(local.values)[-2]
    assert torch.equal(judge.bias, packing.tensors(local.values)[3])
    assert not torch.equal(made.running_mean, mean)  # type: ignore[arg-type]
    fake.square().sum().backward()
    local.called(made)
    torch.testing.assert_close(made.running_mean, mean)


def test_workers_that_unfreeze_at_different_steps_are_refused() -> None:
    server = ScheduledServer.__new__(ScheduledServer)
    server.settings = RunSettings(prlc.NSGD(), num_workers=3)
    server._check_changes(dict.fromkeys(range(3), True), 7)
    with pytest.raises(prlc.ConfigError, match=r"Worker 2 trains .* step 7 on, but worker 0 does"):
        server._check_changes({0: False, 2: True}, 7)


def test_the_page_names_tests_that_exist() -> None:
    page = (PROJECT / "docs" / "own-script.md").read_text()
    files = re.findall(r"`(tests/\S+\.py)`", page)
    there = "".join((PROJECT / file).read_text() for file in files)
    named = re.findall(r"`(test_\w+)`", page)
    assert len(named) > 20
    assert [name for name in named if f"def {name}(" not in there] == []
