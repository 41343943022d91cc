"""Which coordinates the rounds after the warm-up are about: chosen by the coordinator from what sites have released."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from tacit.plan.sources import TopK, TopRows
from tacit.release.mechanism import Released
from tacit.sites.options import Training
from tacit.support import Support
from tacit.support.rows import RowScores
from tacit.support.scores import Scores
from tacit.support.selection import Evidence, select


class Choice:
    """Scores of a warm-up, by the methods of the core, and the support that they lead to: post-processing only."""

    def __init__(self, training: Training, model: nn.Module) -> None:
        self._training, self._model = training, model
        self._scores: Scores | RowScores = (
            RowScores(model, "absolute") if training.method == "sparta" else Scores(model)
        )

    def add(self, mean: Mapping[str, Tensor], noise_std: float, batch: int) -> None:
        """Take in the released mean of one round of the warm-up."""
        values = {name: value.float() for name, value in mean.items()}
        whole = Support.all(self._model)
        self._scores.add(Released(values, whole, noise_std, batch, self._training.statistic_of(1)))

    def support(self) -> Support:
        """The coordinates, or the rows, with the highest scores."""
        ratio = self._training.active_ratio
        assert ratio is not None
        if isinstance(self._scores, RowScores):
            evidence = Evidence(None, None, 0.0, 1, 0, self._scores)
            return select(TopRows(ratio=ratio), self._model, evidence).support
        return select(TopK(ratio), self._model, Evidence(self._scores, None, 0.0, 1, 0)).support

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything needed to continue."""
        return self._scores.state()

    def restore(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self._scores.restore(tensors, numbers)
