"""Whether the vector of an image tells of other images."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor


def assert_tells_of_no_company(transform: Callable[[Tensor], Iterator[Tensor]], pictures: Tensor) -> None:
    """Without the first picture, or with another one in its place, every bit of the other vectors stays."""

    def vectors(images: Tensor) -> Tensor:
        return torch.cat(list(transform(images)))

    whole = vectors(pictures)
    assert torch.equal(vectors(pictures[1:]), whole[1:])
    other = pictures.clone()
    other[0] = 0
    assert torch.equal(vectors(other)[1:], whole[1:])
