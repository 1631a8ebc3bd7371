"""`--offline`: a process that opens no connection to another host."""

from __future__ import annotations

import ipaddress
import sys
from typing import Any

from fcilbench.errors import PrerequisiteError

_installed = False


def refuse_network() -> None:
    """Refuses, from now on and for the whole process, connections and name look-ups beyond this host.

    It listens to Python's audit events, so C extensions that go through the `socket` module are covered as well;
    a library that calls the system by itself is not, nor is the name look-up inside a bare `socket.connect` (the
    connection that follows is). Unix sockets and the loopback interface stay allowed.
    """
    global _installed  # noqa: PLW0603 - an audit hook cannot be taken back, so once is enough
    if not _installed:
        _installed = True
        sys.addaudithook(_hook)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        target = arguments[1]
        host = target[0] if isinstance(target, tuple) and target else None
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = arguments[0]
    else:
        return
    if isinstance(host, bytes):
        host = host.decode(errors="replace")
    if isinstance(host, str) and not _here(host):
        raise PrerequisiteError(
            f"offline: connection to {host} refused", hint="fetch what is needed first, or run without --offline"
        )


def _here(host: str) -> bool:
    if host in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
