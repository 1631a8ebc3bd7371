import json

import jsonschema
import pytest

from fcilbench.registry import catalog
from fcilbench.registry.entrypoints import find
from fcilbench.spec.cell import KINDS_WITH_PARAMS
from fcilbench.suite.editor import json_schema
from fcilbench.suite.yaml import parse

GOOD = """\
fcilbench: 1
name: vision
protocol: {clients: 10, rounds: 5, local_epochs: 5, batch_size: 16, participation: 1.0}
grid:
  dataset:    [{use: cifar100, tasks: 10}, {use: eurosat, tasks: [5, 5]}, digits]
  backbone:   [{use: timm, model: vit_base_patch16_224.augreg_in21k}]
  partition:  [{dirichlet: 0.5}, iid, {quantity: 1, min_samples: 0}, {kind: dirichlet, value: 0.05}]
  aggregator: [sum, lorm, {use: regmean, gamma_backbone: 0.5, label: best}, acme/gossip]
  stress:     [none, {use: label-shift, clients: 2}]
  zip: [dataset, backbone]
tuned:
  - {where: {dataset: cifar100, partition.dirichlet: 0.05, aggregator: sum}, set: {lr: 1e-5, lambda_s: 0.6}}
exclude: [{aggregator: fisheravg, dataset: clinc150, because: "not run on text in the paper"}]
seeds: 3
evaluate: {task_identity: [none, inferred, oracle]}
limits: {wall: 2h, retries: 1}
runtime: {threads: 2, checkpoint: task}
boards: [accuracy, overhead, robustness]
"""


@pytest.fixture(scope="module")
def schema():
    return json_schema(catalog.describe([ref for kind in KINDS_WITH_PARAMS for ref in find(kind)]))


def test_json_schema_takes_what_the_suite_takes(schema):
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(parse(GOOD, "f").plain(), schema)
    assert json.loads(json.dumps(schema)) == schema


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("fcilbench: 1", "fcilbench: 2"),
        ("rounds: 5", "ruonds: 5"),
        ("clients: 10", "clients: 0"),
        ("aggregator: [sum", "agregator: [sum"),
        ("{dirichlet: 0.5}", "{dirichlet: 0}"),
        ("[{dirichlet: 0.5}, iid", "[{dirichlet: 0.5}, idd"),
        ("digits]", "3]"),
        ("because:", "becuse:"),
        ("seeds: 3", "seeds: 0"),
        ("wall: 2h", "wall: 2x"),
        ("checkpoint: task", "checkpoint: tusk"),
    ],
)
def test_json_schema_refuses_what_the_suite_refuses(old, new, schema):
    assert old in GOOD
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(parse(GOOD.replace(old, new, 1), "f").plain(), schema)
