"""The mark on values that were computed from private data without noise."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, repr=False)
class Oracle:
    """A figure computed from raw gradients, outside every privacy guarantee, for analysis after the fact.

    It deliberately is no number: it cannot be added, compared, formatted as a float or serialised without
    writing ``not_private_value``, and whatever prints it prints the warning. Nothing in training accepts
    one.
    """

    name: str
    not_private_value: float

    def __str__(self) -> str:
        return f"{self.name} = {self.not_private_value:.6g} [NOT PRIVATE: computed from raw gradients]"

    __repr__ = __str__

    def __bool__(self) -> bool:
        raise TypeError(f"{self} must not decide anything.")
