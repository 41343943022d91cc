"""A trained model at work: new data in, predictions out, without the training data."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.data import Schema, read_schema
from tacit.data.encode import encode
from tacit.data.frames import table_of
from tacit.data.table_file import read_columns
from tacit.data.tolerance import ColumnReport, tolerate
from tacit.errors import ArgumentError, FileError
from tacit.files import read_json
from tacit.jobs.held_out import threshold_of
from tacit.jobs.inputs import Inputs, inputs_of_table, read_inputs
from tacit.jobs.settings import from_record
from tacit.runs.bundle import unpacked
from tacit.runs.certificate_file import check_certified
from tacit.runs.layout import (
    ADAPTER_DIRECTORY,
    EXPERIMENT_FILE,
    INPUTS_FILE,
    MODEL_FILE,
    SCHEMA_FILE,
)
from tacit.tensors import read_tensors
from tacit.training.evaluation import predict as outputs_for

CHUNK = 4096


@dataclass(frozen=True)
class Predictions:
    """One answer per row, in the order of the rows.

    kind:          binary, multiclass or regression.
    classes:       the classes, in the order of the columns of ``probabilities``; empty for regression.
    predicted:     the class of each row, or for regression the value in the target's own unit; empty text or not a
                   number for a row that could not be read.
    scores:        what the network answers: one logit per row (above 0 the second class is the likelier one), one logit
                   per class, or the value.
    probabilities: rows x classes; nothing for regression.
    rows:          a name for each row, where it has one: the file of an image.
    reports:       what was odd about each column that the model uses.
    ignored:       columns that the model does not use.
    """

    kind: str
    classes: tuple[str, ...]
    predicted: NDArray[Any]
    scores: NDArray[np.float64]
    probabilities: NDArray[np.float64] | None
    rows: tuple[str, ...] = ()
    reports: tuple[ColumnReport, ...] = ()
    ignored: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.predicted)

    @property
    def remarks(self) -> list[str]:
        """Sentences on the columns that hold something the model does not know."""
        return [report.sentence for report in self.reports if report.remarkable]

    def columns(self) -> dict[str, Sequence[Any]]:
        """The predictions as named columns: prediction, score, and the probability of each class."""
        table: dict[str, Sequence[Any]] = {"file": self.rows} if self.rows else {}
        table["prediction"] = self.predicted.tolist()
        if self.probabilities is None:
            return table
        if self.kind == "binary":
            table["score"] = self.scores.tolist()
        for place, name in enumerate(self.classes):
            table[f"probability of {name}"] = self.probabilities[:, place].tolist()
        return table

    def to_pandas(self) -> Any:
        """The predictions as a pandas data frame."""
        try:
            import pandas
        except ImportError as error:
            raise ArgumentError("A data frame needs pandas: run pip install pandas.") from error
        return pandas.DataFrame(self.columns())


class Predictor:
    """A trained model, and how new data becomes what it takes.

    Made by ``tacit.load``.
    """

    def __init__(self, inputs: Inputs, schema: Schema | None, model: nn.Module) -> None:
        self.inputs, self.schema = inputs, schema
        # Tables are cheap, and in double precision every way to compute an answer gives the same one.
        self.precision = torch.float32 if schema is None else torch.float64
        self.model = model.to(self.precision).eval()

    @property
    def kind(self) -> str:
        """binary, multiclass or regression."""
        return self.inputs.kind

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; empty for regression."""
        return self.inputs.classes

    @property
    def threshold(self) -> float:
        """The logit above which a row counts as the second of two classes."""
        return threshold_of(self.inputs.prevalence)

    @property
    def range(self) -> tuple[float, float]:
        """What the network's answers -1 and 1 mean in the unit of a regression's target."""
        if self.schema is None or self.kind != "regression":
            return -1.0, 1.0
        return self.schema.target.range

    def predict(self, data: Any, *, separator: str | None = None, encoding: str | None = None) -> Predictions:
        """Answer for new data. The column that is predicted need not be there.

        Args:
            data: For a table, a pandas data frame, a dictionary of columns, or a CSV, Parquet or Excel file. For
                images, a folder or a file. For texts, a list of texts, a file with one text per line, or a table with
                the column of texts. A tensor is taken for what the network takes.
            separator: The separator of a CSV file, where the first line does not show it.
            encoding: The encoding of a CSV file, UTF-8 unless given.

        Returns:
            One prediction per row. Values that the model does not know are counted in ``reports``; they stop nothing.
        """
        x, about = self._read(data, separator, encoding)
        return self._answers(x, **about)

    def encode(self, data: Any, *, separator: str | None = None, encoding: str | None = None) -> Tensor:
        """What the network takes for new data: one row per row, as an exported graph wants it."""
        x = self._read(data, separator, encoding)[0]
        return x if x.is_floating_point() else x.long()

    def _read(self, data: Any, separator: str | None, encoding: str | None) -> tuple[Tensor, dict[str, Any]]:
        inputs = self.inputs
        if inputs.model.name == "sparse-linear":
            raise ArgumentError(
                f"The model of {inputs.name!r} reads rows of a sparse matrix, which no file holds; ask the estimator "
                "that was fitted, or load the weights in Python and give it what tacit.data.SparseRows makes of rows."
            )
        if isinstance(data, np.ndarray) and (self.schema is None or data.ndim > 1):
            data = torch.from_numpy(np.ascontiguousarray(data))
        if isinstance(data, Tensor):
            return self._checked(data), {}
        if inputs.of_texts:
            from tacit.jobs.new_texts import read_texts  # transformers takes seconds to load

            return read_texts(data, inputs, separator, encoding), {}
        if self.schema is not None:
            return self._read_table(data, separator, encoding)
        if inputs.image is not None:
            from tacit.jobs.new_images import read_pictures

            return read_pictures(data, inputs.image, inputs.features, inputs.signature)
        raise ArgumentError(
            f"How {inputs.name!r} was read is not known; give a tensor of inputs, one row per example."
        )

    def _read_table(
        self, data: Any, separator: str | None, encoding: str | None
    ) -> tuple[Tensor, dict[str, Any]]:
        assert self.schema is not None
        if isinstance(data, str | Path):
            table = read_columns(data, separator=separator, encoding=encoding)
        else:
            table = table_of(data)
        found = tolerate(table, self.schema)
        used = [report for report in found.reports if not report.absent]
        if not used:
            names = [report.name for report in found.reports]
            raise FileError(
                f"{table.path} has none of the columns that the model uses, such as {', '.join(map(repr, names[:4]))}; "
                "is it another table, or without its header line?"
            )
        x = torch.from_numpy(encode(found.table, self.schema).x)
        return x, {"reports": found.reports, "ignored": found.ignored}

    def _checked(self, x: Tensor) -> Tensor:
        if self.inputs.shape and tuple(x.shape[1:]) != self.inputs.shape:
            raise ArgumentError(
                f"The model takes inputs of shape {self.inputs.shape} per row, got {tuple(x.shape[1:])}."
            )
        vocabulary = self.inputs.vocabulary
        if vocabulary is None or x.is_floating_point():
            return x if x.dtype == torch.int64 else x.float()
        if x.numel() and not 0 <= int(x.min()) <= int(x.max()) < vocabulary:
            raise ArgumentError(
                f"The ids of this model's words are 0 to {vocabulary - 1:,}; some given here are not."
            )
        return x.long()

    def _answers(
        self,
        x: Tensor,
        *,
        rows: tuple[str, ...] = (),
        unread: Sequence[int] = (),
        reports: tuple[ColumnReport, ...] = (),
        ignored: tuple[str, ...] = (),
    ) -> Predictions:
        with torch.random.fork_rng(devices=[]):
            taken = x.to(self.precision) if x.is_floating_point() else x
            outputs = outputs_for(self.model, taken, chunk_size=CHUNK) if len(x) else self._no_outputs()
        plain = outputs.detach().double()
        scores = (plain[:, None] if plain.dim() == 1 else plain).numpy()
        if self.kind == "regression":
            scores = scores[:, 0]
            low, high = self.range
            scores = low + (scores + 1) / 2 * (high - low)
            scores[list(unread)] = np.nan
            return Predictions(self.kind, (), scores, scores, None, rows, reports, ignored)
        if scores.shape[1] == 1:
            scores = scores[:, 0]
            positive = _sigmoid(scores)
            probabilities = np.stack([_sigmoid(-scores), positive], axis=1)
            place = (scores > self.threshold).astype(np.int64)
        else:
            shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
            probabilities = shifted / shifted.sum(axis=1, keepdims=True)
            place = scores.argmax(axis=1)
        classes = self.classes or tuple(map(str, range(probabilities.shape[1])))
        predicted = np.array(classes, dtype=object)[place]
        for bad in unread:
            predicted[bad], scores[bad], probabilities[bad] = "", np.nan, np.nan
        return Predictions(self.kind, classes, predicted, scores, probabilities, rows, reports, ignored)

    def _no_outputs(self) -> Tensor:
        return torch.zeros(0, max(1, len(self.classes)) if self.kind == "multiclass" else 1)

    def estimator(self) -> Any:
        """The model as a fitted scikit-learn estimator: ``predict``, and ``predict_proba`` where there are classes."""
        from tacit.jobs.estimator import fitted_estimator

        return fitted_estimator(self)


