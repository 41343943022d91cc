"""What one parameter's per-example gradients are made of, and how to clip and sum them without forming them.

A *use* holds what the backward pass left behind for one parameter (layer inputs and output gradients, say). It
answers two questions exactly: the squared norm of each example's masked gradient, and the weighted sum of the masked
gradients over the examples.
"""

from tacit.raw.gradients.base import Direct, PerExampleGradient, Several
from tacit.raw.gradients.convolution import Convolution
from tacit.raw.gradients.depthwise import Depthwise
from tacit.raw.gradients.embedding import Embedding
from tacit.raw.gradients.linear import Linear

__all__ = ["Convolution", "Depthwise", "Direct", "Embedding", "Linear", "PerExampleGradient", "Several"]
