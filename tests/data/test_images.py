import numpy as np
import pytest
from PIL import Image

from fcilbench.api.dataset import Corpus, Samples
from fcilbench.data.content import number
from fcilbench.data.images import ImageFiles, class_folders, class_tree, decoded, read_image, unnested
from fcilbench.errors import DataError

CENTRAL = 256 / 224


@pytest.mark.parametrize("shape", [(40, 30), (30, 40), (224, 224), (500, 375), (33, 333), (256, 300)])
@pytest.mark.parametrize("size", [32, 224])
def test_resizes_and_crops_as_torchvision_does(tmp_path, image, shape, size):
    from torchvision import transforms as T

    path = image(tmp_path / "a.png", 1, shape)
    steps = [T.Resize(round(size * CENTRAL), T.InterpolationMode.BICUBIC), T.CenterCrop(size)]
    with Image.open(path) as opened:
        expected = np.asarray(T.Compose(steps)(opened.convert("RGB")))
    found = read_image(path, size, CENTRAL)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, expected)


def test_native_size_without_margin_is_the_image_itself(tmp_path, image):
    path = image(tmp_path / "a.png", 2, (64, 64))
    with Image.open(path) as opened:
        np.testing.assert_array_equal(read_image(path, 64, 1.0), np.asarray(opened))


def flat(path, mode, colour, **options):
    Image.new(mode, (16, 16), colour).save(path, **options)
    pixels = read_image(path, 8, 1.0)
    assert pixels.shape == (8, 8, 3)
    assert (pixels == pixels[0, 0]).all()
    return pixels[0, 0].tolist()


def test_every_mode_becomes_rgb(tmp_path):
    assert flat(tmp_path / "grey.jpg", "L", 90, quality=95) == [90, 90, 90]
    assert flat(tmp_path / "bits.png", "1", 1) == [255, 255, 255]
    assert flat(tmp_path / "deep.png", "I;16", 0xAB12) == [0xAB, 0xAB, 0xAB]
    # No ink but a quarter of black: 255 - 64 on each channel.
    assert flat(tmp_path / "print.tif", "CMYK", (0, 0, 0, 64)) == [191, 191, 191]
    assert flat(tmp_path / "ink.tif", "CMYK", (0, 255, 0, 0)) == [255, 0, 255]
    # Half transparent on white: (200 + 255) / 2, (0 + 255) / 2.
    assert flat(tmp_path / "half.png", "RGBA", (200, 0, 0, 128)) == pytest.approx([227, 127, 127], abs=1)
    assert flat(tmp_path / "clear.png", "LA", (7, 0)) == [255, 255, 255]
    palette = Image.new("P", (16, 16), 1)
    palette.putpalette([1, 2, 3, 40, 50, 60])
    palette.save(tmp_path / "palette.gif")
    assert read_image(tmp_path / "palette.gif", 8, 1.0)[0, 0].tolist() == [40, 50, 60]
    palette.save(tmp_path / "hole.png", transparency=1)
    assert read_image(tmp_path / "hole.png", 8, 1.0)[0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize(("mode", "value"), [("F", 0.5), ("I", 70_000)])
def test_edge_12_pixels_of_unknown_scale_are_refused(tmp_path, mode, value):
    """Edge case 12: a float TIFF in [0, 1] became black, and 32-bit integers white."""
    Image.new(mode, (16, 16), value).save(tmp_path / "a.tif")
    with pytest.raises(DataError, match=rf"broken image .*a\.tif: pixels of mode '{mode}' have no known scale"):
        read_image(tmp_path / "a.tif", 8, 1.0)


def test_grey_of_16_bits_in_a_portable_map_is_wanted_as_png(tmp_path):
    """It has 16 bits already, so that the advice to save it with 16 bits was none."""
    (tmp_path / "a.ppm").write_bytes(b"P5\n16 16\n65535\n" + b"\xab\x12" * 256)
    with pytest.raises(DataError, match="save it as PNG with 8 or 16 bits"):
        read_image(tmp_path / "a.ppm", 8, 1.0)


def test_cmyk_jpeg(tmp_path):
    """Pillow writes them as Adobe does, inverted, and reads them back."""
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=95)
    assert read_image(tmp_path / "a.jpg", 8, 1.0)[4, 4].tolist() == pytest.approx([255, 0, 0], abs=4)


