"""The composition root: builds each part from the recipe and hands it the adapters of its ports.

Heavy imports stand inside the functions: each process loads what it runs, and no other.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from olmorl.clock import SystemClock
from olmorl.config import Config
from olmorl.deploy.access import QueueAccess
from olmorl.ports import BatchSource, Engine, Queue, Scorer, Trainer, WeightStore


def own_address(settings: Config) -> str:
    """The address other hosts of the run reach this one at; the loopback one when there are no others."""
    if settings.cluster.address is None:
        return "127.0.0.1"
    import ray

    return str(ray.util.get_node_ip_address())
