"""ImageNet-R and ImageNet-A: 200 ImageNet classes in other renditions and as hard photographs (Hendrycks et al. 2021).

Both read `<name>/<wnid>/*` (the official archive) or `<name>/{train,test}/<class>/*`; classes are named by their
WordNet ids. Neither has an official split. Ours has the sizes that the field uses, is stratified and follows from the
content of the files (`fcilbench.data.content.split_samples`). The folders that the field passes on are read as they
are from the tree. No content digest is declared, since these files were never seen here.
"""

from __future__ import annotations

from fcilbench.api import Archive, ImageDataset


class _Variant(ImageDataset):
    classes = 200
    default_tasks = 10
    licence = "none stated for the images, which belong to their makers; for research"


class ImageNetR(_Variant):
    """30,000 paintings, sketches, toys and other renditions of 200 ImageNet classes.

    The field draws 24,000 and 6,000 images at random once (Wang et al. 2022, DualPrompt).
    """

    version = "1"
    name = "imagenet-r"
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
    homepage = "https://github.com/hendrycks/imagenet-r"
    citation = "Hendrycks et al. (2021), The Many Faces of Robustness, ICCV"


class ImageNetA(_Variant):
    """7,500 photographs of 200 ImageNet classes that a ResNet-50 gets wrong.

    The field uses the 5,981 and 1,519 images that LAMDA-PILOT (Sun et al. 2023) drew at random.
    """

    version = "1"
    name = "imagenet-a"
    train_samples = 5_981
    test_samples = 1_519
    layouts = (("imagenet-a/train", "imagenet-a/test"), ("imagenet-a",))
    archives = (
        Archive(
            "imagenet-a.tar",
            "sha256:3bb3632277e6ba6392ea64c02ddbf4dd2266c9caffd6bc09c9656d28f012589e",
            published="TensorFlow Datasets (imagenet_a/checksums.tsv)",
            url="https://people.eecs.berkeley.edu/~hendrycks/imagenet-a.tar",
            size=687_552_512,
        ),
    )
    homepage = "https://github.com/hendrycks/natural-adv-examples"
    citation = "Hendrycks et al. (2021), Natural Adversarial Examples, CVPR"
