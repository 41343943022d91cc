"""Texts as bags of words: each word and pair once, by a public hash or a public list."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tacit.data.bags import BUCKETS, MOST_BUCKETS, Bags, bags_from_record, read_word_list, words_of
from tacit.data.values import word_hash
from tacit.errors import ArgumentError, FileError, TacitError


def found(bags: Bags, text: str) -> list[int]:
    (row,) = bags.ids([text])
    return [int(number) for number in row if number]


def test_words_are_in_lower_case_and_keep_their_apostrophes() -> None:
    assert words_of("I DON\u2019T, can't... 100% good!?") == ["i", "don't", "can't", "100", "good", "!", "?"]


def test_every_chinese_character_and_every_emoji_is_a_word() -> None:
    """Without spaces a sentence would be one word, which no other text has; emojis would be none."""
    assert words_of("\u623f\u95f4\u5f88\u597d\uff01Good", characters=True) == [
        *"\u623f\u95f4\u5f88\u597d\uff01",
        "good",
    ]
    assert words_of("\u3053\u306e\u30db\u30c6\u30eb", characters=True) == [
        "\u3053",
        "\u306e",
        "\u30db\u30c6\u30eb",
    ]
    assert words_of("Na\u00efve \U0001f44d\U0001f3fd\u2764\ufe0f", characters=True) == [
        "na\u00efve",
        "\U0001f44d",
        "\u2764",
    ]
    assert len(found(Bags(), "\u623f\u95f4\u5f88\u597d")) == 4
    assert found(Bags(listed=("\u5f88\u597d",)), "\u623f\u95f4 \u5f88\u597d") == [
        1
    ]  # a list is of whole words


def test_a_model_of_whole_words_goes_on_reading_whole_words() -> None:
    """Files of runs before characters counted do not speak of them."""
    record = {name: value for name, value in Bags().record.items() if name != "characters"}
    old = bags_from_record(record)
    assert len(found(old, "\u623f\u95f4\u5f88\u597d")) == 1
    assert bags_from_record(old.record) == old
    assert bags_from_record(Bags().record) == Bags()
    with pytest.raises(ValueError, match="characters"):
        bags_from_record({**record, "characters": 1})


def test_a_row_holds_every_word_and_pair_once_in_order_and_then_zeros() -> None:
    bags = Bags(buckets=1 << 20, length=9, pairs=True)
    (row,) = bags.ids(["so good so good"])
    so, good = (1 + word_hash(word) % (bags.buckets - 1) for word in ("so", "good"))
    assert row[0] == so
    assert row[2] == good
    assert len({*row[:4].tolist()}) == 4  # so, so good, good, good so
    assert row[4:].tolist() == [0] * 5
    assert found(bags, "good so")[:3] == [good, int(row[3]), so]


def test_without_pairs_only_words_count() -> None:
    assert found(Bags(), "so good so good") == found(Bags(), "so good")
    assert len(found(Bags(), "so good")) == 2


def test_ids_depend_on_the_text_alone() -> None:
    """Whatever stands beside it, and however many texts are read at once: a row of data is a function of its row."""
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{n}" for n in rng.integers(0, 50, rng.integers(0, 40))) for _ in range(600)]
    bags = Bags(buckets=5000, length=30, pairs=True)
    together = bags.ids(texts)
    for place in range(0, 600, 37):
        assert np.array_equal(bags.ids([texts[place]])[0], together[place])
    assert together.min() >= 0
    assert together.max() < bags.vocabulary


@pytest.mark.parametrize("text", ["", "   ", "... ,,, ---", "\u2019"])
def test_a_text_without_words_is_a_row_of_zeros(text: str) -> None:
    assert found(Bags(), text) == []
    assert found(Bags(listed=("good",)), text) == []


def test_no_pair_reaches_over_the_end_of_a_text() -> None:
    bags = Bags(listed=("a b",))
    assert bags.ids(["a", "b", "a b"])[:, 0].tolist() == [0, 0, 1]


def test_of_a_text_of_a_million_words_the_first_count() -> None:
    bags = Bags(length=16)
    rows = bags.ids([" ".join(f"w{n}" for n in range(1_000_000)), "w0 w1"])
    assert rows.shape == (2, 16)
    assert (rows[0] > 0).all()
    assert set(rows[1][rows[1] > 0]) < set(rows[0])


def test_listed_words_and_pairs_have_their_places_and_no_other_word_counts() -> None:
    bags = Bags(listed=("good", "not good", "bad"))
    assert bags.vocabulary == 4
    assert found(bags, "It is not good, not bad") == [2, 1, 3]


def test_a_word_list_is_read_as_texts_are(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("\ufeffGood\n\nNot  Good\ngood\nDon\u2019t\n", encoding="utf-8")
    assert read_word_list(path) == ("good", "not good", "don't")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"good\none two three\n", "entry 2: 'one two three' is more than two words"),
        (b"...\n", "is no word"),
        (b"\xff\xfe\x00", "not UTF-8"),
    ],
)
def test_a_word_list_that_is_none_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "w").write_bytes(content)
    with pytest.raises(FileError, match=said):
        read_word_list(tmp_path / "w")
    with pytest.raises(FileError, match="cannot be read"):
        read_word_list(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "sizes", [{"buckets": 1}, {"buckets": MOST_BUCKETS + 1}, {"length": 0}, {"length": 1 << 40}]
)
def test_sizes_that_make_no_sense_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ArgumentError):
        Bags(**sizes)


def test_more_texts_than_memory_are_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(np, "zeros", none_left)
    with pytest.raises(FileError, match="--length"):
        Bags().ids(["a"])


def test_a_record_gives_the_same_bags_and_an_edited_one_is_refused() -> None:
    for bags in (Bags(), Bags(buckets=77, length=5, pairs=True), Bags(listed=("good", "not good"))):
        assert bags_from_record(bags.record) == bags
    for change in (
        {"listed": ["Good"]},
        {"listed": ["a b c"]},
        {"listed": [3]},
        {"listed": "good"},
        {"buckets": 0},
        {"buckets": 2.5},
        {"length": True},
        {"pairs": 1},
        {"more": 1},
    ):
        with pytest.raises((TacitError, ValueError, TypeError)):
            bags_from_record({**Bags().record, **change})


def test_hashed_words_spread_over_all_buckets() -> None:
    numbers = Bags(length=1 << 17, pairs=True).ids([" ".join(f"word{n}" for n in range(60_000))])[0]
    numbers = numbers[numbers > 0]
    # 119,999 words and pairs thrown into as many buckets: as many different ones as chance leaves.
    expected = (BUCKETS - 1) * (1 - (1 - 1 / (BUCKETS - 1)) ** 119_999)
    assert len(numbers) == pytest.approx(expected, rel=0.005)
    counts = np.histogram(numbers, bins=16, range=(0, BUCKETS))[0]
    assert counts.min() > 0.95 * counts.mean()
