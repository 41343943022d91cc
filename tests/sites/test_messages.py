"""Messages between parties that do not trust each other: what is read, and what is refused unread."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tacit.sites.messages import MessageError, longest, read_message, refusal, weights_digest, write_message

SHAPES = {"a": (2, 3), "b": (4,)}
TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4)}


def packed(header: Any, body: bytes = b"", *, content: Any = None) -> bytes:
    line = {"protocol": 1, "kind": "round"} if content is None else content
    text = json.dumps({"__metadata__": {"message": json.dumps(line)}, **header})
    return len(text).to_bytes(8, "little") + text.encode() + body


def entry(shape: list[Any], offsets: Any, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


GOOD = {"a": entry([2, 3], [0, 24]), "b": entry([4], [24, 40])}


def test_what_is_written_is_read() -> None:
    content, tensors = read_message(write_message({"kind": "round", "n": 3}, TENSORS), SHAPES)
    assert content == {"kind": "round", "n": 3}
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in SHAPES)
    assert read_message(packed(GOOD, bytes(40)), SHAPES)[0] == {"kind": "round"}
    assert len(write_message({"kind": "round"}, TENSORS)) <= longest(SHAPES)


def test_the_same_message_has_the_same_bytes() -> None:
    other = {name: TENSORS[name].clone() for name in reversed(TENSORS)}
    assert write_message({"x": 1, "y": 2}, TENSORS) == write_message({"y": 2, "x": 1}, other)
    assert weights_digest(TENSORS) == weights_digest(other)
    other["b"][0] = 2
    assert weights_digest(TENSORS) != weights_digest(other)


REFUSED = {
    "nothing": b"",
    "no end": (1 << 40).to_bytes(8, "little") + b"{}",
    "no JSON": (2).to_bytes(8, "little") + b"xx",
    "no line": (2).to_bytes(8, "little") + b"{}",
    "a list": (2).to_bytes(8, "little") + b"[]",
    "another protocol": packed(GOOD, bytes(40), content={"protocol": 2}),
    "no object": packed(GOOD, bytes(40), content=[1]),
    "a tensor too few": packed({"a": GOOD["a"]}, bytes(24)),
    "a tensor too many": packed({**GOOD, "c": entry([0], [40, 40])}, bytes(40)),
    "another shape": packed({**GOOD, "b": entry([2, 2], [24, 40])}, bytes(40)),
    "a shape of truth values": packed({"a": entry([2, 3], [0, 24]), "b": entry([True], [24, 28])}, bytes(28)),
    "double precision": packed({**GOOD, "b": entry([4], [24, 40], "F64")}, bytes(40)),
    "overlap": packed({"a": entry([2, 3], [0, 24]), "b": entry([4], [8, 24])}, bytes(24)),
    "a gap": packed({"a": entry([2, 3], [0, 24]), "b": entry([4], [28, 44])}, bytes(44)),
    "outside": packed(GOOD, bytes(36)),
    "more behind": packed(GOOD, bytes(44)),
    "before the start": packed({"a": entry([2, 3], [-24, 0]), "b": entry([4], [0, 16])}, bytes(16)),
    "offsets that are none": packed({**GOOD, "b": entry([4], [24.0, 40.0])}, bytes(40)),
    "one offset": packed({**GOOD, "b": entry([4], [24])}, bytes(40)),
    "another key": packed({**GOOD, "b": {**entry([4], [24, 40]), "x": 1}}, bytes(40)),
    "an entry that is none": packed({**GOOD, "b": 7}, bytes(40)),
    "a key twice": (lambda text: len(text).to_bytes(8, "little") + text)(
        b'{"__metadata__":{"message":"{\\"protocol\\":1,\\"protocol\\":1}"}}'
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_anything_else_is_refused(what: str) -> None:
    with pytest.raises(MessageError):
        read_message(REFUSED[what], SHAPES)


@given(st.binary(max_size=200), st.integers(0, 200), st.integers(0, 255))
def test_a_reader_raises_message_errors_and_nothing_else(noise: bytes, place: int, byte: int) -> None:
    good = bytearray(write_message({"kind": "round"}, TENSORS))
    good[place % len(good)] = byte
    for payload in (noise, bytes(good), bytes(good[:place])):
        try:
            content, tensors = read_message(payload, SHAPES)
        except MessageError:
            continue
        assert isinstance(content, dict)
        assert not tensors or {name: tuple(t.shape) for name, t in tensors.items()} == SHAPES


def test_a_refusal_is_short() -> None:
    content, _ = read_message(refusal("x" * 10_000), {})
    assert content["kind"] == "refusal"
    assert len(content["reason"]) == 300
