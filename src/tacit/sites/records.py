"""The records of a site, encoded, in a file that only its vault reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from tacit.data.records import Records
from tacit.errors import FileError
from tacit.files import write_bytes

RECORDS_FILE = "records.safetensors"


def write_records(path: Path, records: Records) -> None:
    """Keep records in a file that only its owner can read."""
    tensors = {"x": records.x.contiguous(), "y": records.y.contiguous()}
    if records.units is not None:
        tensors["units"] = torch.from_numpy(np.ascontiguousarray(records.units.astype(np.int64)))
    write_bytes(path, save(tensors), mode=0o600)


def load_records(path: Path) -> Records:
    """Read what ``write_records`` kept."""
    try:
        found: Mapping[str, Tensor] = load_file(path)
        x, y = found["x"], found["y"]
        units = found.get("units")
        if x.dim() != 2 or y.dim() not in (1, 2) or len(x) != len(y):
            raise ValueError("its rows and answers do not fit each other")
        if units is not None and (units.shape != y.shape[:1] or units.dtype != torch.int64):
            raise ValueError("its units do not fit its rows")
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise FileError(f"The records {path} cannot be read: {error}.") from error
    return Records(x, y, None if units is None else units.numpy())
