"""Files that are damaged, exchanged or forged: noticed before anything is used, in a sentence."""

from __future__ import annotations

import copy
import io
import json
import logging
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from prlc.engines.schema import PLAIN, Table
from prlc.errors import CheckpointError, PrlcError
from prlc.report import Run
from prlc.runs import folder as folders
from prlc.runs.folder import RunFolder

Prlc = Callable[..., tuple[int, str, str]]
ANY = Table(others=PLAIN)
COMMAND = [
    *("train", "--workers", "3", "--steps", "12", "--checkpoint-every", "4", "--eval-every", "4"),
    *("--optimizer", "momentum", "--chunk", "3", "--threads", "1", "-m", "prlc:0.5"),
]
FILES = ("checkpoint.pt", "config.json", "summary.json", "model.pt", "metrics.csv")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two finished runs that differ in the seed."""
    from prlc.cli import app

    made = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        app([*COMMAND, "--seed", str(seed), "--out", str(made / f"{seed}")], standalone_mode=False)
    return made / "0", made / "1"


@pytest.fixture
def run(runs: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy of the first, to be damaged."""
    shutil.copytree(runs[0], tmp_path / "run")
    return tmp_path / "run"


def model_of(run: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(run / "model.pt", weights_only=True)
    return found


def same_model(run: Path, other: Path) -> bool:
    ours, theirs = model_of(run), model_of(other)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


def unfinished(run: Path) -> None:
    """As if it had been killed after its last checkpoint."""
    for name in ("summary.json", "model.pt"):
        (run / name).unlink()


def test_no_flipped_bit_of_a_checkpoint_goes_unnoticed(run: Path) -> None:
    file, draw = run / "checkpoint.pt", random.Random(0)
    (run / "checkpoint.previous.pt").unlink()
    whole = file.read_bytes()
    assert RunFolder.open(run).newest_checkpoint(ANY) is not None
    for _ in range(1_500):
        damaged, place = bytearray(whole), draw.randrange(len(whole) * 8)
        damaged[place // 8] ^= 1 << place % 8
        file.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="is damaged"):
            RunFolder.open(run).newest_checkpoint(ANY)


# -- any file, damaged in any way -----------------------------------------------------------------


def flip(content: bytes, other: bytes, draw: random.Random) -> bytes:
    del other
    damaged, place = bytearray(content), draw.randrange(len(content) * 8)
    damaged[place // 8] ^= 1 << place % 8
    return bytes(damaged)


def cut(content: bytes, other: bytes, draw: random.Random) -> bytes:
    del other
    return content[: draw.randrange(len(content))]


def zeros(content: bytes, other: bytes, draw: random.Random) -> bytes:
    del other
    start, length = draw.randrange(len(content)), min(512, len(content) // 2)
    return content[:start] + bytes(min(length, len(content) - start)) + content[start + length :]


def swap(content: bytes, other: bytes, draw: random.Random) -> bytes:
    """Exchange two parts of the file."""
    del other
    a, b, c = sorted(draw.sample(range(len(content)), 3))
    return content[:a] + content[b:c] + content[a:b] + content[c:]


def graft(content: bytes, other: bytes, draw: random.Random) -> bytes:
    """A part of another run's file, at the same place."""
    start, end = sorted(draw.sample(range(min(len(content), len(other))), 2))
    return content[:start] + other[start:end] + content[end:]


def exchange(content: bytes, other: bytes, draw: random.Random) -> bytes:
    """Another run's file."""
    del content, draw
    return other


def cases() -> Iterator[Any]:
    draw = random.Random(1)
    for name in FILES:
        for damage in (flip, flip, cut, zeros, swap, graft, exchange):
            number = draw.randrange(1000)
            yield pytest.param(name, damage, number, id=f"{name}-{damage.__name__}-{number}")


@pytest.mark.parametrize(("name", "damage", "number"), list(cases()))
def test_a_damaged_file_is_noticed_or_changes_nothing(
    name: str,
    damage: Callable[[bytes, bytes, random.Random], bytes],
    number: int,
    run: Path,
    runs: tuple[Path, Path],
    prlc: Prlc,
) -> None:
    before, own, other = Run.read(run), (run / name).read_bytes(), (runs[1] / name).read_bytes()
    (run / name).write_bytes(damage(own, other, random.Random(number)))
    changed = (run / name).read_bytes() != own
    try:  # shown as it was, or refused
        shown = Run.read(run)
    except PrlcError as error:
        assert "damaged" in str(error) or "another run" in str(error)  # noqa: PT017
    else:
        assert shown.metrics.equals(before.metrics)
        assert (shown.config, shown.summary) == (before.config, before.summary)
    if name == "checkpoint.pt":
        unfinished(run)  # otherwise nobody reads it
    code, _, said = prlc("train", "--resume", run)
    assert "Traceback" not in said
    if code == 0:
        assert same_model(run, runs[0])
        assert Run.read(run).metrics.equals(before.metrics)
    else:
        assert code == 2
        assert changed
        assert name != "checkpoint.pt", "it goes on from the one before"


def test_a_damaged_checkpoint_is_left_for_the_one_before_to_the_same_bits(
    run: Path, runs: tuple[Path, Path], prlc: Prlc, caplog: pytest.LogCaptureFixture
) -> None:
    unfinished(run)
    file = run / "checkpoint.pt"
    file.write_bytes(file.read_bytes().replace(b"prlc-crc32", b"prlc-crc23"))
    with caplog.at_level(logging.WARNING, "prlc"):
        assert prlc("train", "--resume", run)[0] == 0
    assert "the run goes on from checkpoint.previous.pt, to the same result" in caplog.text
    assert same_model(run, runs[0])
    assert (run / "checkpoint.damaged.pt").exists()


def test_if_both_checkpoints_are_damaged_that_is_said(run: Path, prlc: Prlc) -> None:
    unfinished(run)
    for name in ("checkpoint.pt", "checkpoint.previous.pt"):
        (run / name).write_bytes((run / name).read_bytes()[:-1])
    code, _, said = prlc("train", "--resume", run)
    assert code == 2
    assert "checkpoint.pt is damaged" in said.replace("\n", " ")
    assert "Begin the run anew" in said.replace("\n", " ")


def test_a_run_of_an_earlier_version_still_opens_in_a_report(run: Path, prlc: Prlc) -> None:
    for name in ("config.json", "summary.json"):
        content = json.loads((run / name).read_text())
        for key in ("format", "digest", "run", "file_digests"):
            content.pop(key, None)
        (run / name).write_text(json.dumps(content))
    (run / ".metrics.digest").unlink()
    assert prlc("report", run, "--json")[0] == 0
    code, _, said = prlc("train", "--resume", run)
    assert (code, "earlier version of prlc" in said.replace("\n", " ")) == (2, True)


# -- forged: the digest is right, the content is not ----------------------------------------------


def deep(levels: int = 1_000) -> Any:
    nested: Any = 1
    for _ in range(levels):
        nested = [nested]
    return nested


WRONG: dict[str, Any] = {
    "missing": None,
    "list": [1, 2],
    "text": "twelve",
    "negative": -7,
    "huge": 10**400,
    "deep": deep(60),
    "table": {"a": 1},
    "tensor": torch.ones(3, 3),
}
IN_CHECKPOINT = [
    *("engine", "timeline", "metrics", "execution", "batch_losses", "wall_seconds", "run"),
    *("engine.steps_done", "engine.traffic", "engine.engine", "engine.traffic.pulls"),
    *("engine.engine.workers", "engine.engine.optimizers", "engine.engine.server"),
    *("timeline.last_step", "execution.threads", "metrics.0.step"),
]
IN_CONFIG = ["method", "command", "command.workers", "command.lr", "schedule", "model", "data"]
IN_SUMMARY = ["method", "train_loss", "bytes_up", "steps", "seed", "file_digests"]


def place(content: Any, path: str) -> tuple[Any, Any]:
    """What holds the named entry, and its key there."""
    *way, last = [int(word) if word.isdigit() else word for word in path.split(".")]
    for word in way:
        content = content[word]
    return content, last


def forged(content: Any, path: str, kind: str) -> Any:
    content = copy.deepcopy(content)
    holder, key = place(content, path)
    if kind == "missing":
        del holder[key]
    else:
        holder[key] = WRONG[kind]
    return content


def write_checkpoint(run: Path, content: Any) -> None:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    for name in ("checkpoint.pt", "checkpoint.previous.pt"):
        (run / name).write_bytes(buffer.getvalue() + folders.seal(buffer.getvalue()))


def forgeries() -> Iterator[Any]:
    draw = random.Random(2)
    plain = [kind for kind in WRONG if kind != "tensor"]
    for number, path in enumerate(2 * IN_CHECKPOINT):
        kind = list(WRONG)[number % len(WRONG)]
        yield pytest.param("checkpoint.pt", path, kind, id=f"checkpoint-{path}-{kind}-{number}")
    for name, paths in (("config.json", IN_CONFIG), ("summary.json", IN_SUMMARY)):
        for path in paths:
            for kind in draw.sample(plain, 2):
                yield pytest.param(name, path, kind, id=f"{name}-{path}-{kind}")


@pytest.mark.parametrize(("name", "path", "kind"), list(forgeries()))
def test_a_forged_file_gets_a_sentence(
    name: str, path: str, kind: str, run: Path, runs: tuple[Path, Path], prlc: Prlc
) -> None:
    if name == "checkpoint.pt":
        unfinished(run)
        content = torch.load(run / name, weights_only=True)
        write_checkpoint(run, forged(content, path, kind))
    else:
        content = forged(json.loads((run / name).read_text()), path, kind)
        content["digest"] = folders._json_digest(content)
        (run / name).write_text(json.dumps(content))
        code, _, said = prlc("report", run, "--out", run.parent / "page.html")
        assert (code in (0, 2), "Traceback" in said) == (True, False), said
    code, _, said = prlc("train", "--resume", run)
    assert "Traceback" not in said
    if code == 0:  # what nobody looks at changes nothing
        assert same_model(run, runs[0])
    else:
        assert (code, "error: " in said) == (2, True)
        assert len(said) < 1_000


def test_the_model_of_another_run_is_not_taken_for_this_one(run: Path, prlc: Prlc) -> None:
    torch.save({"weight": torch.ones(3)}, run / "model.pt")
    code, _, said = prlc("train", "--resume", run)
    assert (code, "digest is not the one in summary.json" in said.replace("\n", " ")) == (2, True)
    content = json.loads((run / "summary.json").read_text())
    content["file_digests"]["model.pt"] = folders._digest((run / "model.pt").read_bytes())
    content["digest"] = folders._json_digest(content)
    (run / "summary.json").write_text(json.dumps(content))
    code, _, said = prlc("train", "--resume", run)
    assert (code, "model.pt is not of this model" in said.replace("\n", " ")) == (2, True)


@pytest.mark.parametrize("name", ["config.json", "summary.json"])
def test_a_thousand_levels_of_nesting_are_refused(name: str, run: Path, prlc: Prlc) -> None:
    (run / name).write_text('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}")
    for command in (("report", run), ("train", "--resume", run)):
        code, _, said = prlc(*command)
        assert (code, f"{name} is damaged" in said.replace("\n", " ")) == (2, True)
