"""``python -m tacit_papers.theory.check``: the results against simulation; the figures of docs/concepts/theory.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from tacit.theory.capture import (
    CaptureEstimate,
    WarmupFold,
    held_out_capture,
    oracle_capture,
    proxy_capture,
    split_capture,
)
from tacit.theory.convergence import (
    clip_rows,
    clipping_bias,
    clipping_residual,
    mask_then_clip_gap,
    projected_stationarity,
)
from tacit.theory.directions import common_directions
from tacit.theory.ratio import choose_active, full_error, restricted_error, worth_keeping
from tacit.theory.score import (
    active_excess_loss,
    debiased_score,
    keep_threshold,
    misranking_bernstein,
    misranking_chebyshev,
    misranking_exact,
    misranking_subgaussian,
    score_variance,
    silent_excess_loss,
)
from tacit_papers.theory.synthetic import power_law, spikes, true_capture, warm_up

_DIMENSION = 10_000
_SEEDS = range(50)


def _normals(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def one_step_criterion() -> Iterator[str]:
    """Proposition 5.1 on heavy-tailed per-example gradients, k = 5 of d = 40 coordinates, ν = C/20."""
    n, d, k = 500, 40, 5
    gradients = (_normals(0, n, d) + 3 * 0.6 ** torch.arange(d)) * _normals(1, n, 1).exp()
    active = torch.arange(d) < k
    normals = _normals(2, 20_000, d)
    yield "clip norm   E(A)   measured   of which mask-then-clip gap   E(all)"
    for clip in (100.0, 10.0, 1.0):
        variance = (clip / 20) ** 2
        noise = variance**0.5 * normals
        mean = clip_rows(gradients, clip).mean(0)
        masked = clip_rows(gradients * active, clip).mean(0)
        measured = float(((masked + noise) * active - mean).square().sum(1).mean())
        predicted = restricted_error(float(mean[~active].square().sum()), k, variance)
        gap = mask_then_clip_gap(gradients, active, clip).not_private_value
        yield f"{clip:g}   {predicted:.3f}   {measured:.3f}   {gap:.3f}   {full_error(d, variance):.3f}"


def debiased_scores() -> Iterator[str]:
    """Lemma 5.2 over 100 000 simulated warm-ups of 5 steps, ν² = 0.7."""
    runs, steps, variance = 100_000, 5, 0.7
    yield "G²   mean score   variance   predicted variance"
    for seed, squared in enumerate((0.0, 0.04, 1.0, 4.0)):
        releases = squared**0.5 + variance**0.5 * _normals(seed, runs, steps)
        scores = debiased_score(releases.square().sum(1), steps, variance)
        predicted = score_variance(squared, steps, variance)
        yield f"{squared:g}   {float(scores.mean()):.3f}   {float(scores.var()):.3f}   {predicted:.3f}"


def misranking() -> Iterator[str]:
    """Proposition 5.3 and Remark B.1 beside the exact probability, ν = 1."""
    yield "Gp²   Gq²   T₁   exact   sub-Gaussian (ours)   Remark B.1, c = 1/8   Prop. 5.3   Remark B.1, c = 1"
    for p, q, steps in [
        (0.1, 0.0, 100),
        (0.1, 0.0, 1000),
        (1.0, 0.5, 100),
        (1.0, 0.0, 100),
        (10.0, 5.0, 20),
        (100.0, 0.0, 3),
    ]:
        case = (p, q, steps, 1.0)
        figures = (
            misranking_exact(*case),
            misranking_subgaussian(*case),
            misranking_bernstein(*case),
            misranking_chebyshev(*case),
            misranking_bernstein(*case, constant=1.0),
        )
        yield f"{p:g}   {q:g}   {steps}   " + "   ".join(f"{x:.2g}" for x in figures)


def stationarity() -> Iterator[str]:
    """Theorem 6.3 on quadratics: β = 4, 3 coordinates, ν² = 0.1, 60 steps, 5000 runs."""
    yield "curvature h   η   measured mean ‖∇L‖²   bound   bound / measured"
    for curvature, rate in ((4.0, 0.25), (4.0, 0.05), (1.0, 0.25), (0.2, 0.1)):
        theta = torch.zeros(5000, 3, dtype=torch.float64)
        theta[:, 0] = 1.0
        measured = 0.0
        for step in range(60):
            gradient = curvature * theta
            measured += float(gradient.square().sum(1).mean()) / 60
            theta = theta - rate * (gradient + 0.1**0.5 * _normals(step, 5000, 3))
        bound = projected_stationarity(
            initial_gap=curvature / 2,
            steps=60,
            learning_rate=rate,
            smoothness=4.0,
            mean_squared_bias=0.0,
            minibatch_variance=0.0,
            batch_size=1,
            mean_active=3,
            noise_variance=0.1,
        ).total
        yield f"{curvature:g}   {rate:g}   {measured:.3f}   {bound:.3f}   {bound / measured:.2f}"


def clipping() -> Iterator[str]:
    """Lemma 6.4 on 500 random gradients, C = 1: the more they agree, the tighter."""
    yield "mean / spread   true ‖b‖   bound   bound / true"
    for agreement in (0.0, 0.3, 1.0, 10.0):
        gradients = _normals(0, 500, 20) + agreement
        bias = clipping_bias(gradients, 1.0).not_private_value
        bound = clipping_residual(gradients, 1.0).not_private_value
        yield f"{agreement:g}   {bias:.3f}   {bound:.3f}   {bound / bias:.2f}"


def many_steps() -> Iterator[str]:
    """The quadratic model, h = 1, ν = 1: the squared gradient above which a coordinate is worth its noise."""
    yield "ηh   keep if G² >   loss active, inactive after 100 steps at G² = 0.1   one-step rule"
    for rate in (1.0, 0.1, 0.01):
        threshold = keep_threshold(1.0, rate, 1.0)
        active = active_excess_loss(0.1, 1.0, rate, 100, 1.0)
        silent = silent_excess_loss(0.1, 1.0)
        kept = bool(worth_keeping(torch.tensor(0.1), 1.0))
        yield f"{rate:g}   {threshold:.4f}   {active:.4f}, {silent:.4f}   {'keep' if kept else 'drop'}"


def capture() -> Iterator[str]:
    """The energy in the 10 % best-ranked of 10 000 coordinates, 5 % useful, 8 steps; mean of 20 seeds."""
    yield "signal / noise   by score: true, proxy ρ̂_sig   by |sum|: true, split estimate with 2, 4 folds"
    for strength in (0.3, 0.5, 1.0):
        rows = torch.tensor([_captures(strength, seed) for seed in range(20)]).mean(0).tolist()
        yield f"{strength:g}   {rows[0]:.2f}, {rows[1]:.2f}   {rows[2]:.2f}, {rows[3]:.2f}, {rows[4]:.2f}"


def _captures(strength: float, seed: int) -> tuple[float, float, float, float, float]:
    steps, k = 8, _DIMENSION // 10
    signal = spikes(0.05, _DIMENSION).sign() * strength
    releases = signal + _normals(seed, steps, _DIMENSION)
    score = debiased_score(releases.square().sum(0), steps, 1.0)
    by_score = torch.zeros(_DIMENSION, dtype=torch.bool)
    by_score[score.topk(k).indices] = True
    two, four = (
        split_capture([WarmupFold(releases[i::n].sum(0), steps // n, 1.0) for i in range(n)]).share(k)
        for n in (2, 4)
    )
    return (
        oracle_capture(signal, by_score).not_private_value,
        proxy_capture(score, by_score),
        true_capture(signal, releases.sum(0).abs(), k),
        two,
        four,
    )


def literal_rule(folds: list[WarmupFold]) -> int:
    """The rule as first proposed: rank on one half, take the first k with U + one deviation ≤ 20 % of all."""
    estimate: CaptureEstimate = held_out_capture(folds[0].gradient_sum.abs(), folds[1])
    within = estimate.uncaptured + estimate.uncaptured_variance.sqrt() <= 0.2 * estimate.total
    return int(estimate.counts[within][0]) if bool(within.any()) else estimate.dimension


def ratio_choice() -> Iterator[str]:
    """The chosen active ratio over 50 seeds; 'over' counts supports that truly miss more than 20 %."""
    yield "signal, noise   needed   rule: median ratio (lowest), dense, over (worst miss)"
    signals = {
        "2 % useful": spikes(0.02, _DIMENSION),
        "20 % useful": spikes(0.2, _DIMENSION),
        "power law": power_law(_DIMENSION),
        "even": spikes(1.0, _DIMENSION),
        "none": torch.zeros(_DIMENSION, dtype=torch.float64),
    }
    for name, signal in signals.items():
        for level in (0.005, 0.05) if name != "none" else (0.05,):
            yield _rule_line(f"{name}, {level:g}", signal, level / _DIMENSION**0.5)


def _rule_line(label: str, signal: Tensor, noise: float) -> str:
    def chosen(folds: list[WarmupFold]) -> int:
        return choose_active(split_capture(folds), noise_variance=1.0).active

    rules: dict[str, tuple[int, Callable[[list[WarmupFold]], int]]] = {
        "literal": (2, literal_rule),
        "2 folds": (2, chosen),
        "4 folds": (4, chosen),
    }
    needed, cells = [], []
    for rule, (folds, choose) in rules.items():
        ratios, misses = [], []
        for seed in _SEEDS:
            warm, mean = warm_up(signal, noise=noise, folds=folds, seed=seed)
            k = choose(warm)
            ratios.append(k / _DIMENSION)
            misses.append(1 - true_capture(signal, mean.abs(), k))
            needed.append(_needed(signal, mean.abs()) / _DIMENSION)
        dense = sum(r == 1 for r in ratios)
        over = sum(m > 0.2 + 1e-9 for m in misses)
        cells.append(
            f"{rule}: {_median(ratios):.3f} ({min(ratios):.3f}), {dense}, {over} ({max(misses):.2f})"
        )
    return f"{label}   {_median(needed):.3f}   " + "   ".join(cells)


def shared_directions() -> Iterator[str]:
    """Common directions of n columns with m units, a tenth of them with signal of energy ℓ; 10 matrices each."""
    yield "n, m   ℓ / √(nm)   found   cosine²   promised   null energy   useful in best tenth: by energy   by direction"
    for n, m in ((1000, 64), (200, 500)):
        for strength in (0.0, 2.0, 5.0):
            found, cosines, promised, null, by_energy, by_direction = 0, [], [], [], [], []
            for seed in range(10):
                direction = torch.nn.functional.normalize(_normals(3 * seed, m), dim=0)
                share = _normals(3 * seed + 1, n) * (torch.arange(n) < n // 10)
                signal = (strength * (n * m) ** 0.5) ** 0.5 * torch.outer(share / share.norm(), direction)
                released = signal + _normals(3 * seed + 2, n, m)
                seen = common_directions(released, 1.0, torch.ones(n))
                if seen is None:
                    continue
                found += 1
                leading = torch.linalg.svd(released, full_matrices=False)[2][0]
                cosines.append(float((leading @ direction).square()))
                promised.append(seen.seen)
                null.append(float(seen.energies[n // 10 :].mean()))
                by_energy.append(_precision(released.square().sum(1)))
                by_direction.append(_precision(seen.energies))
            figures = [cosines, promised, null, by_energy, by_direction]
            cells = [f"{sum(values) / len(values):.2f}" if values else "-" for values in figures]
            yield f"{n}, {m}   {strength:g}   {found}   " + "   ".join(cells)


def _precision(scores: Tensor) -> float:
    """The share of useful columns (the first tenth) among the tenth with the highest scores."""
    tenth = len(scores) // 10
    return float((scores.topk(tenth).indices < tenth).double().mean())


def _needed(signal: Tensor, ranking: Tensor) -> int:
    """The smallest k that truly captures 80 % when ranked on the whole warm-up; d without signal."""
    energy = signal[ranking.argsort(descending=True)].square().cumsum(0)
    return int((energy < 0.8 * energy[-1]).sum()) + 1 if float(energy[-1]) > 0 else len(signal)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def report() -> Iterator[str]:
    """All sections: a title line, then the table."""
    for section in (
        one_step_criterion,
        debiased_scores,
        misranking,
        many_steps,
        stationarity,
        clipping,
        capture,
        ratio_choice,
        shared_directions,
    ):
        yield f"# {(section.__doc__ or '').strip()}"
        yield from section()
        yield ""


if __name__ == "__main__":
    for line in report():
        print(line)
