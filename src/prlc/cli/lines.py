"""Lines for a terminal: command lines, from the options that were typed; names, made harmless."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Mapping
from typing import Any


def command_line(command: Callable[..., None], typed: Mapping[str, Any]) -> str:
    """The line that calls `command` with these options; defaults are left out."""
    words = ["prlc", command.__name__]
    usual = inspect.signature(command).parameters
    for name, value in typed.items():
        if value is None or (name in usual and value == usual[name].default):
            continue
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        else:
            for each in value if isinstance(value, list) else [value]:
                words += [option, str(each)]
    return shlex.join(words)


def printable(text: object) -> str:
    """A text without control characters, which a path or a name may hold."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(text))
