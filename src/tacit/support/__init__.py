"""The active coordinates of a model, and how they are chosen from released values."""

from tacit.support.block import Block, Kind, Weights
from tacit.support.support import Support

__all__ = ["Block", "Kind", "Support", "Weights"]
