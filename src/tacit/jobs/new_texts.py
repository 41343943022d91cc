"""New texts as the token ids that a model was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tacit.data.frames import table_of
from tacit.data.table_file import EXCEL_SUFFIXES, PARQUET_SUFFIXES, read_columns
from tacit.data.text import token_ids
from tacit.errors import FileError
from tacit.jobs.inputs import Inputs

_TABLES = (".csv", ".tsv", ".gz", *PARQUET_SUFFIXES, *EXCEL_SUFFIXES)


def read_texts(data: Any, inputs: Inputs, separator: str | None, encoding: str | None) -> Tensor:
    """Ids of new texts: by the tokenizer of the run, as bags of words, or by the fixed hash of words."""
    texts = _texts(data, inputs.text, separator, encoding)
    if inputs.bags is not None:
        return torch.from_numpy(inputs.bags.ids(texts))
    if inputs.tokenizer is None:
        assert inputs.vocabulary is not None
        return torch.from_numpy(token_ids(texts, inputs.vocabulary, inputs.shape[0]))
    from tacit.jobs.texts import LENGTH, ids_of
    from tacit.models.encoder import load_tokenizer

    return torch.from_numpy(ids_of(load_tokenizer(inputs.tokenizer), texts, inputs.length or LENGTH))


def is_table_of_texts(source: str, inputs: Inputs) -> bool:
    """Whether a file is a table, one of whose columns holds the texts to read."""
    return inputs.of_texts and inputs.text is not None and Path(source).suffix.lower() in _TABLES


def _texts(data: Any, column: str | None, separator: str | None, encoding: str | None) -> list[str]:
    if isinstance(data, str | Path):
        path = Path(data)
        if column is not None and path.suffix.lower() in _TABLES:
            return list(read_columns(path, separator=separator, encoding=encoding).column(column))
        try:
            lines = path.read_text(encoding=encoding or "utf-8-sig").splitlines()
        except (OSError, UnicodeError, LookupError) as error:
            raise FileError(f"{path} cannot be read as a text per line: {error}.") from error
        return lines
    if isinstance(data, Mapping) or hasattr(data, "columns"):
        table = table_of(data)
        return list(table.column(column if column is not None else next(iter(table.columns))))
    return [str(text) for text in data]
