"""Names in sentences: lists complete but compact for files, shortened for people, and harmless for terminals."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NUMBERED = re.compile(r"(.*?)(\d+)", re.DOTALL)
_LONG = re.compile(r"(\d[\d,]* columns) \((.*)\)", re.DOTALL)
_MOST = 160


def spelled(text: str) -> str:
    """``text`` with signs that would steer a terminal spelled out; names and contents of files are anybody's."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else repr(sign)[1:-1] for sign in text)


def listed(names: Sequence[str], most: int = 12) -> str:
    """Join names for a sentence, shortening long lists."""
    shown = ", ".join(repr(n) for n in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def columns(names: Sequence[str], most: int = 12) -> str:
    """All names: one by one if there are few, else their number and the names, with 'x1' to 'x99' for such a row."""
    if len(names) <= most:
        return ", ".join(repr(name) for name in names)
    return f"{len(names):,} columns ({', '.join(_rows(names))})"


def shortened(sentence: str) -> str:
    """A sentence for people: of a long list that ``columns`` made, the first names only. Its number stays."""

    def cut(found: re.Match[str]) -> str:
        count, names = found.groups()
        if len(names) <= _MOST:
            return found.group()
        kept = names[:_MOST].rpartition(", ")[0] or names[:_MOST]
        return f"{count} ({kept}, ...)"

    return _LONG.sub(cut, sentence)


def counted(sentence: str, where: str) -> str:
    """A sentence for a terminal: in place of a long list that ``columns`` made, its number and where the list is."""

    def cut(found: re.Match[str]) -> str:
        return found.group() if len(found[2]) <= _MOST else f"{found[1]} (listed in {where})"

    return _LONG.sub(cut, sentence)


def _rows(names: Sequence[str]) -> list[str]:
    """The names, with the first and the last of every row of three or more that count up by one."""
    rows: list[list[str]] = []
    for name in names:
        if rows and _follows(rows[-1][-1], name):
            rows[-1].append(name)
        else:
            rows.append([name])
    parts: list[str] = []
    for row in rows:
        parts += [f"{row[0]!r} to {row[-1]!r}"] if len(row) > 2 else [repr(name) for name in row]
    return parts


def _follows(before: str, name: str) -> bool:
    one, other = _NUMBERED.fullmatch(before), _NUMBERED.fullmatch(name)
    return (
        one is not None
        and other is not None
        and one[1] == other[1]
        and int(other[2]) == int(one[2]) + 1
        and other[2] == str(int(other[2])).zfill(len(one[2]))
    )
