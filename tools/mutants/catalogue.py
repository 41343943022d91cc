"""All mutants."""

from __future__ import annotations

from tools.mutants.accounting import ACCOUNTING_MUTANTS
from tools.mutants.ahead import AHEAD_MUTANTS
from tools.mutants.budgets import BUDGET_MUTANTS
from tools.mutants.central import (
    CLIPPING_MUTANTS,
    LEDGER_MUTANTS,
    NOISE_MUTANTS,
    SAMPLING_MUTANTS,
    TRAINING_MUTANTS,
)
from tools.mutants.centre import CENTRE_MUTANTS
from tools.mutants.columns import COLUMN_MUTANTS
from tools.mutants.company import COMPANY_MUTANTS
from tools.mutants.compiled import COMPILED_MUTANTS
from tools.mutants.estimators import ESTIMATOR_MUTANTS
from tools.mutants.folds import FOLD_MUTANTS
from tools.mutants.following import FOLLOWING_MUTANTS
from tools.mutants.local import LOCAL_MUTANTS
from tools.mutants.loops import LOOP_MUTANTS
from tools.mutants.mutant import Mutant
from tools.mutants.numerics import NUMERICS_MUTANTS
from tools.mutants.rounding import ROUNDING_MUTANTS
from tools.mutants.shards import SHARD_MUTANTS
from tools.mutants.sites import SITE_MUTANTS
from tools.mutants.sparse_rows import SPARSE_MUTANTS
from tools.mutants.tables import TABLE_MUTANTS
from tools.mutants.texts import TEXT_MUTANTS
from tools.mutants.traces import TRACE_MUTANTS
from tools.mutants.tuning import TUNING_MUTANTS
from tools.mutants.units import UNIT_MUTANTS
from tools.mutants.votes import VOTE_MUTANTS

MUTANTS: tuple[Mutant, ...] = (
    *NOISE_MUTANTS,
    *CLIPPING_MUTANTS,
    *NUMERICS_MUTANTS,
    *FOLLOWING_MUTANTS,
    *ROUNDING_MUTANTS,
    *COMPANY_MUTANTS,
    *COMPILED_MUTANTS,
    *LOOP_MUTANTS,
    *FOLD_MUTANTS,
    *SAMPLING_MUTANTS,
    *LEDGER_MUTANTS,
    *TRAINING_MUTANTS,
    *ACCOUNTING_MUTANTS,
    *LOCAL_MUTANTS,
    *SITE_MUTANTS,
    *SHARD_MUTANTS,
    *TRACE_MUTANTS,
    *COLUMN_MUTANTS,
    *BUDGET_MUTANTS,
    *UNIT_MUTANTS,
    *ESTIMATOR_MUTANTS,
    *TUNING_MUTANTS,
    *CENTRE_MUTANTS,
    *TABLE_MUTANTS,
    *TEXT_MUTANTS,
    *SPARSE_MUTANTS,
    *VOTE_MUTANTS,
    *AHEAD_MUTANTS,
)
