"""Records with one thing wrong: what a text editor, another version or an attacker would write."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    2**31,
    2**63 - 1,
    -(2**63),
    10**30,
    10**400,
    0.0,
    -0.5,
    0.5,
    1.0,
    1e-320,
    1e-12,
    1e-3,
    1e300,
    "",
    "inf",
    "nan",
    "auto",
    "0",
    "x" * 300,
    "\x00",
    "\ud800",
    "../../etc/passwd",
    "é\u202e",
    [],
    [[]],
    [None],
    ["a", "a"],
    {},
    {"a": {}},
)


def mutated(record: Any, random: Random) -> Any:
    """A copy of ``record`` in which one node is replaced, removed, doubled, or exchanged for another."""
    record = copy.deepcopy(record)
    places = list(_places(record))
    if not places:
        return random.choice(ODD)
    holder, key = random.choice(places)
    match random.randrange(6):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[random.choice(["", "x", "epsilon", str(key) + "s"])] = holder[key]
        case 1:
            holder.insert(key, copy.deepcopy(holder[key]))
        case 2:
            other, place = random.choice(places)
            holder[key] = copy.deepcopy(other[place])
        case 3 if _is_number(holder[key]):
            holder[key] = holder[key] * random.choice([-1, 0, 0.5, 2, 10**6, 1e-6, 1e200])
        case _:
            holder[key] = copy.deepcopy(random.choice(ODD))
    return record


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 10**30


def _places(record: Any) -> Any:
    """Every (container, key) in a record, outermost first."""
    keys = record if isinstance(record, dict) else range(len(record)) if isinstance(record, list) else ()
    for key in list(keys):
        yield record, key
        yield from _places(record[key])
