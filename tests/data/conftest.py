"""Small images in the formats that the archives have, and a local web server that misbehaves on request."""

import io
import resource
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """A cache folder of the test's own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FCILBENCH_CACHE", str(folder))
    return folder


@contextmanager
def _full_disk(limit):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def full_disk():
    """Returns `full_disk(limit)`: within it a write beyond so many bytes of a file fails as on a full disk."""
    return _full_disk


def _image(path, seed=0, size=(40, 30), mode="RGB", **options):
    """Writes a smooth image with some noise, whose format follows from the name."""
    random = np.random.default_rng(seed)
    base = np.linspace(0, 200, size[0] * size[1] * 3).reshape(size[1], size[0], 3)
    pixels = (base + random.integers(0, 50, 3)).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).convert(mode).save(path, **options)
    return path


@pytest.fixture
def image():
    """Returns `image(path, seed, (width, height), mode)`."""
    return _image


@dataclass
class DecisionRule:
    """How the server answers a path.

    Attributes:
        body: What the file is.
        status: Status code.
        stops: Bytes after which each connection breaks off; `None` sends all.
        ranges: Whether it can go on in the middle.
        length: Whether it says how long the file is.
    """

    body: bytes = b""
    status: int = 200
    stops: int | None = None
    ranges: bool = False
    length: bool = True


@dataclass
class Web:
    """A server on the loopback interface.

    Attributes:
        url: Its address.
        answers: By path.
        asked: `(path, value of the Range header)` of each request.
    """

    url: str
    answers: dict[str, DecisionRule] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)


def _handler(web):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            wanted = self.headers.get("Range", "")
            web.asked.append((self.path, wanted))
            answer = web.answers.get(self.path, DecisionRule(b"<html>gone</html>", 404))
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if answer.ranges and wanted else 0
            body = answer.body[start:]
            self.send_response(206 if start else answer.status)
            if answer.length:
                self.send_header("Content-Length", str(len(body)))
            if answer.ranges:
                self.send_header("Accept-Ranges", "bytes")
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(answer.body) - 1}/{len(answer.body)}")
            self.end_headers()
            self.wfile.write(body[: answer.stops])

        def log_message(self, *_):
            pass

    return Handler


@pytest.fixture
def web():
    web = Web("")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(web))
    web.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield web
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def answer():
    return DecisionRule


@pytest.fixture
def png():
    """A whole image file of noise, long enough to be cut."""
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(noise).save(buffer, "PNG")
    return buffer.getvalue()
