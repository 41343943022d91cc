"""Models that come from Opacus."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tacit.errors import ArgumentError, ModelError
from tacit.losses import cross_entropy
from tacit.plan import make_plan
from tacit.raw.clipping import Clipper
from tacit.support import Support


def test_a_wrapped_model_is_refused_by_name() -> None:
    grad_sample = pytest.importorskip("opacus.grad_sample", reason="opacus is not installed (extra 'peers')")
    model = grad_sample.GradSampleModule(nn.Linear(3, 2))
    with pytest.raises(ModelError, match=r"wrapped in GradSampleModule of Opacus.*model\._module"):
        Clipper(model, cross_entropy).clipped_sum(
            [(torch.randn(4, 3), torch.zeros(4, dtype=torch.long))], Support.all(model), 1.0
        )


def test_options_by_their_names_in_opacus_are_translated() -> None:
    with pytest.raises(ArgumentError, match="what Opacus calls so is clip_norm of make_plan"):
        make_plan("dp-sgd", epsilon=3, delta=1e-5, examples=200, batch_size=50, epochs=1, max_grad_norm=1.0)
