"""Where random bits come from: a cryptographic keystream, or a seed for experiments that are not for release."""

from __future__ import annotations

import os

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tacit.processor import can

_WORD = 8
_MOST = 1 << 35
"""Bytes under one key: half of what a counter of 32 bits is good for."""
_forks = 0


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


def this_process() -> tuple[int, int]:
    """What no process shares with one that it was forked from: a number alone can be given out again."""
    return os.getpid(), _forks


class Keystream:
    """Unpredictable 64-bit words: AES-256 in counter mode under a fresh key from the operating system.

    The key is never written anywhere and the counter never goes back, so no word is ever given twice. A process that
    was forked takes a new key before its first word, and so does every process after 2³¹ blocks.

    Counter mode with a tag (GCM) gives the same words, and more than twice as fast where the processor encrypts several
    blocks at once: libraries use that there only. The tag is not taken.
    """

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._process = this_process()
        counter = modes.GCM(bytes(12)) if can("vaes", "vpclmulqdq") else modes.CTR(bytes(16))
        cipher = Cipher(algorithms.AES(os.urandom(32)), counter)
        self._encryptor = cipher.encryptor()
        self._left = _MOST
        self._zeros = memoryview(b"")

    def fill(self, buffer: bytearray, count: int) -> None:
        """Overwrite the first ``count`` bytes of a buffer, which must be at least 15 bytes longer, with fresh ones."""
        if this_process() != self._process or count > self._left:
            self._start()
        if len(self._zeros) < count:
            self._zeros = memoryview(bytes(count))
        self._encryptor.update_into(self._zeros[:count], buffer)
        self._left -= count

    def uniform(self, count: int) -> np.ndarray:
        """Independent uniform doubles in [0, 1), in steps of 2⁻⁵³."""
        buffer = bytearray(_WORD * count + 15)
        self.fill(buffer, _WORD * count)
        words = np.frombuffer(buffer, np.uint64, count)
        return (words >> np.uint64(11)) * 2.0**-53


class Keyed:
    """Unpredictable uniforms that processes with one key draw alike: AES-256 in counter mode from a position's counter.

    Stretches of 2⁶⁴ counters belong to one position, so those of two positions never meet.
    """

    def __init__(self, key: bytes, position: int) -> None:
        self._encryptor = Cipher(algorithms.AES(key), modes.CTR(position.to_bytes(8) + bytes(8))).encryptor()

    def uniform(self, count: int) -> np.ndarray:
        """Independent uniform doubles in [0, 1), in steps of 2⁻⁵³."""
        words = np.frombuffer(self._encryptor.update(bytes(_WORD * count)), np.uint64)
        return (words >> np.uint64(11)) * 2.0**-53


class Seeded:
    """Reproducible uniforms for experiments: the same seed and position give the same numbers."""

    def __init__(self, seed: int, position: int) -> None:
        self._generator = np.random.Generator(
            np.random.Philox(
                key=np.array([seed % 2**64, 0x7AC17], np.uint64),
                counter=np.array([0, 0, 0, position], np.uint64),
            )
        )

    def uniform(self, count: int) -> np.ndarray:
        """Independent uniform doubles in [0, 1)."""
        return self._generator.random(count)
