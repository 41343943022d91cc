"""What the paper claims of its methods, and in how many recorded cells each claim holds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tacit_papers.sparsity_map.mapping import Difference, difference
from tacit_papers.tp_topk import figure1, network_sweeps, networks, table2, table3, table4, table5
from tacit_papers.tp_topk.published import best

HOLDS, OPPOSITE, NOT_SHOWN = "Holds", "The opposite holds", "Not shown"
ALL, MOST, FEW = "holds", "in most cells", "not confirmed"
Row = Mapping[str, Any]
Rows = Sequence[Row]

SETTINGS = ("a linear layer on our features", "a network on scattering maps", "a network on pixels")


def verdict(found: Difference) -> str:
    """What a difference with its interval says of the claim that it is above zero."""
    return HOLDS if found.low > 0 else OPPOSITE if found.high < 0 else NOT_SHOWN


def methods_difference(row: Row, one: str, other: str) -> Difference:
    """``one`` − ``other`` in a row of Table 2, in points."""
    return difference(*(row["methods"][method]["accuracy"]["values"] for method in (one, other)))


def cells(rows: Rows) -> Iterator[tuple[tuple[str, float], list[Row]]]:
    """The rows of every data set at every ε. Those without noise have no ε and belong to no cell."""
    private = [row for row in rows if row["epsilon"] is not None]
    for place in dict.fromkeys((row["dataset"], row["epsilon"]) for row in private):
        yield place, [row for row in private if (row["dataset"], row["epsilon"]) == place]


def gains_fall(own: Rows) -> bool:
    """Whether the gain over a random support is shown at the smallest ratio and falls as the ratio grows."""
    ordered = sorted(own, key=lambda row: float(row["active_ratio"]))
    falls = all(a["gain"]["mean"] > b["gain"]["mean"] for a, b in pairwise(ordered))
    values = (ordered[0][method]["accuracy"]["values"] for method in ("tp-topk", "tp-rand"))
    return falls and verdict(difference(*values)) == HOLDS


def best_split(own: Rows) -> Row:
    """The row of Table 4 with the highest mean."""
    return max(own, key=lambda row: float(row["accuracy"]["mean"]))


def at_three_tenths(row: Row) -> bool:
    """Whether a warm-up has 0.3 of the steps and 0.3 of ε."""
    return (row["share_of_steps"], row["share_of_epsilon"]) == (0.3, 0.3)


def by_method(own: Rows) -> dict[str, Row]:
    """The rows of one cell of Table 5."""
    return {row["method"]: row for row in own}


def collapsed(own: Rows) -> bool:
    """Whether dense training answers one class only."""
    dense = by_method(own)["dp-sgd"]
    return min(float(dense[name]["mean"]) for name in ("sensitivity", "specificity")) < 0.1


def most_in_a_tenth(row: Row) -> bool:
    """Whether the best tenth of the coordinates holds more than half of the energy."""
    return float(row["best"][row["ratios"].index(0.1)]) > 0.5


def _beats(one: str, other: str) -> Callable[[Rows], list[str]]:
    return lambda rows: [verdict(methods_difference(row, one, other)) for row in rows]


def _by_cell(holds: Callable[[Rows], bool]) -> Callable[[Rows], list[str]]:
    return lambda rows: [HOLDS if holds(own) else NOT_SHOWN for _, own in cells(rows)]


def _sparse_beats_dense_in_auc(rows: Rows) -> list[str]:
    found = [by_method(own) for _, own in cells(rows)]
    return [
        verdict(difference(*(own[method]["auc"]["values"] for method in ("tp-topk", "dp-sgd"))))
        for own in found
    ]


@dataclass(frozen=True)
class Claim:
    """A claim, the tables that test it in the three settings, and what their cells say."""

    about: str
    tables: tuple[str, ...]
    verdicts: Callable[[Rows], list[str]]


_TABLE2 = (table2.NAME, networks.SCATTERNET_CNN.NAME, networks.CNN.NAME)
_TABLE3 = (table3.NAME, *(sweep.NAME for sweep in network_sweeps.RATIO_SWEEPS))
_TABLE4 = (table4.NAME, *(sweep.NAME for sweep in network_sweeps.SPLIT_SWEEPS))
CLAIMS = (
    Claim("a learned support beats a random one (Table 2)", _TABLE2, _beats("tp-topk", "tp-rand")),
    Claim("sparse training beats dense (Table 2)", _TABLE2, _beats("tp-topk", "dp-sgd")),
    Claim(
        "a learned support beats a random one, both chosen anew every epoch (Table 2)",
        _TABLE2[:1],
        _beats("on-topk", "on-rand"),
    ),
    Claim("learning gains more, the smaller the active ratio (Table 3)", _TABLE3, _by_cell(gains_fall)),
    Claim(
        "a warm-up with 0.3 of steps and of ε is best (Table 4)",
        _TABLE4,
        _by_cell(lambda own: at_three_tenths(best_split(own))),
    ),
    Claim(
        "dense training collapses to one class on medical data (Table 5)",
        (table5.NAME,),
        _by_cell(collapsed),
    ),
    Claim(
        "sparse training beats dense on medical data, in AUC (Table 5)",
        (table5.NAME,),
        _sparse_beats_dense_in_auc,
    ),
    Claim(
        "a tenth of the coordinates holds most of a gradient's energy (Figure 1)",
        (figure1.NAME,),
        lambda rows: [HOLDS if most_in_a_tenth(row) else NOT_SHOWN for row in rows],
    ),
)


def in_short(records: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Which claims hold and where, as a table, and what stands behind it; ``records`` by name."""
    lines, found = [], {}
    for claim in CLAIMS:
        own = [claim.verdicts(records[name]["rows"]) if name in records else [] for name in claim.tables]
        every = [each for verdicts in own for each in verdicts]
        if every:
            counts = [*map(_count, own), *["–"] * (len(SETTINGS) - len(own))]
            found[claim.about] = every
            lines.append(f"| {claim.about} | {' | '.join(counts)} | **{_overall(every)}** |")
    return [
        _summary(found),
        "",
        "In how many cells (a data set at an ε) a claim holds here, and in how many its opposite does:",
        "",
        f"| claim | {' | '.join(SETTINGS)} | in all |",
        "|---|---|---|---|---|",
        *lines,
        "",
        *_limits(records),
    ]


