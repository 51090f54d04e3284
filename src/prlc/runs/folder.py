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

Every file that is read back has a digest, the CRC-32 of its content, which is checked before
anything else: at the end of a checkpoint; as the entry `digest` of a JSON file; in summary.json for
model.pt; in .metrics.digest for metrics.csv. What belongs to a run also names it, by the digest of
its config.json. Runs of earlier versions have none; they open in `prlc report` alone.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import logging
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from prlc.engines import Event
from prlc.engines.schema import (
    NOTHING,
    NUMBER,
    PLAIN,
    TEXT,
    WHOLE,
    Form,
    FormError,
    Like,
    Table,
    check,
)
from prlc.errors import CheckpointError, PrlcError, RunError
from prlc.text import without_folders

try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None  # type: ignore[assignment]

FORMAT = 3  # of run folders; raised when older ones can no longer be resumed
NEWEST, PREVIOUS, DAMAGED = "checkpoint.pt", "checkpoint.previous.pt", "checkpoint.damaged.pt"

_MARK = b"\nprlc-crc32 "  # before the digest at the end of a checkpoint
_SEAL = (
    "format",
    "run",
    "file_digests",
    "digest",
)  # entries of a JSON file that are about the file
_SETTINGS = Table(
    optional={
        "command": (TEXT, NOTHING, Table(others=PLAIN)),
        "seed": (WHOLE, NOTHING),
        "model": (TEXT, Table(optional={"class": TEXT, "parameters": WHOLE}, others=PLAIN)),
        "data": (TEXT, Table(optional={"name": TEXT, "samples": WHOLE}, others=PLAIN)),
        "schedule": (TEXT, Table(optional={"name": TEXT, "lr": NUMBER}, others=PLAIN)),
    },
    others=PLAIN,
)
_RESULTS = (
    *("train_loss", "test_accuracy", "test_loss", "pulls_per_worker", "pull_fraction"),
    *("pushes_per_worker", "bytes_up", "bytes_down", "simulated_seconds", "steps"),
)
_ENDED: dict[str, Form] = {
    **dict.fromkeys(_RESULTS, (NUMBER, NOTHING)),
    "method": TEXT,
    "seed": (WHOLE, NOTHING),
    "file_digests": Table(others=TEXT),
}
_CHECKPOINT = Table({"format": WHOLE, "run": TEXT}, others=PLAIN)

log = logging.getLogger("prlc")


