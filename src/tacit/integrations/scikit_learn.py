"""Private models for tables as scikit-learn estimators: what ``tacit train`` does, on rows in memory.

``fit`` describes a job and runs it, so types, encoding, defaults, plan, ledger and certificate are those of the command
line. Every ``fit`` is a release of its own with its own ε: a grid search or a cross-validation on private rows costs
the sum over its fits.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.data import Number, Schema, Target, read_schema
from tacit.data.encode import encode
from tacit.data.frames import is_frame, table_of, texts
from tacit.data.infer import guess_target
from tacit.data.schema import Column
from tacit.data.sparse_rows import LENGTH, SparseRows, is_sparse
from tacit.data.table_file import Table
from tacit.data.task import COUNT_NOT_COVERED, Kind, Task
from tacit.data.tolerance import tolerate
from tacit.data.units import count_words, parted, unit_column, unit_words
from tacit.data.values import normal_value
from tacit.errors import ArgumentError, FileError
from tacit.jobs.held_out import threshold_of
from tacit.jobs.problem import IN_MEMORY
from tacit.jobs.run import Job, Outcome, resolve, run_job
from tacit.jobs.settings import Experiment, experiment_of, merged
from tacit.name_lists import listed
from tacit.runs import load_certificate
from tacit.runs.layout import CERTIFICATE_FILE
from tacit.training.evaluation import predict

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d, validate_data
except ImportError as error:
    raise ImportError(
        "PrivateClassifier and PrivateRegressor need scikit-learn 1.6 or newer: run pip install 'tacit-dp[data]'."
    ) from error

Range = tuple[float, float]
_ROWS_AT_ONCE, _SPARSE_AT_ONCE = 10_000, 1_024
COLUMNS_NOT_COVERED = (
    "What the columns of the sparse matrix stand for: a vocabulary, document frequencies or categories that were taken "
    "from these rows. A public hash of words (HashingVectorizer) takes nothing from them."
)


class _PrivateEstimator(BaseEstimator):  # type: ignore[misc]
    """What both estimators share: rows to a table, a job, a model, and its answers to new rows."""

    epsilon: float
    delta: float | None
    schema: Schema | Mapping[str, Column] | str | Path | None
    ranges: Range | Mapping[str, Range] | None
    model: str | None
    settings: Mapping[str, Mapping[str, Any]] | None
    run_dir: str | Path | None
    random_state: Any

    def _run(self, table: Table, target: Target | None, kind: Kind, name: str, groups: Any) -> None:
        """Train on ``table``, whose column ``name`` holds the answers, and keep what predictions need."""
        columns = self._declared_columns([column for column in table.columns if column != name])
        unit = None if groups is None else _free_name(table, "groups")
        if unit is not None:
            table = _with_column(table, unit, texts(_per_row(groups, table.rows), unit, strict=True))
        schema = None
        try:
            if columns or target is not None:
                schema = Schema(target or guess_target(table, name, kind, None), columns)
            experiment = self._experiment(name, kind, unit, declared=schema is not None)
            job = resolve(experiment, table=table, schema=schema)
        except FileError as error:  # about the rows, which are an argument here
            raise ArgumentError(str(error)) from error
        outcome = self._train(job)
        assert outcome.problem.schema is not None
        self.schema_: Schema | None = outcome.problem.schema

    def _train(self, job: Job) -> Outcome:
        """Run a job, and keep what predictions need."""
        out = None if self.run_dir is None else Path(self.run_dir)
        outcome = run_job(job, out, in_memory=out is None, progress=False)
        if not outcome.result.finished:
            raise KeyboardInterrupt
        self.plan_, self.epsilon_, self.delta_ = job.plan, outcome.result.epsilon, job.plan.delta
        self.settings_, self.not_covered_ = job.experiment, outcome.problem.not_covered
        self.certificate_ = None if out is None else load_certificate(out / CERTIFICATE_FILE)
        with outcome.trainer.final_weights():
            # In double precision a row's answer does not depend on the rows beside it, up to 1e-7.
            self.model_ = copy.deepcopy(outcome.trainer.model).double().eval()
        hints = [] if outcome.problem.schema is None else _hint(self.not_covered_)
        for sentence in (*outcome.warnings, *hints):
            warnings.warn(sentence, stacklevel=4)
        return outcome

    def _experiment(self, name: str, kind: Kind, unit: str | None, *, declared: bool) -> Experiment:
        """The job as data, with ``settings`` as a configuration file would give them."""
        seed = self.random_state
        if seed is not None and not isinstance(seed, Integral):
            seed = check_random_state(seed).randint(np.iinfo(np.int32).max)
        given: dict[str, dict[str, Any]] = {
            "data": {
                "source": IN_MEMORY,
                "held_out": 0.0,
                "unit": unit,
                **({} if declared else {"target": name, "kind": kind}),
            },
            "model": {"name": self.model},
            "privacy": {"epsilon": _plain(self.epsilon), "delta": _plain(self.delta)},
            "training": {"seed": None if seed is None else int(seed)},
        }
        return experiment_of(merged(self.settings or {}, given))

    def _declared_columns(self, names: Sequence[str]) -> dict[str, Column]:
        """What ``schema`` and ``ranges`` declare about the columns."""
        declared = self._schema()
        columns = dict(declared.columns if isinstance(declared, Schema) else declared or {})
        ranges = self.ranges if self.ranges is not None else {}
        if not isinstance(ranges, Mapping):
            ranges = {name: ranges for name in names if name not in columns}
        for name, ends in ranges.items():
            if name in columns:
                raise ArgumentError(f"Column {name!r} is in ranges and in schema; declare it once.")
            try:
                low, high = map(float, ends)
            except (TypeError, ValueError):
                raise ArgumentError(
                    f"The range of {name!r} must be two numbers, low and high, got {ends!r}."
                ) from None
            columns[name] = Number(low, high)
        unknown = [name for name in columns if name not in names]
        if unknown:
            raise ArgumentError(f"X has no column {listed(unknown)}; its columns are {listed(list(names))}.")
        return columns

    def _schema(self) -> Schema | Mapping[str, Column] | None:
        return read_schema(self.schema) if isinstance(self.schema, str | Path) else self.schema

    def _declared_target(self, *kinds: Kind) -> Target | None:
        """The target of a whole schema."""
        declared = self._schema()
        if not isinstance(declared, Schema):
            return None
        if declared.target.kind not in kinds:
            raise ArgumentError(
                f"The schema declares a {declared.target.kind} target; {type(self).__name__} is not for it."
            )
        return declared.target

    def _table(self, rows: Any, y: Any = None, *, fitting: bool) -> Table:
        """The rows to train on, or those to answer, with the names under which the columns are known."""
        least = 2 if fitting else 1
        if not is_frame(rows):
            checked = check_array(
                rows, dtype=None, ensure_all_finite="allow-nan", ensure_min_samples=least, estimator=self
            )
        elif len(rows) < least or not len(rows.columns):
            raise ArgumentError(
                f"Found an array with {len(rows)} sample(s) and {len(rows.columns)} feature(s); {type(self).__name__} "
                f"needs at least {least} and 1."
            )
        else:
            checked = rows
        if fitting:
            validate_data(self, rows, y, skip_check_array=True)
        else:
            validate_data(self, rows, reset=False, skip_check_array=True)
        named = getattr(self, "feature_names_in_", None)
        return table_of(checked, None if named is None else list(named), strict=True)

    def _outputs(self, X: Any) -> NDArray[np.float64]:
        """The model's outputs for rows that were not trained on, or were."""
        check_is_fitted(self)
        if self.schema_ is None:
            return self._sparse_outputs(X)
        if is_sparse(X):
            raise ArgumentError("The estimator was fitted on a table, and X is sparse; give it dense rows.")
        table = self._table(X, fitting=False)
        found = tolerate(table, self.schema_)
        table, unread = found.table, [report.name for report in found.reports if report.unreadable]
        if unread:
            warnings.warn(
                f"Cells of {listed(unread)} that are no number or no day count as missing.", stacklevel=3
            )
        parts = []
        for start in range(0, table.rows, _ROWS_AT_ONCE):
            part = {name: cells[start : start + _ROWS_AT_ONCE] for name, cells in table.columns.items()}
            rows = Table(table.path, part, min(_ROWS_AT_ONCE, table.rows - start), start)
            try:
                encoded = encode(rows, self.schema_)
            except FileError as error:
                raise ArgumentError(str(error)) from error
            parts.append(predict(self.model_, torch.from_numpy(encoded.x).double()).numpy())
        return np.concatenate(parts)

    def _sparse_outputs(self, X: Any) -> NDArray[np.float64]:
        """The model's outputs for rows of a sparse matrix."""
        if not is_sparse(X):
            raise ArgumentError(
                "The estimator was fitted on a sparse matrix; give one with the same columns."
            )
        validate_data(self, X, reset=False, skip_check_array=True)
        rows = SparseRows(X, np.zeros(X.shape[0]), length=self.settings_.data.length or LENGTH)
        parts = [np.zeros((0, self._width()))]
        for start in range(0, len(rows), _SPARSE_AT_ONCE):
            inputs = rows.padded(np.arange(start, min(start + _SPARSE_AT_ONCE, len(rows))))
            with torch.no_grad():
                parts.append(self.model_((inputs[0], inputs[1].double())).numpy())
        return np.concatenate(parts)

    def _width(self) -> int:
        return int(next(self.model_.parameters()).shape[1])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


