"""Models that somebody has wrapped or sharded for several processes: refused by name, before anything is spent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tacit.errors import ModelError
from training.small import network, plan, trainer


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_a_sharded_model_is_refused_by_name() -> None:
    model = network()
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(ModelError, match=r"'0\.weight' is sharded over processes \(fully_shard"):
        trainer(plan("dp-sgd"), model)


@pytest.mark.usefixtures("group")
def test_a_model_in_a_wrapper_that_averages_gradients_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"wrapped in DistributedDataParallel, which adds gradients up"):
        trainer(plan("dp-sgd"), DistributedDataParallel(network()))
    with pytest.raises(ModelError, match="wrapped in DataParallel"):
        trainer(plan("dp-sgd"), nn.DataParallel(network()))
