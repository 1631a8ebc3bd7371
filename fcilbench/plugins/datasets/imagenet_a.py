"""ImageNet-A: natural adversarial examples of 200 ImageNet classes (Hendrycks et al. 2021)."""

from __future__ import annotations

from fcilbench.data.image_dataset import ImageDataset
from fcilbench.spec.archive import Archive


class ImageNetA(ImageDataset):
    """7,500 photographs of 200 ImageNet classes that a ResNet-50 gets wrong.

    Reads `imagenet-a/<wnid>/*` (the official archive) or `imagenet-a/{train,test}/<class>/*`. Classes are named by
    their WordNet ids. There is no official split: the field uses the 5,981 and 1,519 images that LAMDA-PILOT (Sun et
    al. 2023) drew at random and passes on as folders. Ours has the same sizes, is stratified and follows from the
    content of the files (`fcilbench.data.folders.stratified_split`), so it is not image for image the same; PILOT's
    folders are read as they are from the tree. No content digest is declared, since these files were never seen here.
    """

    version = "1"
    name = "imagenet-a"
    classes = 200
    default_tasks = 10
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
    licence = "none stated for the images, which belong to their makers; for research"
    homepage = "https://github.com/hendrycks/natural-adv-examples"
    citation = "Hendrycks et al. (2021), Natural Adversarial Examples, CVPR"
