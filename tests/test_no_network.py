"""No test reaches another machine by accident."""

from __future__ import annotations

import socket
import urllib.request

import pytest

from no_network import NetworkRefusedError

# Reserved for documents: nobody is there even if the guard fails.
ELSEWHERE = "192.0.2.1"


@pytest.mark.parametrize("call", ["connect", "connect_ex"])
def test_a_connection_to_another_machine_is_refused(call: str) -> None:
    with socket.socket() as one, pytest.raises(NetworkRefusedError, match=r"not 192\.0\.2\.1"):
        getattr(one, call)((ELSEWHERE, 9))


def test_a_datagram_and_a_name_are_refused() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as one, pytest.raises(NetworkRefusedError):
        one.sendto(b"", (ELSEWHERE, 9))
    with socket.socket(socket.AF_INET6) as one, pytest.raises(NetworkRefusedError):
        one.connect(("2001:db8::1", 9))
    with pytest.raises(NetworkRefusedError, match=r"not example\.invalid"):
        urllib.request.urlopen("http://example.invalid/", timeout=1)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_loopback_works(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection((host, port), timeout=10) as client, server.accept()[0] as answer:
            answer.sendall(b"here")
            assert client.recv(4) == b"here"


def test_pairs_of_sockets_work() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.sendall(b"here")
        assert other.recv(4) == b"here"
