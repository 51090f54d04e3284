"""Synchronous SGD, the paper's "naive SGD": everybody pushes and pulls at every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from prlc.methods.base import Scheduled


@dataclass(frozen=True)
class NSGD(Scheduled):
    """Every worker pushes and pulls at every step."""

    summary: ClassVar[str] = "synchronous SGD: all push and pull at every step"
    name: ClassVar[str] = "nsgd"

    @property
    def label(self) -> str:
        return "NSGD"
