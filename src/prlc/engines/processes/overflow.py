"""Steps that a `GradScaler` leaves out, because a gradient overflowed: no hook of torch's fires."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch.amp import GradScaler
from torch.optim import Optimizer


class OverflowHook:
    """Calls back after each `scaler.step(optimizer)` that took no step, until it is removed."""

    def __init__(self, count: Callable[[], int], left_out: Callable[[Optimizer], None]) -> None:
        """`count`: the steps taken so far."""
        self._original = original = GradScaler.step

        @wraps(original)
        def step(scaler: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            before = count()
            result = original(scaler, optimizer, *args, **kwargs)
            if count() == before:
                left_out(optimizer)
            return result

        GradScaler.step = step  # type: ignore[method-assign, assignment]

    def remove(self) -> None:
        GradScaler.step = self._original  # type: ignore[method-assign]
