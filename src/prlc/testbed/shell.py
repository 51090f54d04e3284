"""Running `ip` and `tc`: a failure becomes a sentence."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from prlc.errors import TestbedError


@dataclass(frozen=True)
class Batch:
    """Lines that one `ip` or `tc` works off, inside a namespace or (without one) outside of all."""

    tool: str
    namespace: str | None
    lines: tuple[str, ...]


def run(command: Sequence[str], given: str = "") -> str:
    """The output of a command that must succeed.

    It runs in a session of its own, so that a Ctrl-C meant for us does not tear it apart.
    """
    try:
        done = subprocess.run(
            command,
            input=given,
            text=True,
            capture_output=True,
            start_new_session=True,
            check=False,
        )
    except OSError as error:
        raise TestbedError(
            f"`{command[0]}` cannot be run: {error.strerror}. The testbed needs iproute2 (ip, tc) "
            "and util-linux (unshare); install them."
        ) from None
    if done.returncode != 0:
        said = done.stderr.strip() or f"exit status {done.returncode}"
        raise TestbedError(
            f"`{_short(command)}` failed: {said.splitlines()[0].rstrip('.')}. "
            "`prlc testbed --check` says what this machine lacks."
        )
    return done.stdout


def work_off(batch: Batch) -> None:
    """Run all lines of a batch, up to the first that fails."""
    if batch.lines:
        inside = [] if batch.namespace is None else ["-n", batch.namespace]
        run([batch.tool, *inside, "-batch", "-"], "".join(f"{line}\n" for line in batch.lines))


def inside(namespace: str, command: Sequence[str]) -> list[str]:
    """The command that runs another one inside a namespace, as the same process."""
    return ["ip", "netns", "exec", namespace, *command]


def namespaces() -> list[str]:
    """All network namespaces that have a name, whoever made them."""
    return [line.split()[0] for line in run(["ip", "netns", "list"]).splitlines() if line.strip()]


def processes_in(namespace: str) -> list[int]:
    return [int(pid) for pid in run(["ip", "netns", "pids", namespace]).split()]


def _short(command: Sequence[str]) -> str:
    text = " ".join(command)
    return text if len(text) <= 100 else text[:97] + "..."
