"""The simulated network: how long communication takes, and how much of it there is.

settings.py   Network: bandwidths, latency, compute speed; presets
links.py      transfers that share a link fairly, full or half duplex
clock.py      simulated time: run-ahead, barrier, or arrivals
timeline.py   the right clock for a method, step by step
traffic.py    counts of messages and bytes
"""

from prlc.network.settings import PRESETS, Network

__all__ = ["PRESETS", "Network"]
