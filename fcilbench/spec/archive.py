"""An archive that a data set is published in; stdlib only, so that the command line can fetch it without torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Archive:
    """A file that holds a data set or a part of it.

    Attributes:
        file: Its official name; it lies in `archives/` under the data root.
        checksum: `md5:` or `sha256:` and the digits, as published: it is never fetched without.
        published: Who publishes the checksum.
        url: Where it is fetched from; "" if it is not (licence, dead link), so that it is put there by hand.
        size: Bytes, or `None` if nobody says.
        folder: Folder under the data root that its content belongs into; "" is the data root itself.
    """

    file: str
    checksum: str
    published: str
    url: str = ""
    size: int | None = None
    folder: str = ""
