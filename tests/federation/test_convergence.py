"""Training until convergence: the rule on sequences by hand, which samples decide, what is kept, and resume."""

import json

import numpy as np
import pytest
import torch

from fcilbench.api.schedule import Convergence, Phase, Task
from fcilbench.api.stressor import Stressor
from fcilbench.errors import PartitionError
from fcilbench.federation import run as runner
from fcilbench.federation.convergence import Plateau
from fcilbench.federation.experiment import build
from fcilbench.federation.run import run_experiment
from fcilbench.federation.tasks import hold_out, stream
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.joint import Joint
from fcilbench.plugins.datasets.digits import Digits
from fcilbench.spec.outcome import UNCONVERGED

RISING = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]


def joint(**options):
    return Joint(Joint.Params(**options))


def scripted(monkeypatch, accuracies):
    """Replaces what is measured on the held-out samples; an exhausted script is an error."""
    left = iter(accuracies)
    monkeypatch.setattr(runner, "held_out_accuracy", lambda *_: next(left))


def trained(experiment, folder, on_event=None):
    folder.mkdir(exist_ok=True)
    outcome = run_experiment(experiment, folder, on_event)
    curve = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return outcome, [event for event in curve if event["event"] == "round"], curve[-1]["logs"]


@pytest.mark.parametrize(
    ("patience", "accuracies", "rounds", "best"),
    [
        (3, [0.5, 0.6, 0.6, 0.7, 0.7, 0.69, 0.7, 0.9], 7, 4),  # rounds 5 to 7 are not larger than 0.7: it ends there
        (1, [0.5, 0.6, 0.6, 0.7], 3, 2),
        (2, [0.0, 0.0, 0.0], 3, 1),  # never right: the first round is the best
        (2, [0.3, 0.2, 0.4, 0.1, 0.39, 1.0], 5, 3),
    ],
)
def test_the_rule_on_sequences_by_hand(patience, accuracies, rounds, best):
    plateau, left = Plateau(patience), iter(accuracies)
    while not plateau.reached:
        plateau.rises(next(left))
    assert (plateau.rounds, plateau.best_round, plateau.best) == (rounds, best, accuracies[best - 1])


def test_a_phase_ends_by_the_rule_and_deploys_its_best_round(make_experiment, tmp_path, monkeypatch):
    """0.5 0.6 0.8 0.7 0.8 with patience 2: five epochs, and the model of the third."""
    scripted(monkeypatch, [0.5, 0.6, 0.8, 0.7, 0.8])
    outcome, rounds, logs = trained(make_experiment(joint(patience=2)), tmp_path / "a")
    assert [each["logs"]["held_out/accuracy"] for each in rounds] == [0.5, 0.6, 0.8, 0.7, 0.8]
    assert logs == {"held_out/accuracy": 0.8, "held_out/round": 3}
    assert (outcome.cost.rounds, outcome.cost.visits, outcome.cost.tasks) == (5, 5, 1)
    assert outcome.warnings == []
    scripted(monkeypatch, RISING)
    third, *_ = trained(make_experiment(joint(max_epochs=3)), tmp_path / "b")
    scripted(monkeypatch, RISING)
    fifth, *_ = trained(make_experiment(joint(max_epochs=5)), tmp_path / "c")
    assert outcome.model_digest == third.model_digest != fifth.model_digest


def test_a_row_says_when_training_ended_by_the_largest_number_of_epochs(make_experiment, tmp_path, monkeypatch):
    scripted(monkeypatch, [0.1, 0.3, 0.2, 0.3])
    cut, *_ = trained(make_experiment(joint(max_epochs=4, patience=3)), tmp_path / "a")
    assert cut.warnings == [
        f"{UNCONVERGED}: all 4 rounds were trained, and accuracy on the held-out samples last rose in round 2"
    ]
    scripted(monkeypatch, [0.1, 0.3, 0.2, 0.3])
    enough, *_ = trained(make_experiment(joint(max_epochs=4, patience=2)), tmp_path / "b")
    assert enough.warnings == []  # the largest number was reached, but two rounds after the best


def test_a_fixed_number_of_epochs_is_one_round_and_the_row_says_so(make_experiment, tmp_path):
    outcome, rounds, logs = trained(make_experiment(joint(epochs=3)), tmp_path / "a")
    assert (len(rounds), outcome.cost.rounds, logs) == (1, 1, {})
    assert outcome.warnings == [f"{UNCONVERGED}, but for a fixed number of epochs"]


def test_the_held_out_samples_are_a_share_of_each_class_and_nobody_trains_on_them(make_experiment):
    """20 samples of each digit, a share of 0.25: 5 of each decide, and the 150 others are trained on."""
    federation = build(make_experiment(joint(held_out=0.25)))
    (phase,), (held,) = federation.schedule.phases, federation.held_out
    labels = federation.train.labels.numpy()
    assert np.bincount(labels[held]).tolist() == [5] * 10
    assert sorted([*phase.clients[0], *held]) == list(range(200))
    assert (phase.rounds, phase.epochs) == (100, 1)
    again = build(make_experiment(joint(held_out=0.25), lr=1e-3))
    assert again.held_out[0].tolist() == held.tolist()
    fixed = build(make_experiment(joint(epochs=3)))
    assert [len(each) for each in fixed.held_out] == [0]
    assert (fixed.schedule.phases[0].rounds, fixed.schedule.phases[0].epochs) == (1, 3)
    assert all(len(each) == 0 for each in build(make_experiment(FedAvg())).held_out)