class RunFolder:
    """Reads and writes the folder of one run."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._known_as: str | None = None
        self._metrics_seal = (0, 0)  # the length of metrics.csv, and its digest

    # -- beginning and resuming -------------------------------------------------------------------

    @classmethod
    def create(cls, path: Path | str, config: Mapping[str, Any]) -> RunFolder:
        """A new run; refuses a folder that holds one already."""
        folder = cls(path)
        if folder.exists():
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
        if not folder.exists():
            raise RunError(
                f"{folder.path} holds no run: there is no config.json in it. "
                "Name the folder that a run was written to."
            )
        return folder

    def exists(self) -> bool:
        """Whether there is a run in the folder."""
        with _disk(self.path, "look into"):
            return (self.path / "config.json").is_file()

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
        """The settings that the run was begun with."""
        return _unsealed(self._read_json("config.json", _SETTINGS))

    def check_config(self, config: Mapping[str, Any]) -> None:
        """Refuse to continue a run with different settings."""
        begun, asked = (_comparable(each) for each in (self.config(), config))
        if not self._name():  # before format 3
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
        added = _csv([row], header=header).encode()
        with _disk(self.path), (self.path / "metrics.csv").open("wb" if header else "ab") as file:
            file.write(added)
        self._seal_metrics(added, anew=header)

    def keep_metrics(self, rows: list[dict[str, Any]]) -> None:
        """Restore metrics.csv to these rows, a checkpoint's."""
        content = _csv(rows, header=True).encode() if rows else b""
        self._write("metrics.csv", content)
        self._seal_metrics(content, anew=True)

    def _seal_metrics(self, added: bytes, *, anew: bool) -> None:
        """Note how long metrics.csv is now, and its digest."""
        length, before = (0, 0) if anew else self._metrics_seal
        self._metrics_seal = (length + len(added), zlib.crc32(added, before))
        text = "{} {:08x}\n".format(*self._metrics_seal)
        self._write(".metrics.digest", text.encode(), flush=False)

    def metrics(self) -> pd.DataFrame:
        """The rows written so far."""
        file = self.path / "metrics.csv"
        try:
            return pd.read_csv(io.StringIO(self.metrics_text()))
        except ValueError as error:
            raise RunError(f"{file} cannot be read as a table: {error}.") from None

    def metrics_text(self) -> str:
        """metrics.csv as it was written; a row after the last digest is left out."""
        file, seal = self.path / "metrics.csv", self.path / ".metrics.digest"
        content = _read(file)
        damaged = RunError(
            f"{file} is damaged: it is not what prlc wrote. Resume the run, which restores it to "
            "the last checkpoint, or leave the run out."
        )
        if seal.exists():
            try:
                length, digest = _read(seal).decode().split()
                if len(content) < int(length) or _digest(content[: int(length)]) != digest:
                    raise damaged
            except ValueError:
                raise damaged from None
            content = content[: int(length)]
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise damaged from None

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
        before = torch.serialization.get_crc32_options()
        torch.serialization.set_crc32_options(False)  # those that torch writes it never checks
        try:
            torch.save({"format": FORMAT, "run": self._name(), **state}, buffer)
        finally:
            torch.serialization.set_crc32_options(before)
        newest = self.path / NEWEST

        def replace(fresh: Path) -> None:
            if newest.exists():
                newest.replace(self.path / PREVIOUS)
            fresh.replace(newest)

        content = buffer.getbuffer()
        with ThreadPoolExecutor(1) as beside:  # while the content is being written
            self._write(NEWEST, content, beside.submit(seal, content).result, replace=replace)

    def load_checkpoint(self, form: Table) -> dict[str, Any] | None:
        """The newest checkpoint, or None if none was written. Puts metrics.csv back to it."""
        state = self.newest_checkpoint(form)
        self.keep_metrics(state["metrics"] if state else [])
        return state

    def newest_checkpoint(self, form: Table) -> dict[str, Any] | None:
        """The newest checkpoint that is whole and has the form; None if none was written.

        A damaged one is set aside, so that it never takes the place of the one before.
        """
        damaged: CheckpointError | None = None
        for name in (NEWEST, PREVIOUS):
            file = self.path / name
            if not file.exists():
                continue
            try:
                state = self._load_checkpoint(file, form)
            except CheckpointError as error:
                damaged = damaged or error
                continue
            if damaged is not None:
                with _disk(self.path):
                    (self.path / NEWEST).replace(self.path / DAMAGED)
                log.warning(
                    "%s It is kept as %s; the run goes on from %s, to the same result.",
                    *(damaged, DAMAGED, PREVIOUS),
                )
            return state
        if damaged is not None:
            raise CheckpointError(f"{damaged} Begin the run anew in another folder.")
        return None

    @contextmanager
    def loading(self) -> Iterator[None]:
        """A checkpoint that does not fit what loads it, in a sentence."""
        try:
            yield
        except (FormError, LookupError, TypeError, ValueError, RuntimeError) as error:
            if isinstance(error, PrlcError):
                raise
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise CheckpointError(
                f"The checkpoint in {self.path} does not fit this run ({reason[:120]}). Begin the "
                "run anew in another folder."
            ) from None

    def _load_checkpoint(self, file: Path, form: Table) -> dict[str, Any]:
        content = _read(file)
        whole, mark, digest = content.rpartition(_MARK)
        if not mark or seal(whole) != mark + digest:
            raise CheckpointError(
                f"{file} is damaged, or was written by an earlier version of prlc: its digest is "
                "not that of its content."
            )
        state = _load(file, whole)
        if isinstance(state, dict) and state.get("format", FORMAT) != FORMAT:
            raise CheckpointError(
                f"{file} has format {state['format']}, but this version of prlc reads format "
                f"{FORMAT}. Resume the run with the version that wrote it."
            )
        try:
            check(state, _CHECKPOINT)
            check({key: state[key] for key in state if key not in ("format", "run")}, form)
        except FormError as error:
            raise CheckpointError(f"{file} is not a checkpoint of this run: {error}.") from None
        if state["run"] != self._name():
            raise CheckpointError(f"{file} belongs to another run than config.json beside it.")
        found: dict[str, Any] = state
        return found

    # -- the end ----------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return (self.path / "summary.json").is_file()

    def finish(self, model: torch.nn.Module, summary: Mapping[str, Any]) -> None:
        """Write the trained model and the summary."""
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        self._write("model.pt", buffer.getbuffer())
        digests = {"model.pt": _digest(buffer.getbuffer())}
        self._write_json("summary.json", summary, run=self._name(), file_digests=digests)

    def summary(self) -> dict[str, Any]:
        """How the run ended."""
        return _unsealed(self._read_summary())

    def _read_summary(self) -> dict[str, Any]:
        content = self._read_json("summary.json", Table(optional=_ENDED, others=PLAIN))
        missing = sorted({*_ENDED} - {*content}) if "format" in content else []
        if missing:
            raise RunError(
                f"{self.path / 'summary.json'} is damaged: {missing[0]} is missing. Delete it and "
                "resume: it is written again."
            )
        if content.get("run", "") != self._name():
            raise RunError(
                f"{self.path / 'summary.json'} belongs to another run than config.json beside it. "
                "Delete it and resume: it is written again."
            )
        return content

    def load_model(self, model: torch.nn.Module) -> None:
        """Read the trained model into `model`."""
        file, own = self.path / "model.pt", model.state_dict()
        content = _read(file)
        if self._read_summary().get("file_digests", {}).get("model.pt") != _digest(content):
            raise CheckpointError(
                f"{file} is damaged: its digest is not the one in summary.json. Delete "
                "summary.json and resume: both are written again."
            )
        state = _load(file, content)
        try:
            check(state, Like(dict(own)), "the model")
        except FormError as error:
            raise CheckpointError(f"{file} is not of this model: {error}.") from None
        model.load_state_dict(state)

    # -- files ------------------------------------------------------------------------------------

    def _name(self) -> str:
        """What a run's files call it: the digest of its config.json; earlier runs have none."""
        if self._known_as is None:
            self._known_as = str(self._read_json("config.json", _SETTINGS).get("digest", ""))
        return self._known_as

    def _write_json(self, name: str, content: Mapping[str, Any], **about: Any) -> None:
        whole = {**content, "format": FORMAT, **about}
        whole["digest"] = _json_digest(whole)
        self._write(name, (json.dumps(whole, indent=2) + "\n").encode())

    def _read_json(self, name: str, form: Form) -> dict[str, Any]:
        """A JSON file whose digest, unless an earlier version wrote it, is right."""
        file = self.path / name
        advice = (
            "Delete it and resume: it is written again."
            if name == "summary.json"
            else "Begin the run anew in another folder."
        )
        try:
            content = json.loads(_read(file))
            if not isinstance(content, dict):
                raise FormError("it should hold a JSON object")
            check(content, form)
            sealed = "format" in content or "digest" in content
            if sealed and content.get("digest") != _json_digest(content):
                raise FormError("its digest is not that of its content")
        except FormError as error:
            reason = str(error)
        except (ValueError, RecursionError):
            reason = "it should hold a JSON object"
        else:
            return content
        raise RunError(f"{file} is damaged: {reason}. {advice}")

    def _write(
        self,
        name: str,
        content: bytes | memoryview,
        end: Callable[[], bytes] = bytes,
        replace: Callable[[Path], None] | None = None,
        flush: bool = True,
    ) -> None:
        """Write a file, and what `end` gives then, atomically: it exists whole or not at all."""
        target, fresh = self.path / name, self.path / f".{name.lstrip('.')}.writing"
        with _disk(self.path):
            try:
                with fresh.open("wb") as file:
                    file.write(content)
                    file.write(end())
                    if flush:
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


