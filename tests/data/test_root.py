from pathlib import Path

import pytest

from fcilbench.data.root import data_root, download_bytes, file_digest, find_data, find_weights, lookups, missing_data
from fcilbench.errors import PrerequisiteError


def test_option_wins_over_environment_over_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FCILBENCH_DATA", str(tmp_path / "environment"))
    assert data_root(tmp_path / "option") == tmp_path / "option"
    assert data_root() == tmp_path / "environment"
    monkeypatch.setenv("FCILBENCH_DATA", "")
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path / "cache" / name)
    assert data_root() == tmp_path / "cache" / "fcilbench" / "data"


def test_root_is_absolute_and_expands_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert data_root(Path("here")) == tmp_path / "here"
    assert data_root(Path("~/data")) == tmp_path / "home" / "data"


def test_weights_in_the_current_directory_win_over_the_data_root(tmp_path, monkeypatch):
    near, shelf = tmp_path / "near", tmp_path / "root" / "weights"
    for folder in (near, shelf):
        folder.mkdir(parents=True)
        (folder / "a.safetensors").write_bytes(b"x")
    monkeypatch.chdir(near)
    monkeypatch.setenv("FCILBENCH_DATA", str(tmp_path / "root"))
    assert find_weights("a.safetensors") == near / "a.safetensors"
    (near / "a.safetensors").unlink()
    assert find_weights("a.safetensors") == shelf / "a.safetensors"
    assert find_weights(str(shelf / "a.safetensors")) == shelf / "a.safetensors"


def test_missing_weights_name_every_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FCILBENCH_DATA", str(tmp_path / "root"))
    with pytest.raises(PrerequisiteError) as caught:
        find_weights("b.safetensors")
    assert caught.value.message == (
        f"weights file 'b.safetensors' not found; looked at {tmp_path}/b.safetensors, "
        f"{tmp_path}/root/weights/b.safetensors"
    )
    assert str(tmp_path / "root" / "weights") in (caught.value.hint or "")
    with pytest.raises(PrerequisiteError, match=f"looked at {tmp_path}/c.safetensors$"):
        find_weights(str(tmp_path / "c.safetensors"))


def test_a_folder_is_not_a_weights_file(tmp_path):
    with pytest.raises(PrerequisiteError, match="not found"):
        find_weights(str(tmp_path))


def test_sha256(tmp_path):
    file = tmp_path / "abc"
    file.write_bytes(b"abc")  # the example of FIPS 180-2, appendix B.1
    assert file_digest(file) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    with pytest.raises(PrerequisiteError, match="No such file"):
        file_digest(tmp_path / "none")


def declared(**facts):
    return {f"dataset:{name}": {**value, "plugin": f"lab/{name}"} for name, value in facts.items()}


ARCHIVE = {"url": "https://host/a.zip", "size": 2_000_000_000}


def test_a_data_set_is_here_if_one_of_its_layouts_is(tmp_path):
    known = declared(a={"layouts": [["a/train", "a/test"], ["a.npz"]]}, b={"layouts": []}, c={})
    (found,) = missing_data(known, tmp_path).items()
    assert (found[0], found[1].name, found[1].place) == ("a", "lab/a", str(tmp_path / "a" / "train"))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "train").touch()
    assert missing_data(known, tmp_path)["a"].place == str(tmp_path / "a" / "test")
    (tmp_path / "a.npz").touch()
    assert missing_data(known, tmp_path) == {}


def test_it_says_how_to_get_it_and_how_much_that_is(tmp_path):
    layouts = {"layouts": [["x"]], "homepage": "https://home"}
    known = declared(
        a={**layouts, "archives": [ARCHIVE, ARCHIVE]},
        b={**layouts, "archives": [{**ARCHIVE, "url": ""}]},
        c={**layouts, "archives": [{**ARCHIVE, "size": None}]},
    )
    root = tmp_path / "my data"
    found = list(missing_data(known, root).values())
    fetch, place = f"--data '{root}'", f"no {root}/x"
    assert str(found[0]) == f"data set lab/a ({place}, 4.00 GB to download): fcilbench data fetch lab/a {fetch}"
    assert str(found[1]) == f"data set lab/b ({place}, 2.00 GB to download): put it there by hand, from https://home"
    assert str(found[2]) == f"data set lab/c ({place}): fcilbench data fetch lab/c {fetch}"
    assert download_bytes(found) is None
    assert download_bytes(found[:2]) == 6_000_000_000
    assert download_bytes([]) == 0


def test_the_places_that_an_answer_depends_on_are_collected(tmp_path, monkeypatch):
    root, near = tmp_path / "root", tmp_path / "near"
    for folder in (root / "weights" / "bert", near):
        folder.mkdir(parents=True)
    (root / "weights" / "bert" / "config.json").touch()
    monkeypatch.chdir(near)
    monkeypatch.setenv("FCILBENCH_DATA", str(root))
    with lookups() as found:
        find_weights("bert/config.json")
        with pytest.raises(PrerequisiteError):
            find_data("t.csv")
    model = root / "weights" / "bert"
    assert [*found] == [near / "bert/config.json", model / "config.json", model, near / "t.csv", root / "t.csv"]
    find_weights("bert/config.json")
    assert len(found) == 5
