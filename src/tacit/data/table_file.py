"""Tables from CSV, Parquet and Excel files, read strictly, with errors that name row and column.

Every cell stays the text it was (stripped), so that one set of rules on missing values, numbers and dates
serves all formats. CSV needs the standard library only, and is read faster where pyarrow is installed; Parquet needs
pyarrow, Excel openpyxl.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from tacit.data.values import Cells, cell_text
from tacit.errors import ArgumentError, FileError
from tacit.name_lists import listed

Bytes = NDArray[np.uint8]
_UNSIGNED_BYTE = 0x08


def pillow() -> ModuleType:
    """Return ``PIL.Image``, or say how to install it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise FileError("Reading images needs Pillow: run pip install 'tacit-dp[data]'.") from error
    return Image


def unreadable(image: ModuleType) -> tuple[type[Exception], ...]:
    """What Pillow raises at a file that is no image, or one that unpacks to far too many pixels."""
    bombs = (image.DecompressionBombError, image.DecompressionBombWarning)
    return (OSError, ValueError, SyntaxError, *bombs)


def read_gzip(path: Path) -> bytes:
    """Return the unpacked contents of a gzip file, or the contents of a file that is none."""
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(f"{path} cannot be read: {error}.") from error


def read_idx(path: Path) -> Bytes:
    """Read an IDX file of unsigned bytes (gzipped or not) into an array of the shape it states."""
    data = read_gzip(path)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != _UNSIGNED_BYTE:
        raise FileError(f"{path} is not an IDX file of unsigned bytes.")
    start = 4 + 4 * data[3]
    if not 1 <= data[3] <= 4 or len(data) < start:
        raise FileError(f"The IDX file {path} has a header that cannot be right.")
    shape = tuple(int.from_bytes(data[at : at + 4], "big") for at in range(4, start, 4))
    if math.prod(shape) != len(data) - start:
        raise FileError(f"The IDX file {path} states the shape {shape} but holds {len(data) - start} bytes.")
    if math.prod(shape) == 0:
        raise FileError(f"The IDX file {path} is empty.")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def read_labels(path: Path, count: int, classes: int) -> NDArray[np.int64]:
    """Read ``count`` labels below ``classes``, one byte each, gzipped or not."""
    return check_labels(path, np.frombuffer(read_gzip(path), np.uint8), count, classes)


def check_labels(path: Path, labels: Bytes, count: int, classes: int) -> NDArray[np.int64]:
    """Return ``labels`` as int64 if there are ``count`` of them, all below ``classes``."""
    if labels.shape != (count,) or (count and int(labels.max()) >= classes):
        raise FileError(f"{path} does not hold {count} labels from 0 to {classes - 1}.")
    return labels.astype(np.int64)


def read_mosaics(path: Path, rows: int, columns: int, side: int) -> Bytes:
    """Read a file of WebP images, each a mosaic of ``rows`` x ``columns`` RGB tiles, as (n, side, side, 3).

    The RIFF header of each image tells where the next begins.
    """
    image = pillow()
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error}.") from error
    tiles, at = [], 0
    while at < len(data):
        end = at + 8 + int.from_bytes(data[at + 4 : at + 8], "little")
        if data[at : at + 4] != b"RIFF" or end > len(data):
            raise FileError(f"{path} is cut short or is not a row of WebP images (byte {at}).")
        try:
            opened = image.open(io.BytesIO(data[at:end]))
            if opened.size != (columns * side, rows * side):
                raise FileError(f"{path} holds a mosaic of the wrong size at byte {at}.")
            mosaic = np.asarray(opened.convert("RGB"))
        except unreadable(image) as error:
            raise FileError(f"{path} holds an unreadable WebP image at byte {at}: {error}.") from error
        grid = mosaic.reshape(rows, side, columns, side, 3).transpose(0, 2, 1, 3, 4)
        tiles.append(grid.reshape(rows * columns, side, side, 3))
        at = end
    if not tiles:
        raise FileError(f"{path} is empty.")
    return np.concatenate(tiles)


