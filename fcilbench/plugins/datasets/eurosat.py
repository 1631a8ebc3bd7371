"""EuroSAT: land use seen by Sentinel-2 (Helber et al. 2019), the RGB version."""

from __future__ import annotations

from fcilbench.api import Archive, DatasetParams, Field, ImageDataset


class EuroSat(ImageDataset):
    """27,000 satellite tiles of 64x64 pixels in 10 classes of land use.

    Reads `EuroSAT_RGB/<class>/*` (the archive of Zenodo) or `2750/<class>/*` (the older archive), each also below
    `eurosat/`, or `eurosat/{train,test}/<class>/*`. Tiles keep their 64 pixels and are not cropped: the device resizes
    them to what the backbone wants. There is no official split; the field takes 80/20. Ours is 21,600/5,400,
    stratified, and follows from the content of the files (`fcilbench.data.content.split_samples`).
    """

    version = "1"
    name = "eurosat"
    margin = 1.0
    classes = 10
    default_tasks = 5
    train_samples = 21_600
    test_samples = 5_400
    fingerprint = "sha256:68780e6ec6f192320471421442bdaff450eac8d6bfa47427e74783b718788525"
    layouts = (
        ("eurosat/train", "eurosat/test"),
        *((place,) for place in ("EuroSAT_RGB", "eurosat/EuroSAT_RGB", "2750", "eurosat/2750")),
    )
    archives = (
        Archive(
            "EuroSAT_RGB.zip",
            "md5:f46e308c4d50d4bf32fedad2d3d62f3b",
            published="Zenodo, record 7711810",
            url="https://zenodo.org/records/7711810/files/EuroSAT_RGB.zip?download=1",
            size=94_658_721,
        ),
    )
    licence = "MIT; contains Copernicus Sentinel data"
    homepage = "https://zenodo.org/records/7711810"
    citation = "Helber et al. (2019), EuroSAT: A Novel Dataset and Deep Learning Benchmark, IEEE JSTARS 12(7)"

    class Params(DatasetParams):
        """Size of the decoded tiles."""

        size: int = Field(64, ge=8, description="height and width that tiles are decoded to, in pixels")
