"""Several runs side by side: a table, and their courses over each other."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tacit.plotting import measure_name
from tacit.report.markup import Content, Markup, element, grid, joined, note, section, table
from tacit.report.plot import STYLES, Plot, Series, draw, number, share
from tacit.report.reading import RunView
from tacit.report.sections.learning import HELD_OUT, course, measure_names
from tacit.report.sections.promise import badge, status_of


def runs_side_by_side(runs: Sequence[RunView], keys: Sequence[str], level: int) -> Markup:
    """What was promised, spent and reached by each run."""
    alike = len({tuple(run.measured) for run in runs}) == 1
    measures = [name for name in runs[0].measured if name != "loss"] if alike else []
    rows: list[list[Content]] = []
    for run, key in zip(runs, keys, strict=True):
        found = run.diagnosis
        spent = number(run.spending.epsilons[-1]) if run.spending is not None else "–"
        rows.append(
            [
                element("a", run.name, href=f"#{key}"),
                run.data or "–",
                run.plan.method,
                spent
                if math.isinf(run.plan.epsilon)
                else joined(spent, " ", element("span", f"of {number(run.plan.epsilon)}", class_="soft")),
                badge(status_of(run)),
                share(found.active / found.coordinates) if found is not None else "–",
                *([number(run.measured[name]) for name in measures] if alike else [_first(run)]),
            ]
        )
    header = ["Run", "Data", "Method", "ε spent", "Verification", "Active"]
    header += [measure_name(name) for name in measures] if alike else ["Held out"]
    groups = _groups(runs)
    return section(
        "runs",
        "The runs side by side",
        level,
        table(header, rows, "The runs on this page"),
        grid(_epsilons(runs), [_courses(group, i) for i, group in enumerate(groups, 1)]),
        note("Runs on different data cannot be compared by their figures.") if len(groups) > 1 else None,
        note(
            "Held-out figures are not covered by ε. Runs that use the same data add up: whoever sees all of "
            "them learns more than any one ε allows, and choosing among them by their figures is not covered "
            "either."
        ),
    )


def _first(run: RunView) -> str:
    """The figure that a run is compared by."""
    for name, value in run.measured.items():
        return f"{measure_name(name)} {number(value)}"
    return "–"


def _groups(runs: Sequence[RunView]) -> list[list[RunView]]:
    """Runs by their data, in the order of the page."""
    groups: dict[str | None, list[RunView]] = {}
    for run in runs:
        groups.setdefault(run.data, []).append(run)
    return list(groups.values())


def _epsilons(runs: Sequence[RunView]) -> Markup | None:
    series = [
        Series(run.name, run.spending.releases, run.spending.epsilons, style)
        for style, run in _styled(runs)
        if run.spending is not None and all(map(math.isfinite, run.spending.epsilons))
    ]
    if not series:
        return None
    told = "; ".join(f"{line.name} ends at {number(line.ys[-1])}" for line in series)
    return draw(
        Plot("Privacy spent by each run", f"{told}.", "charged releases", "ε", series), "runs-epsilon"
    )


def _courses(runs: Sequence[RunView], place: int) -> Markup | None:
    """The first measure that all of several runs on the same data have."""
    shared = [
        name for name in measure_names(runs[0].metrics) if all(name in measure_names(r.metrics) for r in runs)
    ]
    if len(runs) < 2 or not shared:
        return None
    name = shared[0]
    series = [Series(run.name, *course(run.metrics, HELD_OUT + name), style) for style, run in _styled(runs)]
    told = "; ".join(f"{line.name} ends at {number(line.ys[-1])}" for line in series)
    on = f" on {runs[0].data}" if runs[0].data else ""
    return draw(
        Plot(f"Held-out {measure_name(name)}{on}", f"{told}.", "step", measure_name(name), series),
        f"runs-measure-{place}",
    )


def _styled(runs: Sequence[RunView]) -> list[tuple[int, RunView]]:
    """A colour for each of the first runs; more lines than colours would not be told apart."""
    return list(enumerate(runs[:STYLES], 1))
