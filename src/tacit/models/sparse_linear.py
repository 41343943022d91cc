"""A linear layer on rows that are mostly zero: its weights are a table that is looked up, one row per column."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tacit.errors import check_count
from tacit.models.memory import check_table


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
