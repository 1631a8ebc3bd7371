"""What is missing on this machine: files of data sets, by their layouts."""

from fcilbench.suite.check import download_bytes, missing_data
from fcilbench.suite.expand import Expansion


def expansion(**facts):
    return Expansion(
        name="s",
        cells=[],
        excluded=[],
        prerequisites=[],
        blocked=0,
        axes={},
        facts={f"dataset:{name}": {**value, "plugin": f"lab/{name}"} for name, value in facts.items()},
    )


ARCHIVE = {"url": "https://host/a.zip", "size": 2_000_000_000}


def test_a_data_set_is_here_if_one_of_its_layouts_is(tmp_path):
    known = expansion(a={"layouts": [["a/train", "a/test"], ["a.npz"]]}, b={"layouts": []}, c={})
    (found,) = missing_data(known, tmp_path)
    assert found.name == "lab/a"
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "train").touch()
    assert missing_data(known, tmp_path)
    (tmp_path / "a.npz").touch()
    assert missing_data(known, tmp_path) == []


def test_it_says_how_to_get_it_and_how_much_that_is(tmp_path):
    layouts = {"layouts": [["x"]], "homepage": "https://home"}
    known = expansion(
        a={**layouts, "archives": [ARCHIVE, ARCHIVE]},
        b={**layouts, "archives": [{**ARCHIVE, "url": ""}]},
        c={**layouts, "archives": [{**ARCHIVE, "size": None}]},
    )
    found = missing_data(known, tmp_path)
    assert str(found[0]) == "data set lab/a, 4.00 GB to download: fcilbench data fetch lab/a"
    assert str(found[1]) == "data set lab/b, 2.00 GB to download: put it there by hand, from https://home"
    assert str(found[2]) == "data set lab/c: fcilbench data fetch lab/c"
    assert download_bytes(found) is None
    assert download_bytes(found[:2]) == 6_000_000_000
    assert download_bytes([]) == 0