class PrivateClassifier(ClassifierMixin, _PrivateEstimator):  # type: ignore[misc]
    """A differentially private classifier for tables, by default the additive model of ``tacit train``.

    One row is one person's record: (ε, δ) is about adding or removing one row, or with ``groups`` all rows of one
    person. Columns may hold numbers, texts,
    categories and dates; missing values need no treatment. ``predict`` needs no training data.

    After ``fit``: ``classes_``, ``n_features_in_``, ``feature_names_in_`` (for data frames), ``epsilon_`` and
    ``delta_`` (what was spent), ``plan_``, ``certificate_`` (with ``run_dir``), ``not_covered_`` (what ε does not
    cover, in sentences), ``schema_`` (how columns become numbers), ``settings_`` (every setting that was used) and
    ``model_`` (the PyTorch module).

    Args:
        epsilon: Promised ε of one ``fit``; inf trains without noise.
        delta: Promised δ, below 1 / rows. By default 1e-5, or 0.1 / rows if that is smaller.
        schema: Public facts about the columns: a ``tacit.data.Schema`` or a schema file, whose target then declares the
            classes too, or columns by name.
        ranges: Public ranges of numbers: (low, high) for all columns that ``schema`` does not declare, or by name.
        model: Model by name, such as additive, logistic or mlp. By default as for ``tacit train``.
        settings: Other settings by section, as in a configuration file, for example
            ``{"training": {"batch_size": 512}, "method": {"name": "dp-sgd"}}``.
        run_dir: Folder for ledger, model and certificate, which must be new or empty for every ``fit``. Without it
            nothing is written and there is no certificate.
        random_state: For experiments only: noise that can be repeated. A model fitted with it is not for release.
    """

    def __init__(
        self,
        epsilon: float = 3.0,
        *,
        delta: float | None = None,
        schema: Schema | Mapping[str, Column] | str | Path | None = None,
        ranges: Range | Mapping[str, Range] | None = None,
        model: str | None = None,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        run_dir: str | Path | None = None,
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.schema = schema
        self.ranges = ranges
        self.model = model
        self.settings = settings
        self.run_dir = run_dir
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: Any, groups: Any = None) -> PrivateClassifier:
        """Train on rows ``X`` and their classes ``y``; this spends ε.

        Args:
            X: A data frame or a matrix, one row per person unless ``groups`` says otherwise. Rows of a SciPy sparse
                matrix are for wide inputs, such as hashed words: they get a linear model (``sparse-linear``).
            y: One class per row: numbers, texts or booleans.
            groups: Whose row each is: all rows with the same value are protected together.
        """
        if is_sparse(X):
            return self._fit_sparse(X, y, groups)
        table = self._table(X, y, fitting=True)
        y = _answers(y, table.rows)
        check_classification_targets(y)
        target = self._declared_target("binary", "multiclass")
        if target is None:
            self.classes_, labels = np.unique(y, return_inverse=True)
            cells, name = [str(label) for label in labels.tolist()], _free_name(table, "target")
        else:
            self.classes_ = _as_answers(target.classes, y)
            cells, name = texts(y, target.name, strict=True), target.name
            known = {normal_value(value) for value in target.classes}
            odd = [cell for cell in dict.fromkeys(cells) if normal_value(cell) not in known]
            if odd:
                raise ArgumentError(f"y holds {listed(odd)}, which are none of the declared classes.")
        if len(self.classes_) < 2:
            raise ArgumentError(f"y has one class only, {self.classes_[0]!r}; there is nothing to learn.")
        kind: Kind = "binary" if len(self.classes_) == 2 else "multiclass"
        self._run(_with_column(table, name, cells), target, kind, name, groups)
        return self

    def _fit_sparse(self, X: Any, y: Any, groups: Any) -> PrivateClassifier:
        """Train a linear model on the rows of a sparse matrix."""
        if self.schema is not None or self.ranges is not None:
            raise ArgumentError(
                "schema and ranges are for tables; a sparse matrix holds numbers as they are."
            )
        if X.shape[0] < 2:
            raise ArgumentError(f"Found an array with {X.shape[0]} sample(s); {type(self).__name__} needs 2.")
        validate_data(self, X, y, skip_check_array=True)
        y = _answers(y, X.shape[0])
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ArgumentError(f"y has one class only, {self.classes_[0]!r}; there is nothing to learn.")
        binary = len(self.classes_) == 2
        kind: Kind = "binary" if binary else "multiclass"
        unit = None if groups is None else "groups"
        experiment = self._experiment("y", kind, unit, declared=False)
        if experiment.data.unit != unit:
            raise ArgumentError(
                f"The unit {experiment.data.unit!r} is a column of a table, and X is sparse; give groups to fit."
            )
        length = experiment.data.length or LENGTH
        rows = SparseRows(X, labels[:, None].astype(np.float32) if binary else labels, length=length)
        task = Task(
            name=IN_MEMORY,
            train=rows,
            held_out=None,
            kind=kind,
            input_shape=(length,),
            classes=tuple(str(value) for value in self.classes_),
            vocabulary=rows.columns + 1,
            not_covered=(
                "The kind and the classes of the target 'y': read off the private rows.",
                COLUMNS_NOT_COVERED,
                COUNT_NOT_COVERED if unit is None else count_words(unit),
            ),
            unit="" if unit is None else unit_words(unit),
            units=None if unit is None else _owners(groups, X.shape[0], unit),
        )
        self.schema_ = None
        self._train(resolve(experiment, table=task))
        return self

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """With two classes one number per row, above 0 for the second class; with more, one per class.

        Args:
            X: Rows with the columns of ``fit``.
        """
        outputs = self._outputs(X)
        if len(self.classes_) > 2:
            return outputs
        decided: NDArray[np.float64] = outputs[:, 0] - threshold_of(self.settings_.data.prevalence)
        return decided

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of every class, one row per row.

        Args:
            X: Rows with the columns of ``fit``.
        """
        outputs = self._outputs(X)
        if len(self.classes_) == 2:
            outputs = np.concatenate([np.zeros_like(outputs), outputs], axis=1)
        powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        shares: NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
        return shares

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of every row.

        Args:
            X: Rows with the columns of ``fit``.
        """
        decided = self.decision_function(X)
        chosen = decided.argmax(axis=1) if decided.ndim == 2 else (decided > 0).astype(np.int64)
        classes: NDArray[Any] = self.classes_[chosen]
        return classes


