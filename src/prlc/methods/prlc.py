"""Pulling reduction with local compensation: Algorithm 1 of the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from prlc.methods.pr import PR


@dataclass(frozen=True)
class PRLC(PR):
    """Each worker pulls with probability `pull_ratio`, otherwise it adds its own update."""

    summary: ClassVar[str] = "pull with probability r, else add the own update"
    name: ClassVar[str] = "prlc"
    compensation: ClassVar[float] = 1.0  # line 5, second case
