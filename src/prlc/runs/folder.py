"""A run on disk: one folder with everything about it.

    config.json      all settings
    metrics.csv      a row per evaluation; `pandas.read_csv` reads it
    checkpoint.pt    the newest state of all workers and the server (checkpoint.previous.pt: before)
    model.pt         the trained model's state_dict, once the run is finished
    summary.json     how it ended, once the run is finished
    timeline.csv     what each process did when, if a run in real processes recorded it

Files appear whole or not at all: they are written beside their place, flushed to the disk and
renamed (metrics.csv grows by a row at a time, and is put back to the checkpoint on resume). So a
kill at any moment loses nothing but the steps since the last checkpoint.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from prlc.engines import Event
from prlc.errors import CheckpointError, RunError
from prlc.text import without_folders

try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None  # type: ignore[assignment]

FORMAT = 2  # of checkpoints; raised when older ones can no longer be read


class RunFolder:
    """Reads and writes the folder of one run."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    # -- beginning and resuming -------------------------------------------------------------------

    @classmethod
    def create(cls, path: Path | str, config: Mapping[str, Any]) -> RunFolder:
        """A new run; refuses a folder that holds one already."""
        folder = cls(path)
        if (folder.path / "config.json").exists():
            raise RunError(
                f"{folder.path} already holds a run. Resume it, or choose another folder."
            )
        with _disk(folder.path):
            folder.path.mkdir(parents=True, exist_ok=True)
        folder._write_json("config.json", config)
        return folder

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        """An existing run."""
        folder = cls(path)
        if not (folder.path / "config.json").is_file():
            raise RunError(
                f"{folder.path} holds no run: there is no config.json in it. "
                "Name the folder that a run was written to."
            )
        return folder

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from writing to this run, where the system can."""
        if fcntl is None:
            yield
            return
        with _disk(self.path), (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunError(
                    f"Another process is writing to {self.path}. Wait for it, or stop it first."
                ) from None
            yield

    def config(self) -> dict[str, Any]:
        return self._read_json("config.json")

    def check_config(self, config: Mapping[str, Any]) -> None:
        """Refuse to continue a run with different settings."""
        begun, asked = (_comparable(each) for each in (self.config(), config))
        if isinstance(begun.get("method"), dict):  # what format 1 wrote
            raise CheckpointError(
                f"{self.path} was begun with an earlier version of prlc: `prlc report` shows it, "
                "but only that version can resume it. Begin anew in another folder."
            )
        for key in sorted({*begun, *asked}, key=lambda key: (key == "files", key)):
            if begun.get(key) != asked.get(key):
                if key == "files":  # of the same method
                    raise CheckpointError(
                        f"{self.path} was begun by a method whose code has changed since "
                        f"({', '.join(asked.get(key, {}))}). Put the file back as it was, or begin "
                        "anew."
                    )
                raise CheckpointError(
                    f"{self.path} was begun with {key} = {_short(begun.get(key))}, but now it is "
                    f"{_short(asked.get(key))}. Resume it with the same settings, or begin anew."
                )

    # -- metrics ----------------------------------------------------------------------------------

    def add_metrics(self, row: Mapping[str, Any], *, header: bool) -> None:
        """Append a row to metrics.csv; with `header`, start the file over."""
        with _disk(self.path), (self.path / "metrics.csv").open("w" if header else "a") as file:
            file.write(_csv([row], header=header))

    def keep_metrics(self, rows: list[dict[str, Any]]) -> None:
        """Restore metrics.csv to these rows, a checkpoint's."""
        self._write("metrics.csv", _csv(rows, header=True).encode() if rows else b"")

    def metrics(self) -> pd.DataFrame:
        """The rows written so far."""
        file = self.path / "metrics.csv"
        try:
            return pd.read_csv(file)
        except (OSError, ValueError) as error:
            raise RunError(f"{file} cannot be read as a table: {error}.") from None

    def write_timeline(self, recorded: Sequence[Sequence[Event]]) -> None:
        """What every worker did when: timeline.csv, in seconds since the first event."""
        first = min((event[2] for events in recorded for event in events), default=0.0)
        rows = [
            {"rank": rank, "step": step, "what": what, "start": start - first, "end": end - first}
            for rank, events in enumerate(recorded)
            for step, what, start, end in events
        ]
        self._write("timeline.csv", _csv(rows, header=True).encode() if rows else b"")

    # -- checkpoints ------------------------------------------------------------------------------

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        """Replace the checkpoint; the one before is kept under another name."""
        buffer = io.BytesIO()
        torch.save({"format": FORMAT, **state}, buffer)
        newest = self.path / "checkpoint.pt"

        def replace(fresh: Path) -> None:
            if newest.exists():
                newest.replace(self.path / "checkpoint.previous.pt")
            fresh.replace(newest)

        self._write("checkpoint.pt", buffer.getbuffer(), replace)

    def load_checkpoint(self) -> dict[str, Any] | None:
        """The newest checkpoint, or None if none was written. Puts metrics.csv back to it."""
        state = self.newest_checkpoint()
        self.keep_metrics(state["metrics"] if state else [])
        return state

    def newest_checkpoint(self) -> dict[str, Any] | None:
        for name in ("checkpoint.pt", "checkpoint.previous.pt"):
            file = self.path / name
            if file.exists():
                return _load(file)
        return None

    # -- the end ----------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return (self.path / "summary.json").is_file()

    def finish(self, model: torch.nn.Module, summary: Mapping[str, Any]) -> None:
        """Write the trained model and the summary."""
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        self._write("model.pt", buffer.getbuffer())
        self._write_json("summary.json", summary)

    def summary(self) -> dict[str, Any]:
        return self._read_json("summary.json")

    def load_model(self, model: torch.nn.Module) -> None:
        """Read the trained model into `model`."""
        model.load_state_dict(_load(self.path / "model.pt"))

    # -- files ------------------------------------------------------------------------------------

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        self._write(name, (json.dumps(content, indent=2) + "\n").encode())

    def _read_json(self, name: str) -> dict[str, Any]:
        file = self.path / name
        try:
            content = json.loads(file.read_text())
        except OSError as error:
            raise RunError(f"{file} cannot be read: {error.strerror}.") from None
        except ValueError:
            content = None
        if not isinstance(content, dict):
            advice = (
                "Delete it and resume: it is written again."
                if name == "summary.json"
                else "Begin the run anew in another folder."
            )
            raise RunError(f"{file} is damaged: it should hold a JSON object. {advice}")
        return content

    def _write(
        self, name: str, content: bytes | memoryview, replace: Callable[[Path], None] | None = None
    ) -> None:
        """Write a file atomically: it exists whole or not at all."""
        target, fresh = self.path / name, self.path / f".{name}.writing"
        with _disk(self.path):
            try:
                with fresh.open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                if replace is not None:
                    replace(fresh)
                else:
                    fresh.replace(target)
            except OSError:
                fresh.unlink(missing_ok=True)
                raise


