"""Metrics as TensorBoard events, on request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prlc.errors import ConfigError


class BoardWriter:
    """Writes rows of metrics below `folder`/tensorboard."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError(
                "TensorBoard events need the package tensorboard, which is not installed: "
                "pip install 'prlc[tensorboard]'."
            ) from None
        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def write(self, row: Mapping[str, Any]) -> None:
        """One point of every metric."""
        for name, value in row.items():
            if name != "step" and value is not None:
                self._writer.add_scalar(name, value, int(row["step"]))
        self._writer.flush()
