"""An archive in which a data set is published; fetched without torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Archive:
    """A file that holds a data set or a part of it.

    Attributes:
        file: Its official name; it lies in `archives/` under the data root.
        checksum: `md5:` or `sha256:` and the digits, as published.
        published: Who publishes the checksum.
        url: Its address; "" if it must be put there by hand (licence, dead link).
        size: Bytes, or `None` if it is not published.
        folder: Folder under the data root into which it is unpacked; "" is the data root itself.
    """

    file: str
    checksum: str
    published: str
    url: str = ""
    size: int | None = None
    folder: str = ""
