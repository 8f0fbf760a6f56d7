"""One rank that meets the others and adds up with them: `meet.py RANK WORLD ADDRESS`.

Prints the sum of 1 to WORLD, and the addresses that it listened on meanwhile.
"""

from __future__ import annotations

import sys

import psutil
import torch
import torch.distributed as dist

from olmorl.learner.trainer.process_group import Ranks, join

if __name__ == "__main__":
    rank, world = int(sys.argv[1]), int(sys.argv[2])
    join(Ranks(rank, world, sys.argv[3], timeout_s=60), torch.device("cpu"))
    total = torch.tensor([rank + 1])
    dist.all_reduce(total)
    heard = [each for each in psutil.Process().net_connections() if each.status == psutil.CONN_LISTEN]
    print("sum", total.item(), "on", *sorted({each.laddr.ip for each in heard}))
