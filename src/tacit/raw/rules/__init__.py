"""One rule per layer type: the layer's forward pass, written with watched operations.

A rule is a function ``rule(module, layer, *args, **kwargs)`` that returns what ``module.forward(*args, **kwargs)``
would return, computed with ``layer.linear``, ``layer.convolution``, ``layer.embedding`` or ``layer.direct``.
To add one::

    from tacit.raw.rules import register

    @register(MyLayer)
    def my_layer(module, layer, x):
        return layer.linear(x, module.weight, module.bias)

A module without a rule is served by the ``torch.func`` fallback.
"""

from tacit.raw.rules import attention, layers, normalisation, recurrent
from tacit.raw.rules.registry import Rule, find, register

__all__ = [
    "Rule",
    "attention",
    "find",
    "layers",
    "normalisation",
    "recurrent",
    "register",
]
