"""Plans: phases, calibration and what-if, on public numbers only."""

from __future__ import annotations

import sys
import warnings
from types import ModuleType
from typing import Any

from tacit.plan.accountants import ACCOUNTANTS, RELATION, Spend, epsilon_of, merge
from tacit.plan.calibrate import make_plan
from tacit.plan.methods import (
    DPSGD,
    METHODS,
    RS,
    AdaFEST,
    Centred,
    CountedRows,
    MagnitudeRows,
    Method,
    Only,
    OnRand,
    OnTopK,
    OwnLoop,
    RandomRows,
    Sparta,
    TPRand,
    TPTopK,
)
from tacit.plan.phase import Draft, Phase, Schedule
from tacit.plan.plan import (
    Difference,
    NoiseEnergy,
    Plan,
    compare,
    load_plan,
    plan_digest,
    plan_from_record,
    plan_to_record,
    save_plan,
)
from tacit.plan.remaining import Paid, steps_left
from tacit.plan.sources import All, Named, Random, Soft, SupportSource, TopK, TopRows, active_count

__all__ = [
    "ACCOUNTANTS",
    "DPSGD",
    "METHODS",
    "RELATION",
    "RS",
    "AdaFEST",
    "All",
    "Centred",
    "CountedRows",
    "Difference",
    "Draft",
    "MagnitudeRows",
    "Method",
    "Named",
    "NoiseEnergy",
    "OnRand",
    "OnTopK",
    "Only",
    "OwnLoop",
    "Paid",
    "Phase",
    "Plan",
    "Random",
    "RandomRows",
    "Schedule",
    "Soft",
    "Sparta",
    "Spend",
    "SupportSource",
    "TPRand",
    "TPTopK",
    "TopK",
    "TopRows",
    "active_count",
    "compare",
    "epsilon_of",
    "load_plan",
    "make_plan",
    "merge",
    "plan_digest",
    "plan_from_record",
    "plan_to_record",
    "save_plan",
    "steps_left",
]


class _CallablePackage(ModuleType):
    """Version 0.1 had a function of this name: ``tacit.plan(...)`` still makes a plan."""

    def __call__(self, *args: Any, **options: Any) -> Plan:
        warnings.warn(
            "tacit.plan(...) is now tacit.make_plan(...), and will go in version 0.3.",
            DeprecationWarning,
            stacklevel=2,
        )
        return make_plan(*args, **options)


sys.modules[__name__].__class__ = _CallablePackage