@contextmanager
def fresh_folder(parent: Path | str, label: str) -> Iterator[Path]:
    """A new folder under `parent`: 0001-label, 0002-label, ...; removed if left empty."""
    parent = Path(parent)
    with _disk(parent):
        parent.mkdir(parents=True, exist_ok=True)
        while True:
            taken = [int(p.name[:4]) for p in parent.glob("[0-9][0-9][0-9][0-9]-*")]
            folder = parent / f"{max(taken, default=0) + 1:04d}-{label}"
            with suppress(FileExistsError):  # another process was faster
                folder.mkdir()
                break
    try:
        yield folder
    finally:
        with suppress(OSError):
            folder.rmdir()


def _load(file: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        if "format" in state and state["format"] != FORMAT:
            raise CheckpointError(
                f"{file} has format {state['format']}, but this version of prlc reads format "
                f"{FORMAT}. Resume the run with the version that wrote it, or begin anew."
            )
    except CheckpointError:
        raise
    except Exception as error:  # torch raises many kinds for a damaged file
        other = file.with_name("checkpoint.previous.pt")
        hint = (
            f"Delete it to continue from {other.name}."
            if file.name == "checkpoint.pt" and _is_readable(other)
            else "Begin the run anew in another folder."
        )
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(
            f"{file} is damaged or not a checkpoint ({reason[:80]}). {hint}"
        ) from None
    return state


def _is_readable(file: Path) -> bool:
    try:
        torch.load(file, map_location="cpu", weights_only=True)
    except Exception:  # torch raises many kinds for a damaged file
        return False
    return True


def _csv(rows: list[dict[str, Any]] | list[Mapping[str, Any]], *, header: bool) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _comparable(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that must not change, as JSON gives them back."""
    settings: dict[str, Any] = json.loads(json.dumps(config))
    settings.pop("command", None)
    if isinstance(settings.get("method"), str):
        settings["method"] = without_folders(settings["method"])
    return settings


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    """Turn an error of the operating system into a sentence."""
    try:
        yield
    except OSError as error:
        what = {
            errno.ENOSPC: "the disk is full",
            errno.EDQUOT: "the disk quota is used up",
            errno.EFBIG: "the file would be larger than allowed",
            errno.EACCES: "writing there is not allowed",
            errno.EROFS: "the disk is read-only",
        }.get(error.errno or 0, error.strerror or str(error))
        advice = (
            "What was written before is kept; make room, then resume."
            if (path / "checkpoint.pt").exists()
            else "Choose another folder."
        )
        raise RunError(f"Cannot write to {path}: {what}. {advice}") from None