def load(path: str | Path, model: nn.Module | None = None) -> Predictor:
    """A trained model from a run directory or a bundle (``model.tacit``), ready for new data.

    Args:
        path: A finished run of ``tacit train`` or ``tacit finetune``, or a file that ``tacit export`` wrote.
        model: The network, for a run whose model is code of your own; its weights are loaded into it. A run directory
            knows where its code lies; the code that a bundle names is never imported.

    Raises:
        FileError: If something is missing, or is not what the certificate speaks of.
    """
    path = Path(path)
    if path.is_dir():
        return _from_directory(path, model)
    if not path.is_file():
        raise FileError(f"There is no run directory and no bundle {path}.")
    with unpacked(path) as directory:
        return _from_directory(directory, model, bundle=path)


def _from_directory(directory: Path, model: nn.Module | None, bundle: Path | None = None) -> Predictor:
    shown = bundle or directory
    if not (directory / MODEL_FILE).is_file():
        _refuse(directory)
    check_certified(directory, shown)
    schema = read_schema(directory / SCHEMA_FILE) if (directory / SCHEMA_FILE).is_file() else None
    inputs = _inputs(directory, schema)
    name = inputs.model.name
    if model is None and inputs.own_code and bundle is not None:
        raise ArgumentError(
            f"The network of {bundle} is code of its author, {name!r}, which a bundle does not bring along and Tacit "
            "does not import by itself: give the network to tacit.load(path, model=...)."
        )
    if model is None:
        with _where_it_was_trained(directory, needed=inputs.own_code):
            model = inputs.blank_model(schema)
    tensors, _ = read_tensors(directory / MODEL_FILE)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise FileError(f"The weights of {shown} do not fit the network {name!r}: {reason}.") from error
    if getattr(model, "first_block", 0):
        # New data comes as it is, not as what the frozen blocks make of it.
        model.first_block = 0  # type: ignore[assignment]
    return Predictor(inputs, schema, model)


