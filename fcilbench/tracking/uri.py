"""Tracking URIs: which one is used, whether a server answers, and how to show one without its secrets."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from urllib.parse import unquote, urlsplit

VARIABLES = ("FCILBENCH_TRACKING_URI", "MLFLOW_TRACKING_URI")
_PORTS = {"http": 80, "https": 443}


def tracking_uri(root: Path, option: str | None = None) -> str:
    """Returns the tracking URI: the option, else the environment, else a SQLite file in the results folder.

    Example:
        >>> tracking_uri(Path("/data/results"), "http://tracking:5000")
        'http://tracking:5000'
    """
    for value in (option, *(os.environ.get(name) for name in VARIABLES)):
        if value:
            return value
    return f"sqlite:///{root.resolve() / 'mlflow.db'}"


def unreachable(uri: str) -> str | None:
    """Returns why an http(s) tracking server cannot be reached, in one line; `None` if it can, or for other URIs."""
    scheme = uri.partition("://")[0]
    if scheme not in _PORTS:
        return None
    try:
        parts = urlsplit(uri)
        address = (parts.hostname or "", parts.port or _PORTS[scheme])
    except ValueError:
        shown = without_password(uri)
        return f"{shown} is not a URL with a legal port (special characters of a password are percent-encoded)"
    try:
        socket.create_connection(address, timeout=3.0).close()
    except (OSError, OverflowError) as error:
        return f"no answer from {without_password(uri)}: {scrub(str(error), uri)}"
    return None


def without_password(uri: str) -> str:
    """Returns a URI without user name, password and query.

    Example:
        >>> without_password("https://ann:secret@tracking:5000/x?token=secret")
        'https://tracking:5000/x'
    """
    scheme, mark, rest = uri.partition("://")
    if not mark:
        return uri
    # In the path of a file an @ is a letter; elsewhere everything before the last @ may be a password.
    shown = rest if rest.startswith("/") else rest.rpartition("@")[2]
    return f"{scheme}{mark}{re.split('[?#]', shown)[0]}"


def scrub(text: str, uri: str) -> str:
    """Returns a text, such as the message of an exception, without the secrets of a URI."""
    text = text.replace(uri, without_password(uri))
    user, at, place = uri.partition("://")[2].rpartition("@")
    password, query = user.partition(":")[2], re.split("[?#]", place, maxsplit=1)[1:]
    found = {user if at else "", password, *re.split("[/?#@:]", password), *query}
    found |= {value.partition("=")[2] for each in query for value in re.split("[&;#]", each)}
    for secret in sorted({*found, *map(unquote, found)}, key=len, reverse=True):
        if len(secret) > 1:
            text = text.replace(secret, "***")
    return text
