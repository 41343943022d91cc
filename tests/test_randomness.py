from __future__ import annotations

import os

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from tacit import randomness
from tacit.randomness import Keystream, Seeded


def test_a_keystream_never_repeats_itself() -> None:
    stream = Keystream()
    first, second, third = bytearray(4096 + 15), bytearray(4096 + 15), bytearray(512 + 15)
    for buffer in (first, second, third):
        stream.fill(buffer, len(buffer) - 15)
    words = np.concatenate([np.frombuffer(b, np.uint64, (len(b) - 15) // 8) for b in (first, second, third)])
    assert len(np.unique(words)) == len(words)


@pytest.mark.parametrize("several", [False, True])
def test_a_keystream_is_aes_in_counter_mode(monkeypatch: pytest.MonkeyPatch, several: bool) -> None:
    """The words are those of plain counter mode, also where the library's code for many blocks at once gives them."""
    key = bytes(range(32))
    monkeypatch.setattr(randomness, "can", lambda *features: several)
    monkeypatch.setattr(os, "urandom", lambda count: key[:count])
    stream, found = Keystream(), b""
    for count in (1000, 24, 40_000):
        buffer = bytearray(count + 15)
        stream.fill(buffer, count)
        found += bytes(buffer[:count])
    first = bytes(15) + (b"\x02" if several else b"\x00")
    assert found == Cipher(algorithms.AES(key), modes.CTR(first)).encryptor().update(bytes(len(found)))


def test_a_keystream_takes_a_new_key_before_its_counter_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(randomness, "_MOST", 4096)
    keys = iter(range(100))
    monkeypatch.setattr(os, "urandom", lambda count: bytes([next(keys)]) * count)
    stream, buffer = Keystream(), bytearray(1024 + 15)
    words = []
    for _ in range(9):
        stream.fill(buffer, 1024)
        words.append(np.frombuffer(buffer, np.uint64, 128).copy())
    assert next(keys) == 3
    assert len(np.unique(np.concatenate(words))) == 9 * 128


def test_two_keystreams_have_nothing_in_common() -> None:
    one, other = bytearray(4096 + 15), bytearray(4096 + 15)
    Keystream().fill(one, 4096)
    Keystream().fill(other, 4096)
    assert not np.intersect1d(np.frombuffer(one, np.uint64, 512), np.frombuffer(other, np.uint64, 512)).size


@pytest.mark.parametrize("same_number", [False, True])
def test_a_forked_process_has_its_own_keystream(monkeypatch: pytest.MonkeyPatch, same_number: bool) -> None:
    if same_number:  # as in another namespace, or when the system gives a number out again
        monkeypatch.setattr(os, "getpid", lambda: 1)
    stream = Keystream()
    stream.uniform(4)
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receive)
        os.write(send, stream.uniform(64).tobytes())
        os._exit(0)
    os.close(send)
    data = b""
    while part := os.read(receive, 1 << 16):
        data += part
    os.close(receive)
    os.waitpid(child, 0)
    theirs = np.frombuffer(data, np.float64)
    assert len(theirs) == 64
    assert not np.intersect1d(theirs, stream.uniform(64)).size


def test_uniforms_are_uniform_below_one() -> None:
    for source in (Keystream(), Seeded(3, 5)):
        drawn = source.uniform(50_000)
        assert drawn.min() >= 0
        assert drawn.max() < 1
        assert stats.kstest(drawn, "uniform").pvalue > 1e-7
        assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 0.03


def test_a_seed_and_a_position_fix_the_numbers() -> None:
    assert np.array_equal(Seeded(1, 2).uniform(9), Seeded(1, 2).uniform(9))
    drawn = [Seeded(seed, place).uniform(500) for seed in (0, 1, 2) for place in (0, 1, 2)]
    assert len(np.unique(np.concatenate(drawn))) == 9 * 500
