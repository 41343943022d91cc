"""The suite reaches nothing beyond this machine: a connection to anything but the loopback interface is refused."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Callable
from functools import wraps
from typing import Any

# What other packages read before they call home, here and in the processes that tests start.
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class NetworkRefusedError(RuntimeError):
    """A test wanted to reach another machine. It is no OSError, so nobody takes it for a network that is down."""


def is_local(family: int, host: object) -> bool:
    """Whether an address of this family stays on this machine."""
    if family not in (socket.AF_INET, socket.AF_INET6, socket.AF_UNSPEC):
        return True
    name = host.decode() if isinstance(host, bytes) else host
    if name in (None, "", "localhost", socket.gethostname()):
        return True
    try:
        address = ipaddress.ip_address(str(name).partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _refuse(family: int, address: object) -> None:
    host = address[0] if isinstance(address, tuple) and address else address
    if not is_local(family, host):
        raise NetworkRefusedError(f"A test may reach the loopback interface only, not {host}.")


def _guarded(call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def guarded(self: socket.socket, *arguments: Any) -> Any:
        _refuse(self.family, arguments[-1])  # of sendto too, the address comes last
        return call(self, *arguments)

    return guarded


def keep_to_this_machine() -> None:
    """Guard every socket of this process and tell known packages to stay offline."""
    os.environ.update(OFFLINE)
    for name in ("connect", "connect_ex", "sendto"):
        setattr(socket.socket, name, _guarded(getattr(socket.socket, name)))
    look_up = socket.getaddrinfo

    @wraps(look_up)
    def guarded_look_up(host: Any, *arguments: Any, **named: Any) -> Any:
        _refuse(socket.AF_UNSPEC, host)
        return look_up(host, *arguments, **named)

    socket.getaddrinfo = guarded_look_up
