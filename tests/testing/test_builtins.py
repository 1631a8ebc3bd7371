"""Every registered plugin keeps the laws of its kind, so that a new one is covered when it is registered."""

import pytest

from fcilbench.registry.entrypoints import find
from fcilbench.testing import LAWS, Case, case

SMALL = {
    "timm": {
        "model": "vit_tiny_patch16_224",
        "weights": "none",
        "args": {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2},
    },
    "efficientnet-lite0": {"input_size": 32},
    "hf-encoder": {"model": "bert", "max_length": 8},
    "t5": {"model": "t5", "max_length": 8},
}
"""Small hyperparameters of the backbones; one that is not here is tried with its defaults."""
READY: dict[tuple[str, str], Case] = {}


def ready(kind, name, request) -> Case:
    """Returns a plugin ready to be judged, made once."""
    if (kind, name) not in READY:
        options = dict(SMALL.get(name.rpartition("/")[2], {})) if kind == "backbones" else {}
        if options.get("model") in ("bert", "t5"):
            options["model"] = request.getfixturevalue("text_models")[options["model"]]
        READY[kind, name] = case(kind, name, options)
    return READY[kind, name]


def laws():
    for kind, each in LAWS.items():
        for ref in find(kind):
            if ref.dist == "fcilbench":
                for law in each:
                    marks = [pytest.mark.gpu] if law.gpu else []
                    yield pytest.param(kind, ref.name, law, id=f"{ref.short}-{law.id}", marks=marks)


@pytest.mark.parametrize(("kind", "name", "law"), list(laws()))
def test_law(kind, name, law, request):
    verdict = ready(kind, name, request).judge(law)
    if verdict.status == "skipped":
        pytest.skip(verdict.found)
    assert verdict.status in ("holds", "declared"), f"{name}: {verdict}\n{verdict.trace}"


def test_every_kind_is_covered():
    assert {ref.short for ref in find("aggregators")} >= {"fedavg", "joint", "sum"}