class PrivateRegressor(RegressorMixin, _PrivateEstimator):  # type: ignore[misc]
    """A differentially private regression for tables, by default the additive model of ``tacit train``.

    As ``PrivateClassifier``, for a number as the answer. Answers outside of ``target_range`` count as its nearer end,
    and no prediction is trained to leave it.

    Args:
        epsilon: Promised ε of one ``fit``; inf trains without noise.
        delta: Promised δ, below 1 / rows. By default 1e-5, or 0.1 / rows if that is smaller.
        schema: Public facts about the columns: a ``tacit.data.Schema`` or a schema file, whose target then declares the
            range of the answers too, or columns by name.
        ranges: Public ranges of numbers: (low, high) for all columns that ``schema`` does not declare, or by name.
        target_range: The public range of the answers, (low, high). By default it is taken as ``tacit train`` takes it.
        model: Model by name, such as additive, logistic or mlp. By default as for ``tacit train``.
        settings: Other settings by section, as in a configuration file, for example
            ``{"training": {"batch_size": 512}, "method": {"name": "dp-sgd"}}``.
        run_dir: Folder for ledger, model and certificate, which must be new or empty for every ``fit``. Without it
            nothing is written and there is no certificate.
        random_state: For experiments only: noise that can be repeated. A model fitted with it is not for release.
    """

    def __init__(
        self,
        epsilon: float = 3.0,
        *,
        delta: float | None = None,
        schema: Schema | Mapping[str, Column] | str | Path | None = None,
        ranges: Range | Mapping[str, Range] | None = None,
        target_range: Range | None = None,
        model: str | None = None,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        run_dir: str | Path | None = None,
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.schema = schema
        self.ranges = ranges
        self.target_range = target_range
        self.model = model
        self.settings = settings
        self.run_dir = run_dir
        self.random_state = random_state

    def fit(self, X: Any, y: Any, groups: Any = None) -> PrivateRegressor:
        """Train on rows ``X`` and their answers ``y``; this spends ε.

        Args:
            X: A data frame or a matrix, one row per person unless ``groups`` says otherwise.
            y: One number per row.
            groups: Whose row each is: all rows with the same value are protected together.
        """
        if is_sparse(X):
            raise ArgumentError(
                "PrivateRegressor reads tables, and X is sparse: give X.toarray(), or classes to PrivateClassifier."
            )
        table = self._table(X, y, fitting=True)
        y = _answers(y, table.rows).astype(np.float64)
        target = self._declared_target("regression")
        name = _free_name(table, "target") if target is None else target.name
        if self.target_range is not None:
            if target is not None:
                raise ArgumentError("The schema declares the target's range; leave target_range out.")
            try:
                low, high = map(float, self.target_range)
            except (TypeError, ValueError):
                raise ArgumentError(f"target_range must be two numbers, got {self.target_range!r}.") from None
            target = Target(name, "regression", low=low, high=high)
        self._run(_with_column(table, name, texts(y, name, strict=True)), target, "regression", name, groups)
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The answer to every row.

        Args:
            X: Rows with the columns of ``fit``.
        """
        shares = (self._outputs(X)[:, 0] + 1) / 2
        assert self.schema_ is not None
        low, high = self.schema_.target.range
        answers: NDArray[np.float64] = low + shares * (high - low)
        return answers


def _answers(y: Any, rows: int) -> NDArray[Any]:
    """``y`` as one answer per row, all of them known."""
    if any(answer is None for answer in np.asarray(y, dtype=object).flat):
        raise ArgumentError("y holds None; leave out the rows without an answer.")
    return _per_row(y, rows)


def _per_row(y: Any, rows: int) -> NDArray[Any]:
    """``y`` as one value per row."""
    y = column_or_1d(y, warn=True)
    if len(y) != rows:
        raise ArgumentError(
            f"Found input variables with inconsistent numbers of samples: {rows} rows and {len(y)} answers."
        )
    y = check_array(y, dtype=None, ensure_2d=False, input_name="y")
    return np.asarray(y)


def _owners(groups: Any, rows: int, name: str) -> NDArray[np.int64]:
    """Whose row each is, as numbers; ids that do not tell it reliably are refused, as in a table."""
    cells = texts(_per_row(groups, rows), name, strict=True)
    try:
        ids = unit_column(Table(IN_MEMORY, {name: cells}, rows, 1), name, "")
    except FileError as error:  # about an argument here
        raise ArgumentError(str(error)) from error
    return parted(ids, np.ones(rows, np.bool_))[0]


def _as_answers(classes: tuple[str, ...], y: NDArray[Any]) -> NDArray[Any]:
    """Declared classes as values like those of ``y``."""
    if y.dtype.kind == "b":
        return np.array([normal_value(value) in ("true", "1") for value in classes])
    try:
        return (
            np.array(classes).astype(y.dtype) if y.dtype.kind in "iuf" else np.array(classes, dtype=y.dtype)
        )
    except ValueError:
        raise ArgumentError(
            f"y holds numbers, but the schema declares the classes {listed(classes)}."
        ) from None


def _free_name(table: Table, name: str) -> str:
    while name in table.columns:
        name += "_"
    return name


def _with_column(table: Table, name: str, cells: list[str]) -> Table:
    if name in table.columns:
        raise ArgumentError(f"{name!r} is among the columns of X; leave it out.")
    return Table(table.path, {**table.columns, name: cells}, table.rows, table.first_line)


def _hint(not_covered: Sequence[str]) -> list[str]:
    """One warning where facts about columns were read off the private rows."""
    if not any("read off the private rows" in sentence for sentence in not_covered):
        return []
    return [
        "Types, ranges or classes were read off the private rows, which ε does not cover: declare them with schema or "
        "ranges. not_covered_ lists the columns."
    ]


def _plain(value: Any) -> Any:
    """A NumPy number as Python's."""
    return value.item() if isinstance(value, np.generic) else value
