"""What one parameter's per-example gradients are made of, and how to clip and sum them without forming them.

A *use* holds what the backward pass left behind for one parameter (layer inputs and output gradients, say). It
answers two questions exactly: the squared norm of each example's masked gradient, and the weighted sum of the masked
gradients over the examples.
"""

from tacit.raw.uses.base import Direct, Several, Use
from tacit.raw.uses.convolution import Convolution
from tacit.raw.uses.depthwise import Depthwise
from tacit.raw.uses.embedding import Embedding
from tacit.raw.uses.linear import Linear

__all__ = ["Convolution", "Depthwise", "Direct", "Embedding", "Linear", "Several", "Use"]