def test_beside_a_validation_split_both_hold_out_their_own(make_experiment):
    """A quarter for tuning leaves 15 of each digit; a fifth of these, 3 of each, tells when joint has converged."""
    federation = build(make_experiment(joint(held_out=0.2), validation=0.25))
    assert (len(federation.train), len(federation.test)) == (150, 50)
    assert np.bincount(federation.train.labels.numpy()[federation.held_out[0]]).tolist() == [3] * 10
    assert len(federation.schedule.phases[0].clients[0]) == 120


def test_the_held_out_accuracy_is_the_share_of_right_answers(make_experiment, tmp_path):
    """Measured by hand on the model of the only epoch."""
    experiment = make_experiment(joint(max_epochs=1, held_out=0.25))
    outcome, rounds, _ = trained(experiment, tmp_path / "a")
    federation = build(experiment)
    saved = torch.load(tmp_path / "a" / "checkpoint.pt", weights_only=True)
    held = torch.from_numpy(federation.held_out[0])
    net = federation.model.under(saved["vector"])
    right = net.logits(federation.train.plain(held)).argmax(dim=1) == federation.train.labels[held]
    assert rounds[0]["logs"]["held_out/accuracy"] == int(right.sum()) / 50
    assert outcome.warnings[0].startswith(UNCONVERGED)


def test_wrong_labels_are_in_the_held_out_samples_too(make_experiment):
    class Wrong(Stressor):
        def affected(self, clients, random):
            return (0,)

        def labels(self, labels, task, random):
            return task.offset + (labels - task.offset + 1) % task.size

    clean, stressed = (build(make_experiment(joint(), stressor=each)) for each in (Stressor(), Wrong()))
    assert np.bincount(stressed.train.labels[stressed.held_out[0]]).sum() == 20
    assert not torch.equal(clean.train.labels, stressed.train.labels)
    counts = np.bincount(stressed.train.labels.numpy())
    share = [max(1, round(0.1 * count)) for count in counts]
    assert np.bincount(stressed.train.labels[stressed.held_out[0]]).tolist() == share


def test_no_class_gives_its_only_sample():
    kept, held = hold_out(np.array([0, 1, 1, 2, 2, 2, 2, 2, 2, 2]), 0.5, stream(0, "convergence"))
    assert np.bincount(np.array([0, 1, 1, 2, 2, 2, 2, 2, 2, 2])[held], minlength=3).tolist() == [0, 1, 4]
    assert sorted([*kept, *held]) == list(range(10))


def test_without_a_second_sample_of_any_class_the_cell_ends_with_a_hint(make_experiment):
    experiment = make_experiment(
        joint(), dataset=Digits(Digits.Params(train_per_class=1, test_per_class=1)), clients=1, tasks=2
    )
    with pytest.raises(PartitionError, match="no class has a second training sample") as error:
        build(experiment)
    assert "epochs: match" in str(error.value.hint)


def test_such_a_phase_has_one_client():
    with pytest.raises(ValueError, match="one client, not 2"):
        Phase(Task(0, 0, 2), (np.zeros(1, int),) * 2, 5, 1, 8, 0, until=Convergence(0.1, 2))


def test_cumulative_training_converges_in_each_phase(make_experiment, tmp_path):
    options = {"mode": "cumulative", "max_epochs": 2, "patience": 1}
    outcome, rounds, _ = trained(make_experiment(joint(**options), tasks=2), tmp_path / "a")
    assert {each["task"] for each in rounds} == {0, 1}
    assert outcome.cost.rounds == len(rounds)
    assert all(value is not None for row in outcome.accuracy["none"] for value in row)


class CrashError(Exception):
    pass


@pytest.mark.parametrize(
    "options", [{}, {"schedule": "cosine", "weight_decay": 0.1}, {"optimizer": "sgd", "momentum": 0.9}]
)
def test_resume_ends_bit_equal(make_experiment, norm_backbone, tmp_path, options):
    """Killed in the first, a middle and the last epoch: moments, best model and plateau come back."""
    experiment = make_experiment(joint(patience=3, max_epochs=12), backbone=norm_backbone, lr=3e-2, **options)
    whole, rounds, logs = trained(experiment, tmp_path / "whole")
    assert 4 < len(rounds) <= 12
    for stop in (1, 3, len(rounds) - 1, len(rounds)):
        events = iter(range(1, stop + 1))

        def listen(event, events=events, stop=stop):
            if event["event"] == "round" and next(events) == stop:
                raise CrashError

        with pytest.raises(CrashError):
            trained(experiment, tmp_path / f"{stop}", listen)
        again, same_rounds, same_logs = trained(experiment, tmp_path / f"{stop}")
        assert again.model_digest == whole.model_digest
        assert (again.accuracy, again.warnings, again.cost.rounds) == (whole.accuracy, whole.warnings, len(rounds))
        assert same_logs == logs
        assert [each["logs"] for each in same_rounds] == [each["logs"] for each in rounds]
        assert [each["loss"] for each in same_rounds] == [each["loss"] for each in rounds]


def test_options_of_stopping_need_it():
    with pytest.raises(ValueError, match="patience has no effect with epochs: 4, only with epochs: converge"):
        Joint.Params(epochs=4, patience=3)
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        Joint.Params(epochs=0)
    assert Joint.Params(epochs="match", batch_size=16).epochs == "match"


def test_a_trial_of_the_plugins_is_short(make_experiment):
    federation = build(make_experiment(joint(), most_rounds=1))
    assert [phase.rounds for phase in federation.schedule.phases] == [1]
