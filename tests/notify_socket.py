"""The service manager's side of sd_notify(3): a real datagram socket, and what arrived there."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Self

Message = dict[str, str]
"""One datagram: its assignments by name."""


class NotifySocket:
    """Listens where `environment` says; a path in `folder`, or an abstract name."""

    def __init__(self, folder: Path, *, abstract: bool = False) -> None:
        path = str(folder / "notify")
        self.environment = {"NOTIFY_SOCKET": "@" + path if abstract else path}
        self.messages: list[Message] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + path if abstract else path)
        self._socket.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def read(self) -> list[Message]:
        """Everything that arrived so far."""
        while True:
            try:
                datagram = self._socket.recv(1 << 16)
            except BlockingIOError:
                return self.messages
            assignments = (line.partition("=") for line in datagram.decode().split("\n"))
            self.messages.append({name: value for name, _, value in assignments})

    def said(self, name: str) -> list[str]:
        """Every value of that name so far, oldest first."""
        return [message[name] for message in self.read() if name in message]
