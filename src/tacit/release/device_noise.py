"""Gaussian noise made on a device: a cipher in counter mode and Box and Muller's transform, in tensor operations.

The cipher is ChaCha20 (RFC 8439), in additions, exclusive ors and rotations of 32-bit words, which every device has.
Whoever does not know its 256-bit key cannot tell its words from random ones by any known attack. The key comes from the
operating system, is never written down and never used by two processes; every piece has a nonce of its own. Only the
key's eight words go to the device, as arguments of operations.
"""

from __future__ import annotations

import math
import os

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from torch import Tensor

from tacit.randomness import this_process

PAIRS = 512
BLOCK = 2 * PAIRS
"""Normal numbers that belong together: 512 words of 64 bits for radii, then 512 for directions."""
PIECE = 1024 * BLOCK
"""Numbers that are made at once: 8 MB. A piece takes about 600 operations, so small parameters share one."""
_CONSTANTS = tuple(int.from_bytes(b"expand 32-byte k"[4 * i : 4 * i + 4], "little") for i in range(4))
_WORDS_PER_NUMBER = 2


class MadeThere:
    """Standard normal numbers on one device, of which none is given twice.

    A process that was forked takes a key of its own, and nothing of what its parent had ready.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start()

    def _start(self) -> None:
        self._process, self._key, self._pieces = this_process(), os.urandom(32), 0
        self._left = torch.zeros(0, dtype=torch.float64, device=self._device)

    def take(self, count: int) -> Tensor:
        """``count`` of them."""
        if this_process() != self._process:
            self._start()
        parts = [self._left[:0]]
        while count:
            if not len(self._left):
                self._left = normals(keystream(self._key, self._pieces, _blocks(PIECE), self._device))
                self._pieces += 1
            part, self._left = self._left[:count], self._left[count:]
            parts.append(part)
            count -= len(part)
        return parts[1] if len(parts) == 2 else torch.cat(parts)


def keystream(key: bytes, nonce: int, blocks: int, device: torch.device) -> Tensor:
    """ChaCha20's words (blocks, 16) for one key and nonce, from the counter 0 on: signed, of 32 bits, on a device."""
    secret = [int.from_bytes(key[4 * i : 4 * i + 4], "little") for i in range(8)]
    number = [nonce >> 32 * i & 0xFFFFFFFF for i in range(3)]
    state = torch.empty(4, 4, blocks, dtype=torch.int32, device=device)
    for place, word in enumerate([*_CONSTANTS, *secret, 0, *number]):
        state[place // 4, place % 4].fill_(_signed(word))
    torch.arange(blocks, out=state[3, 0])
    a, b, c, d = (row.clone() for row in state)
    spare = torch.empty_like(a)
    for _ in range(10):
        _quarter_rounds(a, b, c, d, spare)
        b, c, d = b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0)
        _quarter_rounds(a, b, c, d, spare)
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    for row, mixed in zip(state, (a, b, c, d), strict=True):
        row += mixed
    return state.view(16, blocks).t().contiguous()


def _quarter_rounds(a: Tensor, b: Tensor, c: Tensor, d: Tensor, spare: Tensor) -> None:
    """Four quarter rounds, one per column, of every block, in place."""
    for left, right, other, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        left += right
        other ^= left
        # A shift to the right brings in the sign, which the mask takes away.
        torch.bitwise_right_shift(other, 32 - turn, out=spare)
        spare &= (1 << turn) - 1
        other <<= turn
        other |= spare


def normals(words: Tensor) -> Tensor:
    """Standard normal numbers in double precision from words of 32 bits: the tensor form of noise.c.

    Two words, the low one first, make one of 64 bits. The results are those of noise.c up to rounding.
    """
    low, high = words.view(-1, 2, PAIRS, 2).unbind(-1)
    # All 64 bits decide the radius, so that the tail reaches to 9.4 standard deviations.
    uniform = _unsigned(high[:, 0]).mul_(2.0**-32).add_(_unsigned(low[:, 0]).add_(1), alpha=2.0**-64)
    radius = uniform.log_().mul_(-2).sqrt_()
    # A direction: 52 bits within a quarter of the circle, a mirror at the diagonal, a turn by half the circle.
    within = ((low[:, 1] >> 12) & 0xFFFFF).double().mul_(2.0**-52)
    angle = within.add_(high[:, 1].double(), alpha=2.0**-32).mul_(math.pi / 2)
    mirrored, turned = (low[:, 1] & 1).bool(), (low[:, 1] & 2).bool()
    radius = torch.where(turned, -radius, radius)
    sine, cosine = angle.sin().mul_(radius), angle.cos().mul_(radius)
    return torch.stack(
        [torch.where(mirrored, sine, cosine), torch.where(mirrored, cosine, sine)], 1
    ).flatten()


def works_on(device: torch.device) -> bool:
    """Whether integer operations of a device give the cipher, word for word, as a library computes it."""
    key, nonce, blocks = bytes(range(32)), 0x1_0000_0002, 2
    reference = Cipher(
        algorithms.ChaCha20(key, bytes(4) + nonce.to_bytes(12, "little")), mode=None
    ).encryptor()
    expected = torch.frombuffer(bytearray(reference.update(bytes(64 * blocks))), dtype=torch.int32)
    return torch.equal(keystream(key, nonce, blocks, device).cpu().flatten(), expected)


def _blocks(numbers: int) -> int:
    return numbers * _WORDS_PER_NUMBER // 16


def _unsigned(words: Tensor) -> Tensor:
    """The value of words of 32 bits without a sign, in double precision."""
    return (words.long() & 0xFFFFFFFF).double()


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word