def _refuse(directory: Path) -> None:
    if (directory / EXPERIMENT_FILE).is_file():
        raise FileError(
            f"{directory} holds no trained model yet: the run is not finished; tacit resume {directory} continues it."
        )
    raise FileError(
        f"{directory} holds no {MODEL_FILE}: it is no run directory of tacit train or tacit finetune."
    )


def _inputs(directory: Path, schema: Schema | None) -> Inputs:
    """What the run says about its inputs; earlier versions did not, and a table's schema then tells enough."""
    if (directory / INPUTS_FILE).is_file():
        return read_inputs(directory / INPUTS_FILE)
    path = directory / EXPERIMENT_FILE
    if not path.is_file():
        raise FileError(
            f"{directory} holds no {INPUTS_FILE}: it was not started by tacit train; use its weights in Python, with "
            "the code of its model."
        )
    if (directory / ADAPTER_DIRECTORY).is_dir():
        raise FileError(
            f"{directory} is of a model that generates texts; load {directory / ADAPTER_DIRECTORY} with peft, on its "
            "base model."
        )
    if schema is None:
        raise FileError(
            f"{directory} does not say what its model takes, as runs of earlier versions do not; tacit resume "
            f"{directory} adds that, where the data is."
        )
    record = read_json(path)
    experiment = from_record(record.get("experiment") if isinstance(record, dict) else None, path)
    return inputs_of_table(experiment, schema)


@contextlib.contextmanager
def _where_it_was_trained(directory: Path, *, needed: bool) -> Iterator[None]:
    """The directory in which a run was started, which is where its own code lies."""
    path = directory / EXPERIMENT_FILE
    record = read_json(path) if needed and path.is_file() else None
    started = Path(str(record.get("directory", ""))) if isinstance(record, dict) else Path()
    if not needed or not started.is_dir():
        yield
        return
    with contextlib.chdir(started):
        yield


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))
