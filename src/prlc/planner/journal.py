"""The losses that trials measured, in a file, so that a plan that was interrupted goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prlc.errors import ConfigError, RunError


class Journal:
    """Losses by trial, in the order in which they were measured.

    The first line of the file says what is planned, each other one has a trial and its next loss.
    """

    def __init__(self, file: Path, about: Mapping[str, Any]) -> None:
        """`about`: all that decides the losses; a file about anything else is refused."""
        self._file = file
        self._header = json.loads(json.dumps(about))
        self._losses: dict[str, list[float]] = {}
        self._begun = False
        if file.exists():
            self._read()

    def losses(self, trial: str) -> list[float]:
        """Those that are known."""
        return list(self._losses.get(trial, ()))

    def add(self, trial: str, loss: float) -> None:
        """Note the next one."""
        lines = [[trial, loss]] if self._begun else [self._header, [trial, loss]]
        try:
            with self._file.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
        except OSError as error:
            raise RunError(f"{self._file} cannot be written: {error.strerror}.") from None
        self._begun = True

    def _read(self) -> None:
        try:
            content = self._file.read_bytes()
        except OSError as error:
            raise RunError(f"{self._file} cannot be read: {error.strerror}.") from None
        whole = content[: content.rfind(b"\n") + 1]
        try:
            lines = [json.loads(line) for line in whole.decode().splitlines()]
            for trial, loss in lines[1:]:
                self._losses.setdefault(trial, []).append(float(loss))
            found = dict(lines[0]) if lines else self._header
        except (ValueError, TypeError):
            raise RunError(
                f"{self._file} is damaged: it is not what prlc wrote. Remove it, and the plan "
                "begins anew."
            ) from None
        self._check(found)
        self._begun = bool(lines)
        if whole != content:  # whoever wrote the last line was killed
            self._file.write_bytes(whole)

    def _check(self, found: Mapping[str, Any]) -> None:
        for key in sorted({*found, *self._header}):
            before, now = found.get(key), self._header.get(key)
            if before != now:
                raise ConfigError(
                    f"{self._file} has the trials of another plan: its {key} was "
                    f"{json.dumps(before)}, and now it is {json.dumps(now)}. Give another folder "
                    "(--out), or remove the file."
                )
