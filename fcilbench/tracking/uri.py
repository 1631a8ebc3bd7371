"""Where a tracker writes to, and whether anything listens there."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

VARIABLES = ("FCILBENCH_TRACKING_URI", "MLFLOW_TRACKING_URI")
_PORTS = {"http": 80, "https": 443}
_SERVED = ("http", "https", "databricks", "databricks-uc", "uc")


def tracking_uri(root: Path, option: str | None = None) -> str:
    """Returns the tracking URI: the option, else the environment, else a SQLite file in the results folder.

    Args:
        root: The results folder.
        option: What the user asked for.

    Example:
        >>> tracking_uri(Path("/data/results"), "http://tracking:5000")
        'http://tracking:5000'
    """
    for value in (option, *(os.environ.get(name) for name in VARIABLES)):
        if value:
            return value
    return f"sqlite:///{root.resolve() / 'mlflow.db'}"


def artifact_location(root: Path, uri: str) -> str | None:
    """Returns where a new experiment keeps its files; `None` leaves it to a server that has its own place."""
    if urlsplit(uri).scheme in _SERVED:
        return None
    return (root.resolve() / "mlartifacts").as_uri()


def unreachable(uri: str, seconds: float = 3.0) -> str | None:
    """Says why a tracking server cannot be reached, without importing MLflow.

    Args:
        uri: Tracking URI; only `http` and `https` ones are tried.
        seconds: How long to wait for a connection.

    Returns:
        One line, or `None` if something listens there (or there is nothing to try).
    """
    parts = urlsplit(uri)
    if parts.scheme not in _PORTS:
        return None
    try:
        address = (parts.hostname or "", parts.port or _PORTS[parts.scheme])
        socket.create_connection(address, timeout=seconds).close()
    except (OSError, ValueError) as error:
        return f"no answer from {without_password(uri)}: {error}"
    return None


def without_password(uri: str) -> str:
    """Returns a URI fit for messages: without user name and password.

    Example:
        >>> without_password("https://ann:secret@tracking:5000/x")
        'https://tracking:5000/x'
    """
    scheme, mark, rest = uri.partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{mark}{authority.rpartition('@')[2]}{slash}{path}" if mark else uri
