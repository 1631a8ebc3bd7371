"""Every built-in plugin passes the checks of its kind, so that a new one is covered when it is registered."""

import pytest

from fcilbench.registry.entrypoints import find
from fcilbench.testing import CHECKS, Case, case

pytestmark = pytest.mark.slow

TOLD = {
    "hf-encoder": {"model": "bert", "max_length": 8},
    "t5": {"model": "t5", "max_length": 8},
    "image-folder": {"path": "images", "test_share": 0.5, "size": 8},
    "csv": {"path": "texts.csv", "test_share": 0.5},
}
"""Hyperparameters of plugins that have to be told where something is; all others are checked by name alone."""
READY: dict[tuple[str, str], Case] = {}


def ready(kind, name, request):
    """Returns a plugin ready to be checked, made once."""
    if (kind, name) not in READY:
        options = dict(TOLD.get(name.rpartition("/")[2], {}))
        if options.get("model") in ("bert", "t5"):
            options["model"] = request.getfixturevalue("text_models")[options["model"]]
        if "path" in options:
            options["path"] = str(request.getfixturevalue("own_data") / options["path"])
        READY[kind, name] = case(kind, name, options)
    return READY[kind, name]


def checks():
    for kind, each in CHECKS.items():
        for ref in find(kind):
            # Each check of Ray and Slurm would start a cluster; tests/execution/test_clusters.py trains on both.
            if ref.dist == "fcilbench" and ref.short not in ("ray", "slurm"):
                for check in each:
                    marks = [pytest.mark.gpu] if check.gpu else []
                    yield pytest.param(kind, ref.name, check, id=f"{ref.short}-{check.id}", marks=marks)


@pytest.mark.parametrize(("kind", "name", "check"), list(checks()))
def test_check(kind, name, check, request):
    result = ready(kind, name, request).run(check)
    if result.status == "skipped":
        pytest.skip(result.found)
    assert result.status in ("passed", "declared"), f"{name}: {result}\n{result.trace}"


def test_every_kind_is_covered():
    assert {ref.short for ref in find("aggregators")} >= {"fedavg", "joint", "sum"}
