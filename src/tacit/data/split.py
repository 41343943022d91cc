"""Which rows are held out: a public rule that looks at one row at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tacit.errors import check_share


def held_out_mask(keys: Iterable[str], share: float) -> NDArray[np.bool_]:
    """Mark each key as held out with a probability of ``share`` over keys.

    The mark is a fixed function of the key: no row influences on which side another one falls (a split by
    position or by a shuffled index would move every row behind an added one), and equal keys fall together.
    """
    check_share("held_out", share, one_allowed=False)
    limit = int(share * 2**64)
    sides = {}
    marks = []
    for key in keys:
        if key not in sides:
            digest = hashlib.blake2b(
                key.encode("utf-8", "surrogatepass"), digest_size=8, person=b"tacit-split"
            )
            sides[key] = int.from_bytes(digest.digest(), "big") < limit
        marks.append(sides[key])
    return np.array(marks, dtype=np.bool_)
