"""Processes of their own, forked from a server that has imported the libraries and done nothing else."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "opacus", "tacit", "benchmarks.contenders"])


@dataclass(frozen=True)
class Failure:
    """Why a contender could not do what was asked."""

    reason: str


def _reason(error: BaseException) -> str:
    first_line = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first_line}"[:200]


def _serve(
    connection: Connection, threads: int, make_server: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")
    server = None
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        try:
            if server is None:
                server = make_server(*arguments)
            connection.send(getattr(server, request[0])(*request[1:]))
        except Exception as error:
            connection.send(Failure(_reason(error)))


class Isolated:
    """An object that lives in a process of its own; `call` runs one of its methods there and waits.

    An exception, or the death of the process, comes back as a Failure: one contender cannot end the run.
    """

    def __init__(self, make_server: Callable[..., Any], *arguments: Any, threads: int) -> None:
        self._connection, other = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(
            target=_serve, args=(other, threads, make_server, arguments), daemon=True
        )
        self._process.start()
        other.close()

    def call(self, method: str, *arguments: Any) -> Any:
        """The value of `method(*arguments)`, or a Failure."""
        try:
            self._connection.send((method, *arguments))
            return self._connection.recv()
        except (EOFError, OSError):
            self._process.join(5)
            return Failure(f"the process ended with exit code {self._process.exitcode}")

    @property
    def alive(self) -> bool:
        """Whether the process can still be called."""
        return self._process.is_alive()

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