@pytest.mark.parametrize("kept", [0, 10, 60, -100])
@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_truncated_file_is_named(tmp_path, image, kept, suffix):
    path = image(tmp_path / f"a.{suffix}", 3, (200, 200))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataError, match=f"broken image {path}: "):
        read_image(path, 8, 1.0)


def test_a_broken_file_among_many_is_named(tmp_path, image):
    files = [image(tmp_path / f"{i}.png", i) for i in range(40)]
    files[33].write_bytes(b"no image")
    with pytest.raises(DataError, match=f"broken image {files[33]}: cannot identify image file"):
        list(ImageFiles(files, 8))
    with pytest.raises(DataError, match=f"cannot read {tmp_path}/gone.png: No such file"):
        _ = ImageFiles([tmp_path / "gone.png"], 8).digests


def test_rows_keep_their_order_and_an_index_selects(tmp_path, image):
    files = [image(tmp_path / f"{i}.png", i) for i in range(100)]
    images = ImageFiles(files, 8)
    for row, path in zip(images, files, strict=True):
        np.testing.assert_array_equal(row, read_image(path, 8, 1.0))
    digests = images.digests
    part = Samples(images, np.arange(100)).take(np.array([7, 3]))
    assert part.labels.tolist() == [7, 3]
    assert part.inputs.digests == [digests[7], digests[3]]
    np.testing.assert_array_equal(decoded(part).inputs[1], read_image(files[3], 8, 1.0))


def test_digest_tells_the_bytes_and_the_label_not_the_size(tmp_path, image):
    def digest(path, label, size):
        samples = Samples(ImageFiles([path], size), np.array([label]))
        return number(Corpus(samples, samples, ("a", "b", "c")))[1]

    path = image(tmp_path / "a.png")
    one = digest(path, 1, 8)
    assert digest(path, 1, 16) == one
    assert digest(path, 2, 8) != one
    assert digest(image(tmp_path / "a.png", 9), 1, 8) != one


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_lists_images_by_class_and_passes_over_the_rest(tmp_path):
    touch(tmp_path, "n02/b.JPEG", "n02/a.png", "n01/x.jpg", "n01/Thumbs.db", "n01/._x.jpg", "README.txt", ".git/c.jpg")
    names, images = class_folders(tmp_path)
    assert names == ("n01", "n02")
    assert images.inputs.files == [tmp_path / "n01/x.jpg", tmp_path / "n02/a.png", tmp_path / "n02/b.JPEG"]
    assert images.labels.tolist() == [0, 1, 1]


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(DataError, match=r"cannot read folder .*/none: No such file"):
        class_folders(tmp_path / "none")
    with pytest.raises(DataError, match="has no class folders"):
        class_folders(tmp_path)
    touch(tmp_path, "n01/a.txt")
    with pytest.raises(DataError, match=r"class folder .*/n01 has no image"):
        class_folders(tmp_path)


def test_tree_must_have_the_same_classes(tmp_path):
    touch(tmp_path, "train/a/1.png", "train/b/1.png", "test/a/1.png")
    with pytest.raises(DataError, match="different class folders: b is in one only"):
        class_tree(tmp_path / "train", tmp_path / "test")
    touch(tmp_path, "test/b/2.png")
    corpus = class_tree(tmp_path / "train", tmp_path / "test")
    assert corpus.class_names == ("a", "b")
    assert (len(corpus.train), len(corpus.test)) == (2, 2)


def test_a_folder_within_a_folder_of_its_own_name(tmp_path):
    touch(tmp_path, "cars/cars/1.jpg", "cars/README.txt", "birds/birds/1.jpg", "birds/fish/1.jpg")
    assert unnested(tmp_path / "cars") == tmp_path / "cars" / "cars"
    assert unnested(tmp_path / "birds") == tmp_path / "birds"  # a class of that name beside others