def _summary(found: Mapping[str, Sequence[str]]) -> str:
    by: dict[str, list[str]] = {said: [] for said in (ALL, MOST, FEW)}
    for about, verdicts in found.items():
        by[_overall(verdicts)].append(about)
    said = [f"{len(found)} claims of the paper were tested."]
    for kind, where in ((ALL, "every cell"), (MOST, "most cells")):
        if own := by[kind]:
            said.append(f"{len(own)} {'holds' if len(own) == 1 else 'hold'} in {where}: {'; '.join(own)}.")
    if own := by[FEW]:
        most = max(found[about].count(HOLDS) for about in own)
        are = "is" if len(own) == 1 else "are"
        said.append(f"{len(own)} {are} not confirmed: no such claim holds in more than {most} of its cells.")
    return " ".join(said)


def _count(found: Sequence[str]) -> str:
    opposite = found.count(OPPOSITE)
    return (
        f"{found.count(HOLDS)} of {len(found)}" + (f", opposite {opposite}" if opposite else "")
        if found
        else "–"
    )


def _overall(found: Sequence[str]) -> str:
    holds = found.count(HOLDS)
    return ALL if holds == len(found) else MOST if 2 * holds > len(found) else FEW


def _limits(records: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """How small a gain could be seen, and how far the networks are from the paper's."""
    rows = [row for name in _TABLE2 if name in records for row in records[name]["rows"]]
    if not rows:
        return []
    found = [methods_difference(row, "tp-topk", "dp-sgd") for row in rows]
    half = statistics.median((each.high - each.low) / 2 for each in found)
    below = sum(each.mean < 0 for each in found)
    lines = [
        "A comparison of methods holds if the 95 % interval of its difference over seeds lies above zero. For sparse "
        f"beside dense its half width is {half:.1f} points in the median cell of Table 2, so a smaller gain may be "
        f"missed; but the mean of TP-TopK is below that of DP-SGD in {below} of {len(found)} cells."
    ]
    in_networks = [row for name in _TABLE2[1:] if name in records for row in records[name]["rows"]]
    compared = [(row, best(row["dataset"], row["epsilon"])) for row in in_networks]
    behind = sum(published is not None and _best(row) < published for row, published in compared)
    if behind:
        lines.append(
            f"The best of our methods in a network is below the paper's best in {behind} of {len(in_networks)} cells: "
            "our networks are small and train for few epochs, since they do so on a CPU. So the columns of networks "
            "compare methods, not levels, and claims may hold in larger networks that were not run."
        )
    return [" ".join(lines)]


def _best(row: Row) -> float:
    return max(100 * float(entry["accuracy"]["mean"]) for entry in row["methods"].values())
