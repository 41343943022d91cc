"""The methods by name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType

from tacit.errors import ArgumentError
from tacit.methods.dp_sgd import dp_sgd
from tacit.methods.fixed import magnitude_rows, only, random_rows
from tacit.methods.on_rand import on_rand
from tacit.methods.on_topk import on_topk
from tacit.methods.rs import rs
from tacit.methods.sparta import sparta
from tacit.methods.tp_rand import tp_rand
from tacit.methods.tp_topk import tp_topk
from tacit.plan.phase import Draft
from tacit.plan.schedule import Schedule

Method = Callable[..., tuple[Draft, ...]]

METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "dp-sgd": dp_sgd,
        "tp-topk": tp_topk,
        "tp-rand": tp_rand,
        "on-rand": on_rand,
        "on-topk": on_topk,
        "rs": rs,
        "sparta": sparta,
        "random-rows": random_rows,
        "magnitude-rows": magnitude_rows,
        "only": only,
    }
)


def draft_phases(name: str, schedule: Schedule, options: Mapping[str, object]) -> tuple[Draft, ...]:
    """The phases of the method ``name`` before calibration.

    Unknown methods, options the method does not have and missing ones are refused: nothing is swallowed.
    """
    if name not in METHODS:
        close = difflib.get_close_matches(str(name).lower().replace("_", "-"), METHODS, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        raise ArgumentError(f"Unknown method {name!r}: choose one of {', '.join(METHODS)}{hint}")
    method = METHODS[name]
    parameters = {
        key: value for key, value in inspect.signature(method).parameters.items() if key != "schedule"
    }
    for option in options:
        if option not in parameters:
            known = f"it takes {', '.join(parameters)}" if parameters else "it takes no options"
            raise ArgumentError(f"{name} has no option {option!r}; {known}.")
    for option, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and option not in options:
            raise ArgumentError(f"{name} needs {option}.")
    return method(schedule, **options)
