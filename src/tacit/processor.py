"""What the system says of the processor: who made it, and what it can do."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def _described() -> dict[str, str]:
    """The first processor's lines of /proc/cpuinfo; none where there is no such file."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def vendor() -> str:
    """Who made the processor, as "GenuineIntel"; empty where the system does not say so."""
    return _described().get("vendor_id", "")


def can(*features: str) -> bool:
    """Whether the processor has all of these features, by the names that Linux uses."""
    return set(features) <= set(_described().get("flags", "").split())
