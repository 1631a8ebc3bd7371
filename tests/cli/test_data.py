"""`fcilbench data` against a server on the loopback interface."""

import hashlib
import io
import json
import tarfile
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

PLUGIN = """\
import numpy as np
from fcilbench.spec.archive import Archive
from fcilbench.api.dataset import Corpus, Dataset, Samples

class Pets(Dataset):
    "Two numbers."
    classes, default_tasks, train_samples, test_samples, cached = 2, 2, 2, 2, True
    layouts = (("pets/train", "pets/test"),)
    archives = (Archive("pets.tar", "CHECKSUM", published="us", url="URL/pets.tar"),)
    homepage = "https://pets.example"

    def load(self, root):
        halves = []
        for split in ("train", "test"):
            values = np.frombuffer((root / "pets" / split).read_bytes(), dtype=np.uint8)
            halves.append(Samples(values.reshape(2, 1, 1, 1), np.arange(2)))
        return Corpus(*halves, ("cat", "dog"))
"""


def archive():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("pets/train", "pets/test"):
            entry = tarfile.TarInfo(name)
            entry.size = 2
            tar.addfile(entry, io.BytesIO(b"\x01\x02"))
    return buffer.getvalue()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Address and folder of a server."""
    folder = tmp_path_factory.mktemp("served")

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(folder))

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", folder
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def site(put, tmp_path_factory, served):
    """A folder of packages with a third party's data set `pets`."""
    checksum = f"md5:{hashlib.md5(archive()).hexdigest()}"
    source = PLUGIN.replace("CHECKSUM", checksum).replace("URL", served[0])
    return put(
        tmp_path_factory.mktemp("site"), "petshop", {"petshop.py": source}, {"datasets": {"pets": "petshop:Pets"}}
    )


@pytest.fixture
def pets(cli, site, served):
    """The command line with that data set, whose archive is served."""
    (served[1] / "pets.tar").write_bytes(archive())
    cli.environment["PYTHONPATH"] += f":{site}"
    return cli


def test_fetch_then_list_and_verify(pets, served):
    root = pets.folder / "data"
    here = {each["name"]: each["here"] for each in pets.json("data", "list")["datasets"]}
    assert here["petshop/pets"] is False
    assert here["fcilbench/cars196"] is False
    assert here["fcilbench/digits"] is None

    done = pets("data", "fetch", "pets", "digits")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"petshop/pets: {root}/pets/train {root}/pets/test",
        "fcilbench/digits: needs no files of its own",
    ]
    assert "fetching pets.tar" in done.stderr

    (served[1] / "pets.tar").unlink()
    again = pets("data", "fetch", "pets", "--offline")
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout == f"petshop/pets: {root}/pets/train {root}/pets/test\n"
    verified = pets.json("data", "verify", "pets", "digits")["datasets"]
    assert [(each["name"], each["ok"]) for each in verified] == [("petshop/pets", True), ("fcilbench/digits", True)]
    assert verified[0]["digest"].startswith("sha256:")
    assert verified[1]["digest"] == verified[1]["declared"]
    here = {
        each["name"]: each["here"] for each in json.loads(pets("data", "list", "--format", "json").stdout)["datasets"]
    }
    assert here["petshop/pets"] is True


def test_what_cannot_be_fetched_is_told_and_hurts_no_other(pets, served):
    (served[1] / "pets.tar").write_bytes(b"something else")
    missing = pets("data", "verify", "cars196")
    assert (missing.returncode, str(pets.folder / "data") in missing.stdout) == (5, True)
    done = pets("data", "fetch", "cars196", "pets", "digits")
    assert done.returncode == 5
    assert done.stdout == "fcilbench/digits: needs no files of its own\n"
    lines = [line for line in done.stderr.splitlines() if not line.startswith("fetching")]
    assert [line.split(":")[0] for line in lines] == ["error", "hint", "error", "hint"]
    assert "cars196: cars_train.tgz, cars_test.tgz" in lines[0]
    assert f"pets: {served[0]}/pets.tar: what came, 14 bytes, does not have the published checksum" in lines[2]
    assert f"put pets.tar (md5:{hashlib.md5(archive()).hexdigest()}, published by us) into" in lines[3]
    assert not list((pets.folder / "data").rglob("*pets.tar*"))
