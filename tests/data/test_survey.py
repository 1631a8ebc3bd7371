"""Surveys of images: sides that are shorter than `size`, and folders that are not read."""

from PIL import Image

from fcilbench.cli.inspect import _image_facts
from fcilbench.data.survey import survey
from fcilbench.plugins.datasets.own import ImageFolder


def surveyed(folder, **options):
    return survey(ImageFolder(ImageFolder.Params(path=str(folder), test_share=0.5, **options)), folder)[0]


def test_an_image_is_enlarged_if_a_side_is_shorter_than_that_of_size(tmp_path, image):
    """A size with two sides was a TypeError."""
    on_its_side = Image.Exif()
    on_its_side[0x0112] = 6
    for name in ("cat", "dog"):
        image(tmp_path / name / "wide.png", 1, (40, 30))
        image(tmp_path / name / "high.png", 2, (30, 40))
        image(tmp_path / name / "turned.jpg", 3, (30, 40), exif=on_its_side)
    images = surveyed(tmp_path, size=(20, 40))["images"]
    assert (images["decoded"], images["enlarged"], images["turned"]) == ((20, 40), 2, 2)
    told = "2 images with a side shorter than the 20 (height) or 40 (width) pixels of `size`"
    assert ("enlarged", told) in [*_image_facts(images)]
    assert surveyed(tmp_path, size=32)["images"]["enlarged"] == 6


def test_class_folders_that_are_hidden_are_named(tmp_path, image):
    """A class whose name begins with a dot was lost without a word."""
    for name in ("cat", "dog", ".net"):
        for number in range(2):
            image(tmp_path / name / f"{number}.png", number)
    (tmp_path / ".git").mkdir()
    found = surveyed(tmp_path)
    assert [each["name"] for each in found["classes"]] == ["cat", "dog"]
    assert "not read, since a name that begins with a dot is hidden: .net/ (2 images)" in found["remarks"]