SEPARATORS = (",", ";", "\t", "|")
PARQUET_SUFFIXES = (".parquet", ".pq")
EXCEL_SUFFIXES = (".xlsx", ".xlsm")
INDEX = "Unnamed: 0"
"""What a first column without a name is called: pandas writes the numbers of its rows so, and calls them so."""
_EXCEL_ERRORS = frozenset({"#N/A", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "#NULL!"})
_FIELD_LIMIT = 1 << 24
_UTF8 = "utf-8-sig"


@dataclass(frozen=True)
class Table:
    """Named columns of equal length; ``first_line`` is the line of row 0 in the file, for messages."""

    path: str
    columns: Mapping[str, Sequence[str]]
    rows: int
    first_line: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", {name: Cells.of(cells) for name, cells in self.columns.items()})

    def column(self, name: str) -> Cells:
        """Return the column called ``name``, or say which columns there are."""
        if name not in self.columns:
            raise ArgumentError(
                f"{self.path} has no column {name!r}; its columns are {listed(list(self.columns))}."
            )
        cells = self.columns[name]
        assert isinstance(cells, Cells)
        return cells

    def where(self, row: int) -> str:
        """Say where row ``row`` stands in the file."""
        return f"{self.path}, about line {row + self.first_line}"


def row_keys(table: Table) -> Sequence[str | bytes]:
    """Return one text per row that holds all its cells, to tell equal rows from different ones."""
    quick = _joined_quickly([table.column(name) for name in table.columns])
    if quick is not None:
        return quick
    return ["\x1f".join(cells) for cells in zip(*table.columns.values(), strict=True)]


def _joined_quickly(columns: Sequence[Cells]) -> list[bytes] | None:
    """The cells of every row, joined by pyarrow; None where it is not installed, or a text is none that it can hold."""
    try:
        import pyarrow
        from pyarrow import compute
    except ImportError:
        return None
    try:
        texts = [
            pyarrow.DictionaryArray.from_arrays(_arrow_places(cells.codes), _arrow_texts(cells.values)).cast(
                pyarrow.string()
            )
            for cells in columns
        ]
        joined = compute.binary_join_element_wise(*texts, _arrow_texts(["\x1f"])[0])
        found: list[bytes] = joined.cast(pyarrow.binary()).to_pylist()
    except (
        pyarrow.ArrowException,
        UnicodeError,
        OverflowError,
    ):  # such as half of a surrogate pair, or two gigabytes of text
        return None
    return found


# pyarrow loads pandas, which takes longer than a small table, whenever it is given or asked for a list or an array of
# NumPy. Buffers pass between them without.


def _arrow_texts(values: Sequence[str]) -> Any:
    import pyarrow

    encoded = [value.encode("utf-8") for value in values]
    ends = np.zeros(len(encoded) + 1, dtype=np.int64)
    np.cumsum([len(text) for text in encoded], out=ends[1:])
    if ends[-1] > np.iinfo(np.int32).max:
        raise OverflowError("more text than one array of pyarrow holds")
    buffers = pyarrow.py_buffer(ends.astype(np.int32)), pyarrow.py_buffer(b"".join(encoded))
    return pyarrow.StringArray.from_buffers(len(encoded), *buffers)


def _arrow_places(codes: NDArray[np.int64]) -> Any:
    import pyarrow

    return pyarrow.Array.from_buffers(
        pyarrow.int64(), len(codes), [None, pyarrow.py_buffer(np.ascontiguousarray(codes))]
    )


def _places(indices: Any) -> NDArray[np.int64]:
    """Whole numbers of pyarrow, none of which is missing."""
    import pyarrow

    found = indices.cast(pyarrow.int64())
    if not len(found):
        return np.empty(0, dtype=np.int64)
    values = np.frombuffer(found.buffers()[1], dtype=np.int64)
    return values[found.offset : found.offset + len(found)]


