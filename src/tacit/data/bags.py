"""Texts as bags of words: which words, and which pairs of neighbouring words if asked for, occur in each, as numbers.

Every text becomes a row of different numbers, filled up with zeros. Where the numbers come from a fixed hash no
vocabulary is taken from anywhere; where they come from a word list, that list must be public.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.data.values import composed, word_hash
from tacit.errors import ArgumentError, FileError, check_count

BUCKETS = 1 << 18
LENGTH = 512
MOST_BUCKETS = 1 << 30
MOST_LENGTH = 1 << 20
MOST_LISTED = 1 << 22
"""Entries of a word list, at most."""

_WORD = re.compile(r"\w+(?:['\u2019]\w+)*|[!?]")
_UNSPACED = re.compile(
    "[\u3005-\u3007\u3041-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af]"
)
"""Chinese characters and hiragana, which are written without spaces between words."""
_WORD_OR_SIGN = re.compile(
    r"\w+(?:['\u2019]\w+)*|[!?\uff01\uff1f\u2600-\u27bf\u2b50\u2b55\U0001f000-\U0001f3fa\U0001f400-\U0001faff]"
)
"""The same words, and emojis without the tone of their skin."""
_AT_ONCE = 256
_PAIR = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)

Ids = NDArray[np.int32]


def words_of(text: str, *, characters: bool = False) -> list[str]:
    """The words of a text in lower case, apostrophes inside included; ! and ? are words too.

    With ``characters``, so is every emoji and every character of a script that is written without spaces.
    """
    text = composed(text).lower().replace("\u2019", "'")
    if not characters or text.isascii():
        return _WORD.findall(text)
    return _WORD_OR_SIGN.findall(_UNSPACED.sub(r" \g<0> ", text))


@dataclass(frozen=True)
class Bags:
    """How texts become numbers.

    buckets:    into so many numbers words are hashed, where there is no list; 0 is for filling up.
    length:     of a text, so many different words count: the first.
    pairs:      whether hashed pairs of neighbouring words count as well.
    listed:     the public words, and pairs of words with a space between them, that count instead.
    characters: whether emojis, and characters of scripts that are written without spaces, are words where there is no
                list. Runs that were recorded without it were trained without.
    """

    buckets: int = BUCKETS
    length: int = LENGTH
    pairs: bool = False
    listed: tuple[str, ...] = ()
    characters: bool = True
    _places: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("buckets", self.buckets, 2, MOST_BUCKETS),
            ("length", self.length, 1, MOST_LENGTH),
        ):
            if check_count(name, value, least=least) > most:
                raise ArgumentError(f"{name} must be at most {most:,}, got {value:,}.")
        self._places.update({entry: place for place, entry in enumerate(self.listed, 1)})

    @property
    def vocabulary(self) -> int:
        """How many different numbers there are, that for filling up among them."""
        return len(self.listed) + 1 if self.listed else self.buckets

    @property
    def record(self) -> dict[str, Any]:
        """The same as plain values."""
        facts = {"buckets": self.buckets, "length": self.length, "pairs": self.pairs}
        return {**facts, "listed": list(self.listed), "characters": self.characters}

    def ids(self, texts: Sequence[str]) -> Ids:
        """A row per text: the numbers of its words, each once, in the order of the text; then zeros."""
        try:
            found = np.zeros((len(texts), self.length), np.int32)
        except MemoryError as error:
            raise FileError(
                f"{len(texts):,} texts of {self.length:,} words do not fit into memory; give a smaller "
                "--length."
            ) from error
        known: dict[str, int] = {}
        for start in range(0, len(texts), _AT_ONCE):
            self._fill(found[start : start + _AT_ONCE], texts[start : start + _AT_ONCE], known)
        return found

    def _fill(self, rows: Ids, texts: Sequence[str], known: dict[str, int]) -> None:
        """Write the numbers of some texts. ``known`` remembers words from call to call."""
        characters = self.characters and not self.listed
        lists = [words_of(text, characters=characters) for text in texts]
        spoken = [word for words in lists for word in words]
        owner = np.repeat(np.arange(len(lists)), [len(words) for words in lists])
        if self.listed:
            numbers = np.fromiter((self._places.get(word, 0) for word in spoken), np.int64, len(spoken))
            pairs = np.fromiter(
                (self._places.get(f"{one} {two}", 0) for one, two in itertools.pairwise(spoken)), np.int64
            )
        else:
            for word in spoken:
                if word not in known:
                    known[word] = word_hash(word)
            codes = np.fromiter(map(known.__getitem__, spoken), np.uint64, len(spoken))
            numbers = self._buckets(codes)
            pairs = (
                self._buckets(_paired(codes)) if self.pairs else np.zeros(max(0, len(codes) - 1), np.int64)
            )
        # Words and pairs in the order of the text; a pair belongs to the text that holds both its words.
        both, whose = np.zeros(2 * len(spoken), np.int64), np.repeat(owner, 2)
        both[::2], both[1:-1:2] = numbers, np.where(owner[:-1] == owner[1:], pairs, 0)
        places = np.flatnonzero(both)
        _, first = np.unique(whose[places] * np.int64(MOST_BUCKETS) + both[places], return_index=True)
        places = places[np.sort(first)]
        whose = whose[places]
        within = np.arange(len(places)) - np.searchsorted(whose, np.arange(len(lists)))[whose]
        kept = within < self.length
        rows[whose[kept], within[kept]] = both[places[kept]]

    def _buckets(self, codes: NDArray[np.uint64]) -> NDArray[np.int64]:
        return 1 + (codes % np.uint64(self.buckets - 1)).astype(np.int64)


def _paired(codes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A fixed, public 64-bit hash of every two neighbours, from the hashes of both."""
    both = (codes[:-1] * _PAIR) ^ codes[1:]
    both = (both ^ (both >> np.uint64(31))) * _MIX
    return both ^ (both >> np.uint64(29))