def seal(content: bytes | memoryview) -> bytes:
    """What follows the content of a checkpoint: a mark and the content's digest."""
    return _MARK + _digest(content).encode()


def _digest(content: bytes | memoryview) -> str:
    """Enough against damage: any one flipped bit changes it. (Not against a forger.)"""
    return f"{zlib.crc32(content):08x}"


def _json_digest(content: Mapping[str, Any]) -> str:
    kept = {key: value for key, value in content.items() if key != "digest"}
    return _digest(json.dumps(kept, sort_keys=True).encode())


def _unsealed(content: dict[str, Any]) -> dict[str, Any]:
    """What was written, without what is about the file itself."""
    if "format" not in content:
        return content
    return {key: value for key, value in content.items() if key not in _SEAL}


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error.strerror}.") from None


def _load(file: Path, content: bytes) -> Any:
    """Read what torch.save wrote; never executes it."""
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged file
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{file} is damaged or not a checkpoint ({reason[:80]}).") from None


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
def _disk(path: Path, what_for: str = "write to") -> Iterator[None]:
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
            errno.ENAMETOOLONG: "the name is too long",
        }.get(error.errno or 0, error.strerror or str(error))
        advice = "Choose another folder."
        with suppress(OSError):
            if (path / NEWEST).exists():
                advice = "What was written before is kept; make room, then resume."
        raise RunError(f"Cannot {what_for} {path}: {what}. {advice}") from None
