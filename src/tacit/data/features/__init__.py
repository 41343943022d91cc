"""Fixed image features: transforms of one image at a time that no data has influenced.

They take the place of public pre-training: a linear model on them trains well under privacy, and nothing
about anyone went into them.
"""

from __future__ import annotations

from tacit.data.features.kept import CACHE_VARIABLE, cache_dir
from tacit.data.features.registry import (
    FEATURES,
    Features,
    before_features,
    check_signature,
    computed,
    features,
    on_features,
    signature,
)
from tacit.data.features.silhouettes import figures_on_black
from tacit.data.features.synthetic import dead_leaves

__all__ = [
    "CACHE_VARIABLE",
    "FEATURES",
    "Features",
    "before_features",
    "cache_dir",
    "check_signature",
    "computed",
    "dead_leaves",
    "features",
    "figures_on_black",
    "on_features",
    "signature",
]
