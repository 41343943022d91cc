"""Masks between sites: every pair agrees on a secret that nobody else knows; what one adds, the other takes away.

The secret of a pair is X25519 of one's private key and the other's public key, which stands in the terms that both have
agreed to: whoever carries messages cannot put another key in its place. Every round at given weights has its own key,
derived from that secret, and its words are AES-256 in counter mode under it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tacit.errors import ArgumentError, FileError
from tacit.files import write_bytes
from tacit.release.shares import Mask, Words

KEY_FILE = "site.key"
_BYTES = 32
_RAW = serialization.Encoding.Raw
_PURPOSE = b"tacit secure sum 1"


def make_key(path: Path) -> str:
    """Write a new private key that only its owner can read; return the public one, in hexadecimal digits."""
    if path.exists():
        raise FileError(f"{path} already exists; a key serves one training, so make another one elsewhere.")
    private = X25519PrivateKey.generate()
    raw = private.private_bytes(_RAW, serialization.PrivateFormat.Raw, serialization.NoEncryption())
    write_bytes(path, raw.hex().encode() + b"\n", mode=0o600)
    return public_of(private)


def read_key(path: Path) -> X25519PrivateKey:
    """The private key that ``make_key`` wrote."""
    try:
        return X25519PrivateKey.from_private_bytes(bytes.fromhex(path.read_text(encoding="ascii").strip()))
    except (OSError, ValueError) as error:
        raise FileError(f"{path} holds no key of a site; tacit site key makes one.") from error


def public_of(private: X25519PrivateKey) -> str:
    """The public key of a private one, in hexadecimal digits."""
    return private.public_key().public_bytes(_RAW, serialization.PublicFormat.Raw).hex()


class Masks:
    """The masks of one site among the ``members`` of a training, whose names and public keys ``training`` names too."""

    def __init__(self, private: X25519PrivateKey, members: Mapping[str, str], training: str) -> None:
        own = public_of(private)
        found = [name for name, key in members.items() if key == own]
        if len(found) != 1:
            raise ArgumentError(
                "The key of this site is not among those of the terms; send its public part first."
            )
        (self.name,) = found
        self._training = training
        self._secrets = {
            name: _secret(private, key, name) for name, key in members.items() if name != self.name
        }

    def of_round(self, number: int, asked: str, among: Collection[str] | None = None) -> Mask:
        """The mask of a round; the masks of all sites, or of those ``among`` whom the sum is, add up to zero.

        ``asked`` is the digest of the weights and of ``among``, so that masks for different ones never cancel.
        """

        def mask(count: int) -> Words:
            total = np.zeros(count, np.uint64)
            for other, secret in self._secrets.items():
                if among is not None and other not in among:
                    continue
                pair = min(self.name, other), max(self.name, other)
                words = _words(secret, f"{self._training} {pair} {number} {asked}", count)
                total = total + words if self.name == pair[0] else total - words
            return total

        return mask


def check_public(key: str) -> None:
    """Refuse what is no public key, or one with which no secret can be agreed on."""
    try:
        if len(key) != 2 * _BYTES or key != key.lower():
            raise ValueError
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(key)))
    except ValueError as error:
        raise ArgumentError(f"{key!r} is no public key of a site; tacit site key prints one.") from error


def _secret(private: X25519PrivateKey, key: str, name: str) -> bytes:
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(key)))
    except ValueError as error:
        raise ArgumentError(f"No secret can be agreed on with {name!r}: its key is none.") from error


def _words(secret: bytes, about: str, count: int) -> Words:
    key = HKDF(hashes.SHA256(), 32, salt=_PURPOSE, info=about.encode()).derive(secret)
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * count))
    return np.frombuffer(stream, "<u8").astype(np.uint64)
