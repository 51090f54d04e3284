"""The random states of a script: torch's, numpy's and Python's, as plain numbers and tensors."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

RandomState = dict[str, Any]


def get_random_state() -> RandomState:
    """All generators that a script uses without naming one."""
    kind, keys, *rest = np.random.get_state()
    state: RandomState = {
        "torch": torch.get_rng_state(),
        "numpy": [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
        "python": random.getstate(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: RandomState) -> None:
    """Put all generators back."""
    torch.set_rng_state(state["torch"])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


def seed_all(seed: int) -> None:
    """Seed all generators."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def random_state_aside() -> Iterator[None]:
    """What is drawn in the block leaves the script's own random states as they were."""
    before = get_random_state()
    try:
        yield
    finally:
        set_random_state(before)
