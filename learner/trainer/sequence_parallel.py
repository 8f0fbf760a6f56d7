"""Sequence parallelism: the ranks of a group share each packed row (DeepSpeed-Ulysses, arXiv 2309.14509).

                 rank 0            rank 1
    layers       first tokens      last tokens       embedding, projections, MLP, head
    attention    first heads       last heads        over all tokens of the row

Before attention an exchange brings a rank all tokens of its heads; after it another one brings it all heads of its
tokens. The log-probabilities of all ranks are put together, so that each rank computes the loss of the whole row.

Shape letters: T tokens of the row, t of one rank, H heads, h of one rank, D head size.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from olmorl.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


class SequenceGroup:
    """The ranks that share each row. All of them run the same rows in the same order."""

    def __init__(self, rank: int, size: int, process_group: ProcessGroup | None = None) -> None:
        """`rank` is the place of this rank in the group: it holds this part of every row."""
        self.rank, self.size = rank, size
        self._process_group = process_group

    def padding(self, num_tokens: int) -> int:
        """Tokens that make a row of `num_tokens` divisible among the ranks."""
        return -num_tokens % self.size

    def part(self, num_tokens: int) -> slice:
        """The tokens of this rank in a padded row."""
        length = num_tokens // self.size
        return slice(self.rank * length, (self.rank + 1) * length)

    def own(self, before_P: Tensor, part: slice) -> Tensor | slice:
        """Index of the tokens that are predicted from a token in `part`."""
        is_own_P: Tensor = (before_P >= part.start) & (before_P < part.stop)
        return is_own_P

    def tokens_of_heads(self, states_1HtD: Tensor) -> Tensor:
        """1hTD: all tokens of this rank's heads. With fewer heads than ranks, several ranks get the same head."""
        heads = states_1HtD.shape[1]
        if heads < self.size:
            states_1HtD = states_1HtD.repeat_interleave(self.size // heads, dim=1)
        return self.exchange(states_1HtD.transpose(1, 2), 2, 1).transpose(1, 2)

    def heads_of_tokens(self, output_1ThD: Tensor) -> Tensor:
        """1tHD: all heads of this rank's tokens."""
        return self.exchange(output_1ThD, 1, 2)

    def whole(self, values_T: Tensor, own_P: Tensor) -> Tensor:
        """The values of all ranks, with the gradient of this rank's own; `values_T` is 0 at the tokens of others.

        The gradient of a loss over the whole is right only when all ranks compute the same loss.
        """
        total_T = values_T.detach().clone()
        self.add_up(total_T)
        is_own_T = total_T.new_zeros(len(total_T)).index_fill(0, own_P, 1).bool()
        return values_T.where(is_own_T, total_T)

    def exchange(self, states: Tensor, split: int, joined: int) -> Tensor:
        """All-to-all with a gradient, of a tensor with four dimensions: one is split, another one joined."""
        from olmorl.learner.trainer.compat import all_to_all

        return all_to_all(self._process_group, states, split, joined)

    def add_up(self, values: Tensor) -> None:
        """Replace a tensor by its sum over the group."""
        import torch.distributed as dist

        dist.all_reduce(values, group=self._process_group)

    def leave(self) -> None:
        """End the group. The ranks stay in the process group of all."""
        import torch.distributed as dist

        dist.destroy_process_group(self._process_group)


def form_group(rank: int, size: int, timeout_s: float) -> SequenceGroup:
    """The group of `size` ranks with neighbouring numbers to which `rank` belongs. All ranks call this together.

    Neighbours are on one host where a host has enough ranks. An exchange waits `timeout_s` for the others. The process
    group of all and deepspeed must be set up.
    """
    import torch.distributed as dist

    deadline = timedelta(seconds=timeout_s)
    group, _ = dist.new_subgroups(size, timeout=deadline)  # type: ignore[no-untyped-call]
    return SequenceGroup(rank % size, size, group)


def refuse_heads(heads: int, kv_heads: int, size: int) -> None:
    """Check that attention heads can be dealt to `size` ranks.

    Raises:
        ModelError: they do not divide.
    """
    if heads % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0):
        return
    fitting = [n for n in range(1, size) if heads % n == 0 and (kv_heads % n == 0 or n % kv_heads == 0)]
    raise ModelError(
        f"learner.sequence_parallel = {size} does not fit a model with {heads} attention heads and {kv_heads} key "
        f"heads: it has to divide the first, and to divide the second or be a multiple of it; set it to {fitting[-1]}"
    )