def read_columns(
    path: str | Path,
    *,
    separator: str | None = None,
    names: Sequence[str] | None = None,
    encoding: str | None = None,
) -> Table:
    """Read a CSV file (also gzipped), a Parquet file or an Excel sheet as a ``Table``.

    ``separator`` is found from the first line when it is not given. ``names`` names the columns of a CSV file
    that has no header line. ``encoding`` is that of a CSV file; UTF-8, or UTF-16 with its mark, unless given. A file
    without rows, a row of the wrong length, a repeated column name and bytes that are no text are each refused.
    """
    path = Path(path)
    if not path.is_file():
        raise FileError(f"There is no file {path}.")
    suffix = path.suffix.lower()
    if suffix in PARQUET_SUFFIXES:
        table = _read_parquet(path)
    elif suffix in EXCEL_SUFFIXES:
        table = _read_excel(path)
    else:
        known = _marked_encoding(path) if encoding is None else _known_encoding(encoding)
        table = _read_csv(path, separator, names, known)
    if table.rows == 0:
        raise FileError(f"{path} has no rows.")
    return table


def parse_text(name: str, text: str, separator: str | None = None) -> Table:
    """A table from CSV text that did not come from a file; ``name`` is what messages call it."""
    _check_separator(separator)
    lines = io.StringIO(text.removeprefix("\ufeff"), newline="")
    table = parse_rows(Path(name), lines, separator or find_separator(text.split("\n", 1)[0]))
    if table.rows == 0:
        raise FileError(f"{name} has no rows.")
    return table


def _marked_encoding(path: Path) -> str:
    """UTF-8, unless the file's first bytes are the mark of UTF-16, which spreadsheets write as "Unicode text"."""
    try:
        with _open_bytes(path) as raw:
            mark = raw.read(2)
    except (OSError, EOFError, zlib.error):
        return _UTF8  # the reader says what is wrong
    return "utf-16" if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else _UTF8


def _known_encoding(name: str) -> str:
    try:
        return codecs.lookup(name).name
    except LookupError:
        raise ArgumentError(f"There is no encoding {name!r}; try cp1252, latin-1 or utf-16.") from None


def _open_text(path: Path, encoding: str) -> IO[str]:
    with path.open("rb") as raw:
        gzipped = raw.read(2) == b"\x1f\x8b"
    if gzipped:
        return gzip.open(path, "rt", encoding=encoding, newline="")
    return path.open(encoding=encoding, newline="")


def find_separator(line: str) -> str:
    """Return the separator that occurs most often in ``line``; a comma if none does."""
    return max(SEPARATORS, key=lambda s: (line.count(s), -SEPARATORS.index(s)))


def _check_separator(separator: str | None) -> None:
    if separator is not None and (len(separator) != 1 or separator in '"\r\n'):
        raise ArgumentError(f"The separator must be one character such as ',' or ';', got {separator!r}.")


def _read_csv(path: Path, separator: str | None, names: Sequence[str] | None, encoding: str) -> Table:
    _check_separator(separator)
    try:
        with _open_text(path, encoding) as file:
            first = file.readline(_FIELD_LIMIT)
            if not first.strip() and not file.read(1):
                raise FileError(f"{path} is empty.")
            file.seek(0)
            if encoding == _UTF8:
                quick = _read_quickly(path, file, separator or find_separator(first), names)
                if quick is not None:
                    return quick
                file.seek(0)
            return parse_rows(path, file, separator or find_separator(first), names)
    except UnicodeError as error:
        place = f" (byte {error.start})" if isinstance(error, UnicodeDecodeError) else ""
        if encoding != _UTF8:
            raise FileError(f"{path} is not {encoding} text{place}; say another --encoding.") from error
        raise FileError(
            f"{path} is not UTF-8 text{place}; convert it to UTF-8 first, or say --encoding, such as cp1252."
        ) from error
    except (OSError, EOFError, zlib.error, LookupError) as error:
        raise FileError(f"{path} cannot be read: {error}.") from error