def bags_from_record(record: Any) -> Bags:
    """Read what ``Bags.record`` gave; every value is checked."""
    record = {"characters": False, **record}  # files before there were characters have no word of them
    if set(record) != set(Bags().record) or not isinstance(record["listed"], list):
        raise ValueError("its bags of words are none")
    if not all(isinstance(entry, str) for entry in record["listed"]):
        raise ValueError("its word list is none")
    listed = tuple(record["listed"])
    if listed and checked_list(listed, "its word list") != listed:
        raise ValueError("its word list is none")
    if not isinstance(record["pairs"], bool):
        raise ValueError("its pairs of words are none")
    if not isinstance(record["characters"], bool):
        raise ValueError("its characters are none")
    return Bags(record["buckets"], record["length"], record["pairs"], listed, record["characters"])


def read_word_list(path: str | Path) -> tuple[str, ...]:
    """The entries of a file with one word, or two with a space between them, in every line."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise FileError(f"The word list {path} cannot be read: {error.strerror}.") from error
    except UnicodeError as error:
        raise FileError(f"The word list {path} is not UTF-8 text.") from error
    return checked_list([line for line in lines if line.strip()], f"The word list {path}")


def checked_list(entries: Sequence[str], where: str) -> tuple[str, ...]:
    """The entries as texts are read, each once; refused if one is more than two words or none."""
    if len(entries) > MOST_LISTED:
        raise FileError(f"{where} has {len(entries):,} entries; the most are {MOST_LISTED:,}.")
    found: dict[str, None] = {}
    for number, entry in enumerate(entries, 1):
        parts = words_of(entry)
        if not 1 <= len(parts) <= 2:
            raise FileError(
                f"{where}, entry {number}: {entry[:40]!r} is {'no word' if not parts else 'more than two words'}; give "
                "one word, or two with a space between them, per line."
            )
        found[" ".join(parts)] = None
    if not found:
        raise FileError(f"{where} is empty.")
    return tuple(found)
