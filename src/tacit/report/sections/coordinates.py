"""Which coordinates were active and why: the energy curve and the active share of every parameter."""

from __future__ import annotations

from tacit.jobs.diagnosis import Diagnosis, Energy, Layer
from tacit.report.markup import Markup, bar, element, grid, joined, listed, note, section, table
from tacit.report.plot import Mark, Plot, Series, draw, number, share
from tacit.report.reading import RunView

_SHOWN = 14
_SPARSE = 0.03
_EXPLAINED = 8


def coordinates(run: RunView, key: str, level: int) -> Markup | None:
    """What the checkpoint says about the last support; nothing where there is no checkpoint."""
    found = run.diagnosis
    if found is None:
        return None
    reasons = list(found.selections.items())
    told = [joined(element("strong", phase), ": ", reason) for phase, reason in reasons[:_EXPLAINED]]
    if len(reasons) > _EXPLAINED:
        told.append(joined(f"… and {len(reasons) - _EXPLAINED} more phases."))
    return section(
        f"{key}-coordinates",
        "Active coordinates",
        level,
        element("p", _told(found)),
        listed(told),
        grid(
            energy_figure(found, found.energy, key) if found.energy is not None else None,
            _layers(found.layers, key),
        ),
        note(
            "The energy curve ranks coordinates on some of the warm-up's released steps and measures on the "
            "others, so that the noise it was ranked by does not count as signal. Break-even is a rule for one "
            "step (Proposition 5.1): over many, signal adds up faster than noise."
        )
        if found.energy is not None
        else note(
            "There is no energy curve: only runs that choose their active ratio themselves "
            "(active_ratio = auto) keep what it takes."
        ),
    )


def energy_figure(found: Diagnosis, energy: Energy, key: str) -> Markup:
    """The share of gradient energy in the k best coordinates, with the chosen k and the break-even line.

    Leaving d − k coordinates silent lowers the error of one step iff the energy outside is at most
    (d − k) ν₂², that is, iff the captured share is at least 1 − (d − k) ν₂² / ‖G‖².
    """
    d = found.coordinates
    chosen = found.active / d
    total = energy.counts[-1]
    xs = [count / d for count in energy.counts]
    needed = [1 - (total - count) * energy.noise_variance / energy.total for count in energy.counts]
    visible = [(x, y) for x, y in zip(xs, needed, strict=True) if y >= 0]
    captured = energy.captured[_place(energy, found.active)]
    half = energy.captured[_place(energy, total // 2)]
    summary = (
        f"The best half of the coordinates captures an estimated {share(half)} of the warm-up's gradient energy. "
        if found.active == d
        else f"The {found.active:,} active coordinates, {share(chosen)} of all, capture an estimated "
        f"{share(captured)} of the warm-up's gradient energy; a random support of that size would capture "
        f"{share(chosen)}. "
    )
    summary += (
        f"With noise of variance ν₂² = {number(energy.noise_variance, 3)} in every active "
        f"coordinate, {_pays(energy)}."
    )
    return draw(
        Plot(
            "Gradient energy in the best coordinates",
            summary,
            "share of coordinates, best first",
            "share of energy",
            [
                Series(
                    "captured (± one standard deviation)", xs, energy.captured, 1, False, energy.deviations
                ),
                Series("random support", xs, xs, 6, dashed=True),
                Series("break-even with ν₂²", [x for x, _ in visible], [y for _, y in visible], 3, True),
            ],
            verticals=[Mark(chosen, f"active: k = {found.active:,}", 2, dashed=False)],
            x_range=(1 / d, 1) if chosen < _SPARSE else (0, 1),
            y_range=(min(0.0, *energy.captured) - 0.02, 1.06),
            x_format=_percent,
            y_format=_percent,
            log_x=chosen < _SPARSE,
            note=summary,
        ),
        f"{key}-energy",
    )


def _told(found: Diagnosis) -> str:
    if found.active == found.coordinates:
        return f"All {found.coordinates:,} coordinates were active at the end."
    return (
        f"{found.active:,} of {found.coordinates:,} coordinates were active at the end "
        f"({share(found.active / found.coordinates)}). The others were neither updated nor noised."
    )


def _pays(energy: Energy) -> str:
    """For which k a sparse step has a smaller error than a dense one."""
    if energy.break_even is None:
        return "leaving coordinates silent does not pay within a single step"
    if energy.break_even == energy.counts[0]:
        return "leaving coordinates silent pays within a single step, whatever k is"
    return f"leaving coordinates silent pays within a single step from k = {energy.break_even:,} on"


def _place(energy: Energy, count: int) -> int:
    """Where in the grid the number of active coordinates is."""
    return next((i for i, k in enumerate(energy.counts) if k >= count), len(energy.counts) - 1)


def _percent(value: float) -> str:
    return share(value, 0 if value >= 0.1 or not value else 2)


def _layers(layers: tuple[Layer, ...], key: str) -> Markup:
    rows = [
        (
            element("code", layer.name),
            bar(layer.active / layer.coordinates),
            joined(
                share(layer.active / layer.coordinates),
                " ",
                element("span", f"{layer.active:,} of {layer.coordinates:,}", class_="soft"),
            ),
        )
        for layer in layers
    ]
    header = ("Parameter", "", "Active")
    title = "Active share of every parameter"
    shown = table(header, rows[:_SHOWN], title, kind="bars")
    rest = None
    if len(rows) > _SHOWN:
        count = len(rows) - _SHOWN
        rest = element(
            "details",
            element("summary", f"{count} more parameters"),
            table(header, rows[_SHOWN:], f"{title}, continued", kind="bars"),
        )
    return element(
        "figure", element("figcaption", title), shown, rest, class_="plot tabular", id=f"{key}-layers"
    )
