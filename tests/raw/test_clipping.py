from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle import assert_close, clipped_sum, per_example_gradients
from raw.models import Network, batches, cross_entropy, networks, supports
from tacit.raw.clipping import Clipper
from tacit.support import Support

RELAXED = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))


@given(st.data())
@RELAXED
def test_clipped_sums_and_norms_equal_brute_force(data: st.DataObject) -> None:
    model, shape, vocabulary = data.draw(networks())
    support = data.draw(supports(model))
    rows = data.draw(st.integers(0, 9))
    views = data.draw(st.sampled_from([1, 1, 2]))
    x, y = data.draw(batches(shape, vocabulary, rows * views))
    clip_norm = data.draw(st.sampled_from([0.01, 0.3, 100.0]))
    cut = data.draw(st.integers(0, rows)) * views

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*has no rule")
        warnings.filterwarnings("ignore", "Using padding='same'")
        clipper = Clipper(model, cross_entropy, views=views)
        chunks = [(x[:cut], y[:cut]), (x[cut:], y[cut:])]
        found = clipper.clipped_sum(chunks, support, clip_norm)
        absolute = clipper.clipped_sum(chunks, support, clip_norm, statistic="absolute")
        clipped_first = clipper.clipped_sum(chunks, support, clip_norm, clip_order="clip-then-mask")
        whole = Support.matching(model, data.draw(st.lists(st.sampled_from(list(support)), min_size=1)))
        row_norms = clipper.clipped_sum(chunks, whole, clip_norm, statistic="row-norms")
        norms = clipper.norms((x, y), support)

    gradients = per_example_gradients(model, cross_entropy, (x, y), views)
    expected, expected_norms = clipped_sum(gradients, support, clip_norm)
    assert_close(found.values, expected, 1e-10)
    for sums, chosen, how in [
        (absolute, support, {"statistic": "absolute"}),
        (clipped_first, support, {"clip_first": True}),
        (row_norms, whole, {"statistic": "row-norms"}),
    ]:
        assert_close(sums.values, clipped_sum(gradients, chosen, clip_norm, **how)[0], 1e-10)
        assert set(sums.values) == {name for name, block in chosen.items() if block.size}
    if rows:
        torch.testing.assert_close(norms, expected_norms, rtol=1e-10, atol=1e-13)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    "norm",
    [torch.nn.InstanceNorm2d(2), torch.nn.InstanceNorm2d(2, affine=True), torch.nn.BatchNorm2d(2).eval()],
)
def test_gradients_through_a_norm_without_active_coordinates(norm: torch.nn.Module, rows: int) -> None:
    """torch 2.13 alone gives a wrong gradient below an instance norm of one example whose output is averaged so."""
    torch.manual_seed(0)
    convolution = torch.nn.Conv2d(1, 2, 2)
    model = Network([convolution, torch.nn.Conv2d(2, 2, 1), norm], [0, 1, 2], 2, channels_at=1).double()
    support = Support.matching(model, ["layers.0.weight"])
    batch = torch.randn(rows, 1, 4, 4, dtype=torch.float64), torch.arange(rows) % 3
    found = Clipper(model, cross_entropy).clipped_sum([batch], support, 0.3)
    expected, _ = clipped_sum(per_example_gradients(model, cross_entropy, batch), support, 0.3)
    assert_close(found.values, {"layers.0.weight": expected["layers.0.weight"]}, 1e-10)


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, float("nan"), float("inf")])
def test_refuses_a_clip_norm_that_is_not_positive(clip_norm: float) -> None:
    from tacit.errors import ArgumentError

    model = torch.nn.Linear(2, 3)
    with pytest.raises(ArgumentError, match="clip_norm"):
        Clipper(model, cross_entropy).clipped_sum([], Support.all(model), clip_norm)


def test_a_gradient_that_arrives_transposed_is_copied_once_for_all_who_read_it() -> None:
    """A token loss takes logits with classes in the middle; the layer below reads the copy made for the norm."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 6)).double()

    def tokens(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        logits = model(batch[0]).transpose(1, 2)
        return torch.nn.functional.cross_entropy(logits, batch[1], reduction="none").mean(1)

    batch = torch.randn(5, 7, 3, dtype=torch.float64), torch.randint(0, 6, (5, 7))
    support = Support.all(model)
    found = Clipper(model, tokens).clipped_sum([batch], support, 0.1)
    expected, _ = clipped_sum(per_example_gradients(model, tokens, batch, 1), support, 0.1)
    assert_close(found.values, expected, 1e-12)
