"""What `tune` writes is what `run --params` takes, digest and all."""

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import create_trial

from fcilbench.errors import SuiteError
from fcilbench.spec.cell import PluginUse
from fcilbench.suite.load import load_suite
from fcilbench.suite.schema import Tuning
from fcilbench.tuning.lock import StudyResult, write_lock
from fcilbench.tuning.study import Subject

SUITE = """\
fcilbench: 1
name: any
grid: {dataset: [digits], backbone: [timm], partition: [iid], aggregator: [sum]}
"""
SPACE = {
    "protocol.lr": FloatDistribution(1e-7, 1.0, log=True),
    "aggregator.k_pct": FloatDistribution(0.0, 1.0),
    "aggregator.layers": IntDistribution(1, 16),
    "aggregator.target": CategoricalDistribution(("off", None, True, "1e5")),
}
DRAWS = ((1e-7, 1.0, 3, "off"), (0.1 + 0.2, 0.0, 8, None), (3e-5, 0.25, 1, True), (1e-5, 1.0, 16, "1e5"))


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("label", ["sum (reduced)", "1e5", "ein ß 'quoted' \"twice\"", "no"])
def test_what_tune_writes_fits_its_digest_and_one_changed_digit_does_not(make_cell, tmp_path, draw, label):
    cell = make_cell("sum")
    use = PluginUse(**{**cell.aggregator.model_dump(), "label": label})
    subject = Subject((cell.model_copy(update={"aggregator": use}),), SPACE, Tuning(trials=1))
    trial = create_trial(params=dict(zip(SPACE, draw, strict=True)), distributions=SPACE, value=1.0)
    trial.user_attrs.update(seconds=12.04, rounds=4)
    path, suite = tmp_path / "a.lock.yaml", tmp_path / "s.yaml"
    suite.write_text(SUITE)
    write_lock(path, [StudyResult(subject, optuna.create_study(), (trial,))])
    (rule,) = load_suite(suite, params=path).suite.tuned
    assert (rule.set, rule.where["aggregator"], rule.sealed) == (trial.params, label, True)
    assert (rule.study.budget, rule.study.seconds, rule.study.score) == (2 * 2, 12.0, 1.0)  # T 2, R 2
    path.write_text(path.read_text().replace("seconds: 12.0", "seconds: 12.1"))
    with pytest.raises(SuiteError, match=r"a\.lock\.yaml:5:9: the lock file was edited by hand"):
        load_suite(suite, params=path)
