"""A linear layer on rows that are mostly zero: its weights are a table that is looked up, one row per column."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tacit.errors import ModelError, check_count

_BYTES_PER_WEIGHT = 16
"""Of a table that is trained: the weights, and a sum in double precision."""


class SparseLinear(nn.Module):
    """``nn.Linear`` for the rows of ``tacit.data.SparseRows``: it takes ``(ids, values)`` and returns W x + b.

    Its weights are an ``nn.EmbeddingBag`` with one row per column of the matrix and one, number 0, that fills up. So
    the rules for embedding tables hold: gradients are formed for what rows touch, and lazy noise, counted rows and
    AdaFEST work. It starts at zero, as a linear model may; to put layers behind it, start it with ``nn.init.normal_``.

    Args:
        columns: The number of columns of the matrix, ``SparseRows.columns``.
        outputs: The number of outputs.
        bias: Whether there is a b.
    """

    def __init__(self, columns: int, outputs: int, *, bias: bool = True) -> None:
        super().__init__()
        check_table(check_count("columns", columns) + 1, check_count("outputs", outputs))
        # Zeros from the start: memory is touched where columns are.
        table = torch.zeros(columns + 1, outputs)
        self.table = nn.EmbeddingBag.from_pretrained(table, freeze=False, mode="sum", padding_idx=0)
        self.bias = nn.Linear(1, outputs, bias=False) if bias else None
        if self.bias is not None:
            nn.init.zeros_(self.bias.weight)

    def forward(self, rows: Sequence[Tensor]) -> Tensor:
        """Return (batch, outputs) for ids and values, both (batch, length)."""
        ids, values = rows
        values = values.to(self.table.weight.dtype)
        answer: Tensor = self.table(ids, per_sample_weights=values)
        return answer if self.bias is None else answer + self.bias(torch.ones_like(values[:, :1]))

    @torch.no_grad()
    def dense(self) -> nn.Linear:
        """The same function of dense rows, as ``nn.Linear``."""
        columns, outputs = self.table.weight[1:].shape
        found = nn.Linear(columns, outputs, bias=self.bias is not None)
        found.weight.copy_(self.table.weight[1:].t())
        if self.bias is not None:
            found.bias.copy_(self.bias.weight[:, 0])
        return found


def check_table(rows: int, width: int) -> None:
    """Refuse a table that could not be trained in this machine's memory, before the system kills the process."""
    with contextlib.suppress(ValueError, OSError, AttributeError):
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if rows * width * _BYTES_PER_WEIGHT > memory:
            raise ModelError(
                f"A table of {rows:,} rows with {width} weights each takes more than the {memory / 2**30:.0f} GB of "
                "memory here; hash words or columns to fewer numbers (--buckets), or give a shorter word list."
            )
