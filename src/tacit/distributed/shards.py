"""A model that ``fully_shard`` has divided among processes: what this one holds, and the whole for a pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from tacit.distributed.ranks import Ranks
from tacit.errors import ModelError


class Shards:
    """The shards of a model, seen from one rank.

    Every rank holds consecutive rows of every parameter. ``rows`` says, for each parameter, where the rows of each rank
    begin, and how many there are. ``held`` is a module with parameters of the same names whose values are the rows of
    this rank: to change them is to change the model. While the model is ``lent``, its layers have whole parameters.
    """

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        self._ranks, self._lent = ranks, False
        self._units = [module for module in model.modules() if isinstance(module, FSDPModule)]
        self._gather_up()
        named = dict(model.named_parameters())
        for name, parameter in named.items():
            _refuse_otherwise_divided(name, parameter, ranks)
        if not self._units:
            raise _otherwise_divided(next(iter(named)))
        for unit in self._units:
            if unit._get_fsdp_state()._mp_policy.param_dtype is not None:
                raise ModelError(
                    "The model was sharded with a MixedPrecisionPolicy, whose rounding the bound on an example's part "
                    "does not cover; call fully_shard without it, and give autocast=torch.bfloat16 for speed."
                )
        self._shards = {name: p for name, p in named.items() if isinstance(p, DTensor)}
        self.rows = {name: _bounds(p.shape[0], ranks.size) for name, p in self._shards.items()}
        self._own = {name: p.to_local().detach() for name, p in self._shards.items()}
        self.held = _module_of(self._own, self._shards)
        slots = {id(p): name for name, p in self._shards.items()}
        self._slots = [
            (module, slot, slots[id(p)])
            for module in model.modules()
            for slot, p in module._parameters.items()
            if p is not None and id(p) in slots
        ]
        # The same objects every time: what is known about layers is known by them.
        self._whole = {
            name: nn.Parameter(own.new_zeros(()).expand(self._shards[name].shape), own.requires_grad)
            for name, own in self.held.named_parameters()
        }

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Within this context, which all ranks enter together, the layers have whole and ordinary parameters."""
        if self._lent:
            yield
            return
        self._gather_up()
        blank = {name: whole.data for name, whole in self._whole.items()}
        with ExitStack() as hooks:
            for unit in self._units:
                hooks.enter_context(_without_hooks(unit))
            try:
                self._lent = True
                for name, values in self._ranks.whole(self._own, self.rows):
                    self._whole[name].data = values
                    self._whole[name].requires_grad_(self._shards[name].requires_grad)
                for module, slot, name in self._slots:
                    module._parameters[slot] = self._whole[name]
                yield
            finally:
                self._lent = False
                for module, slot, name in self._slots:
                    module._parameters[slot] = self._shards[name]
                for name, whole in self._whole.items():
                    whole.data = blank[name]

    def as_shard(self, name: str, own: Tensor) -> DTensor:
        """This rank's rows of something that is divided like a parameter, for ``torch.distributed.checkpoint``."""
        shard = self._shards[name]
        shape = torch.Size((shard.shape[0], *own.shape[1:]))
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(
            own, shard.device_mesh, shard.placements, run_check=False, shape=shape, stride=stride
        )

    def _gather_up(self) -> None:
        """Back to shards, where a pass of the user's own has left whole parameters behind."""
        for unit in self._units:
            unit.reshard()


def _bounds(rows: int, ranks: int) -> list[int]:
    """Where each rank's rows begin, and the end: as ``torch.chunk`` deals them."""
    each = -(-rows // ranks)
    return [min(rows, place * each) for place in range(ranks + 1)]


def _refuse_otherwise_divided(name: str, parameter: Tensor, ranks: Ranks) -> None:
    if not isinstance(parameter, DTensor):
        if parameter.requires_grad:
            raise ModelError(
                f"The parameter {name!r} is trained and not sharded, while others are; call fully_shard on the whole "
                "model last, or freeze it."
            )
        return
    if parameter.placements != (Shard(0),):
        raise _otherwise_divided(name)
    if parameter.device_mesh.mesh.flatten().tolist() != list(range(ranks.size)):
        raise ModelError(
            f"The model is sharded over {parameter.device_mesh.size()} processes and trained by {ranks.size}; give "
            "ranks=tacit.join(), and fully_shard a mesh of all processes."
        )


def _otherwise_divided(name: str) -> ModelError:
    return ModelError(
        f"The parameter {name!r} is divided in another way than by fully_shard over all processes (tensor parallel or "
        "hybrid sharding), which is not supported; use fully_shard with a mesh of one dimension, or give every process "
        "the whole model."
    )


@contextmanager
def _without_hooks(unit: FSDPModule) -> Iterator[None]:
    """Within this context nothing gathers and divides the parameters of a unit around its passes."""
    state, module = unit._get_fsdp_state(), cast(nn.Module, unit)
    before = [(hooks, dict(hooks)) for hooks in (module._forward_pre_hooks, module._forward_hooks)]
    try:
        for hooks, own in before:
            for number, hook in own.items():
                if getattr(hook, "__self__", None) is state:
                    del hooks[number]
        yield
    finally:
        for hooks, own in before:  # in their order
            hooks.clear()
            hooks.update(own)


def _module_of(tensors: Mapping[str, Tensor], like: Mapping[str, nn.Parameter]) -> nn.Module:
    """A module that has these tensors as its parameters."""
    root = nn.Module()
    for name, tensor in tensors.items():
        *path, last = name.split(".")
        module = root
        for part in path:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
        module.register_parameter(last, nn.Parameter(tensor, like[name].requires_grad))
    return root