def _read_quickly(path: Path, file: IO[str], separator: str, names: Sequence[str] | None) -> Table | None:
    """What ``parse_rows`` gives, by pyarrow; None where that is not installed or anything about the file is odd."""
    try:
        import pyarrow
        from pyarrow import csv as arrow_csv
    except ImportError:
        return None
    skipped = 0
    if names is None:
        reader = csv.reader(file, delimiter=separator)
        try:
            names, skipped = with_index([name.strip() for name in next(reader, [])]), 1
        except csv.Error:
            return None
        if reader.line_num != 1 or not any(names):
            return None
    if len(set(names)) < len(names) or not all(names):
        return None
    try:
        with _open_bytes(path) as raw:
            data = arrow_csv.read_csv(
                raw,
                read_options=arrow_csv.ReadOptions(column_names=list(names), skip_rows=skipped),
                parse_options=arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pyarrow.string()), strings_can_be_null=False
                ),
            )
    except (pyarrow.ArrowException, OSError, EOFError, zlib.error, ValueError):
        return None  # the strict reader says what is wrong
    columns = {name: cells_of(data.column(name)) for name in names}
    if not data.num_rows or any(
        len(max(cells.values, key=len)) >= _FIELD_LIMIT for cells in columns.values()
    ):
        return None
    blank = np.ones(data.num_rows, dtype=np.bool_)
    for cells in columns.values():
        empty = np.array([not value for value in cells.values], dtype=np.bool_)
        blank &= empty[cells.codes]
        if not blank.any():
            break
    else:
        columns = {name: cells.chosen(~blank) for name, cells in columns.items()}
    return Table(str(path), columns, int(data.num_rows - blank.sum()), 1 + skipped)


def _open_bytes(path: Path) -> IO[bytes]:
    with path.open("rb") as raw:
        gzipped = raw.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], gzip.open(path, "rb")) if gzipped else path.open("rb")


def cells_of(column: Any, *, tolerant: bool = False) -> Cells:
    """A column of pyarrow as texts, stripped; what is missing is empty, and so is what is no text if ``tolerant``."""
    import pyarrow

    coded = column.cast(pyarrow.string()).combine_chunks().dictionary_encode(null_encoding="encode")
    if hasattr(coded, "combine_chunks"):
        coded = coded.combine_chunks()
    held = coded.dictionary
    values = _decoded(held.cast(pyarrow.binary()).to_pylist()) if tolerant else held.to_pylist()
    values = ["" if value is None else value for value in values]
    found = Cells(values, _places(coded.indices))
    return found if values == list(map(str.strip, values)) else found.mapped(str.strip)


def _decoded(values: Iterable[bytes | None]) -> list[str]:
    """Texts in UTF-8; files may hold bytes that are none, and say that they are texts."""
    found = []
    for value in values:
        try:
            found.append("" if value is None else value.decode("utf-8"))
        except UnicodeDecodeError:
            found.append("")
    return found


def parse_rows(path: Path, file: Iterable[str], separator: str, names: Sequence[str] | None = None) -> Table:
    """Parse lines of CSV text; ``names`` names the columns where the first line does not."""
    limit = csv.field_size_limit(_FIELD_LIMIT)
    try:
        reader = csv.reader(file, delimiter=separator)
        if names is None:
            names = with_index([name.strip() for name in next(_lines(reader), [])])
        # Some programs end every line with a separator, the header among them.
        closed = len(names) > 1 and not names[-1] and all(names[:-1])
        names = names[:-1] if closed else names
        _check_names(path, names)
        first_line = reader.line_num + 1
        columns: list[list[int]] = [[] for _ in names]
        shared: list[dict[str, int]] = [{} for _ in names]
        rows = 0
        for cells in _lines(reader):
            if closed and len(cells) == len(names) + 1:
                if cells[-1].strip():
                    _check_names(path, [*names, ""])
                del cells[-1]
            if len(cells) != len(names):
                raise FileError(
                    f"{path}, line {reader.line_num}, has {len(cells)} fields where {len(names)} were "
                    f"expected (separator {separator!r})."
                )
            for column, pool, cell in zip(columns, shared, cells, strict=True):
                column.append(pool.setdefault(cell.strip(), len(pool)))
            rows += 1
        found = (
            Cells(list(pool), np.array(column, dtype=np.int64))
            for column, pool in zip(columns, shared, strict=True)
        )
        return Table(str(path), dict(zip(names, found, strict=True)), rows, first_line)
    except csv.Error as error:
        raise FileError(f"{path} is not a readable CSV file: {error}.") from error
    finally:
        csv.field_size_limit(limit)


