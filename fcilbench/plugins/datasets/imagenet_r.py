"""ImageNet-R: renditions of 200 ImageNet classes (Hendrycks et al. 2021)."""

from __future__ import annotations

from fcilbench.data.image_dataset import ImageDataset
from fcilbench.spec.archive import Archive


class ImageNetR(ImageDataset):
    """30,000 paintings, sketches, toys and other renditions of 200 ImageNet classes.

    Reads `imagenet-r/<wnid>/*` (the official archive) or `imagenet-r/{train,test}/<class>/*`. Classes are named by
    their WordNet ids. There is no official split: the field draws 24,000 and 6,000 images at random once (Wang et al.
    2022, DualPrompt) and passes folders on. Ours has the same sizes, is stratified and follows from the content of the
    files (`fcilbench.data.folders.stratified_split`); the field's folders are read as they are from the tree. No
    content digest is declared, since these files were never seen here.
    """

    version = "1"
    name = "imagenet-r"
    classes = 200
    default_tasks = 10
    train_samples = 24_000
    test_samples = 6_000
    layouts = (("imagenet-r/train", "imagenet-r/test"), ("imagenet-r",))
    archives = (
        Archive(
            "imagenet-r.tar",
            "sha256:18c6bf493b39a0d975d48e587437f562caab9c52ae6327dcfa9dd8eb54aa1b52",
            published="TensorFlow Datasets (imagenet_r/checksums.tsv)",
            url="https://people.eecs.berkeley.edu/~hendrycks/imagenet-r.tar",
            size=2_191_079_936,
        ),
    )
    licence = "none stated for the images, which belong to their makers; for research"
    homepage = "https://github.com/hendrycks/imagenet-r"
    citation = "Hendrycks et al. (2021), The Many Faces of Robustness, ICCV"
