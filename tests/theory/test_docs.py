from __future__ import annotations

import re
from itertools import zip_longest
from pathlib import Path

from tacit_papers.theory.check import report

DOC = Path(__file__).parents[2] / "docs" / "concepts" / "theory.md"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


def _close(written: str, printed: str) -> bool:
    """Equal to 5 % or two units of the last written place: seeds are fixed, rounding varies by machine."""
    mantissa, _, exponent = written.partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    return abs(float(written) - float(printed)) <= max(2.001 * unit, 0.05 * abs(float(written)))


def test_every_figure_in_the_page_is_what_the_check_prints() -> None:
    blocks = re.findall(r"```text\n(.*?)\n```", DOC.read_text(encoding="utf-8"), flags=re.DOTALL)
    written = sorted(blocks)
    printed = sorted("\n".join(report()).strip().split("\n\n"))
    for page, output in zip_longest(written, printed, fillvalue=""):
        assert NUMBER.sub("#", page) == NUMBER.sub("#", output)
        for w, p in zip(NUMBER.findall(page), NUMBER.findall(output), strict=True):
            assert _close(w, p), (w, p, page)
