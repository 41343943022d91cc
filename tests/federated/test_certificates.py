from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path

import pytest

from tacit.federated.flower.certificates import (
    AUTHORITY_FILE,
    SERVER_CERTIFICATE_FILE,
    SERVER_KEY_FILE,
    make_certificates,
    make_node_key,
)


def handshake(server_folder: Path, trusted_folder: Path, name: str) -> None:
    """Connect to a server with one folder's certificate, trusting the other folder's authority."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(server_folder / SERVER_CERTIFICATE_FILE, server_folder / SERVER_KEY_FILE)
    client = ssl.create_default_context(cafile=str(trusted_folder / AUTHORITY_FILE))
    left, right = socket.socketpair()

    def serve() -> None:
        try:
            server.wrap_socket(left, server_side=True).close()
        except OSError:
            left.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(right, server_hostname=name):
            pass
    finally:
        right.close()
        thread.join()


def test_the_server_is_trusted_under_its_own_authority_only(tmp_path: Path) -> None:
    ours, other = tmp_path / "ours", tmp_path / "other"
    make_certificates(ours)
    make_certificates(other)
    handshake(ours, ours, "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(ours, other, "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(ours, ours, "10.0.0.1")


def test_keys_are_private_and_made_once(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    before = (tmp_path / SERVER_KEY_FILE).read_bytes()
    make_certificates(tmp_path)
    assert (tmp_path / SERVER_KEY_FILE).read_bytes() == before
    public = make_node_key(tmp_path / "node-0.key")
    content = public.read_bytes()
    assert content.startswith(b"ecdsa-sha2-nistp384 ")
    assert make_node_key(tmp_path / "node-0.key").read_bytes() == content
    for name in (SERVER_KEY_FILE, "node-0.key"):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0