def _lines(reader: Iterator[list[str]]) -> Iterator[list[str]]:
    return (cells for cells in reader if cells and (cells[0].strip() or any(map(str.strip, cells))))


def with_index(names: list[str]) -> list[str]:
    """``names`` with a name for a first column that has none, unless it is the only one or others have none either."""
    if len(names) > 1 and not names[0] and INDEX not in names:
        return [INDEX, *names[1:]]
    return names


def _check_names(path: Path, names: Sequence[str]) -> None:
    if not names:
        raise FileError(f"{path} is empty.")
    seen: set[str] = set()
    for position, name in enumerate(names, 1):
        if not name:
            raise FileError(
                f"Column {position} of {path} has no name; give every column a name in the first line."
            )
        if name in seen:
            raise FileError(f"{path} has two columns called {name!r}; rename one.")
        seen.add(name)


def _read_parquet(path: Path) -> Table:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise FileError(
            "Reading Parquet needs pyarrow: run pip install 'tacit-dp[data]', or save the file as CSV."
        ) from error
    try:
        data = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise FileError(f"{path} is not a readable Parquet file: {str(error).splitlines()[0]}") from error
    _check_names(path, data.column_names)
    columns = {}
    for name in data.column_names:
        try:
            columns[name] = cells_of(data.column(name))
        except (pyarrow.ArrowException, ValueError, NotImplementedError) as error:
            raise FileError(
                f"Column {name!r} of {path} holds {data.schema.field(name).type} values, which are no table "
                "cells; drop the column or write it as text."
            ) from error
    return Table(str(path), columns, data.num_rows, 1)


def _read_excel(path: Path) -> Table:
    try:
        import openpyxl
    except ImportError as error:
        raise FileError(
            "Reading Excel files needs openpyxl: run pip install 'tacit-dp[data]', or save the sheet as CSV."
        ) from error
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        try:
            sheets = {
                sheet.title: [
                    [_excel_text(value) for value in row] for row in sheet.iter_rows(values_only=True)
                ]
                for sheet in book.worksheets
            }
        finally:
            book.close()
    except Exception as error:  # whatever a library says that takes a damaged archive of XML apart
        raise FileError(f"{path} is not a readable Excel file: {str(error)[:200]}.") from error
    filled = {title: rows for title, sheet in sheets.items() if (rows := [row for row in sheet if any(row)])}
    if len(filled) > 1:
        raise FileError(
            f"{path} has {len(filled)} sheets with content ({listed(list(filled), 4)}); keep the one to use, or save "
            "it as CSV."
        )
    if not filled:
        raise FileError(f"{path} is empty.")
    (rows,) = filled.values()
    width = max(max(place for place, cell in enumerate(row) if cell) for row in rows) + 1
    header, *body = ([*row[:width], *[""] * (width - len(row))] for row in rows)
    names = with_index(header)
    _check_names(path, names)
    columns = (
        {name: list(cells) for name, cells in zip(names, zip(*body, strict=True), strict=True)}
        if body
        else {}
    )
    return Table(str(path), columns, len(body), 2)


def _excel_text(value: object) -> str:
    text = cell_text(value)
    return "" if text in _EXCEL_ERRORS else text
