"""Compressed and private uploads by methods of third parties: bytes and values by hand, resumes, faults, attacks."""

import math

import pytest
import torch

from fcilbench.api import Aggregator, Field, SomeClients, Wire
from fcilbench.federation.experiment import Unsupported, build
from fcilbench.federation.run import run_experiment
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.ncm import Ncm
from fcilbench.plugins.stressors.clients import (
    Dropout,
    Gaussian,
    LabelFlip,
    LabelShift,
    Scale,
    SignFlip,
    Stale,
    Straggler,
)
from fcilbench.spec.protocol import Partition, Runtime

PARAMETERS = (64 * 16 + 16) + (10 * 16 + 10)
MODEL = 4 * PARAMETERS
ROUNDS = {"clients": 2, "tasks": 2, "rounds": 2, "partition": Partition(kind="iid")}


class Votes(Aggregator):  # signSGD with majority vote (Bernstein et al. 2019): int8 votes, an update each
    def encode(self, update, client):
        return {name: tensor.sign().to(torch.int8) for name, tensor in update.items()}

    def decode(self, message, server):
        return {name: tensor.float() for name, tensor in message.items()}

    def aggregate(self, updates, server):
        server.step(1e-2 * updates.delta.sum(0).sign())


class Scaled(Aggregator):  # int8 numbers with a scale a tensor; what rounding left out is sent in the next round
    def encode(self, update, client):
        message = {}
        for name, tensor in update.items():
            whole = tensor + client.state.get(name, 0.0)
            scale = whole.abs().max() / 127 + 1e-12
            message[name] = (whole / scale).round().to(torch.int8)
            message[f"{name}/scale"] = scale
            client.state[name] = whole - message[name] * scale
        return message

    def decode(self, message, server):
        return {
            name: message[f"{name}/scale"] * value for name, value in message.items() if not name.endswith("/scale")
        }


class LocallyPrivate(Aggregator):  # Gaussian noise on the client, on the clipped update
    def encode(self, update, client):
        norm = math.sqrt(sum(float(tensor.square().sum()) for tensor in update.values()))
        random = client.random("noise")
        return {
            name: tensor / max(1.0, norm) + torch.from_numpy(random.normal(0.0, 1e-3, tensor.shape)).float()
            for name, tensor in update.items()
        }


class VotesAsStatistics(Aggregator):  # the only way before `encode`: no update travels, int8 statistics do
    def wire(self, server):
        return Wire(up=())

    def statistics(self, client):
        return {"votes": (client.net.vector - client.received_model).sign().to(torch.int8)}

    def aggregate(self, updates, server):
        server.step(1e-2 * torch.stack([message["votes"].float() for message in updates.statistics]).sum(0).sign())


class SilentRounds(Aggregator):  # uploads nothing at all
    def wire(self, server):
        return Wire(up=())


@pytest.fixture
def run(make_experiment, tmp_path):
    """Returns `run(method, ...)`: the outcome of two clients in two tasks of two rounds."""
    count = 0

    def play(method, on_event=None, folder=None, **changes):
        nonlocal count
        count += 1
        folder = folder or tmp_path / str(count)
        folder.mkdir(exist_ok=True)
        return run_experiment(make_experiment(method, **(ROUNDS | changes)), folder, on_event)

    return play


# ---------------------------------------------------------------- bytes and values


def test_bytes_are_those_of_what_is_encoded(run):
    """8 visits (2 clients, 4 rounds); a byte a number, and four tensors' scales of 4 bytes; models go down as ever."""
    found = {cls: run(cls()).cost for cls in (FedAvg, Votes, Scaled, LocallyPrivate)}
    assert found[FedAvg].bytes_up == found[LocallyPrivate].bytes_up == 8 * MODEL
    assert found[Votes].bytes_up == 8 * PARAMETERS
    assert found[Scaled].bytes_up == 8 * (PARAMETERS + 4 * 4)
    assert {cost.bytes_down for cost in found.values()} == {8 * MODEL}


def test_only_what_travels_is_encoded(run):
    seen = []

    class Head(Votes):
        def wire(self, server):
            return Wire(train=("head.*",), up=("head.weight",))

        def encode(self, update, client):
            seen.append({name: list(tensor.shape) for name, tensor in update.items()})
            return super().encode(update, client)

    assert run(Head()).cost.bytes_up == 8 * 10 * 16
    assert seen == [{"head.weight": [10, 16]}] * 8


def test_rows_are_what_was_decoded(make_experiment, one_round):
    """The rows of a majority vote are -1, 0 and 1: the signs of FedAvg's rows; rows of old classes stay 0."""
    rows = one_round(build(make_experiment(FedAvg(), **ROUNDS))).clone()
    votes = one_round(build(make_experiment(Votes(), **ROUNDS)))
    assert torch.equal(votes, rows.sign())
    assert set(votes.unique().tolist()) == {-1.0, 0.0, 1.0}
    scaled = one_round(build(make_experiment(Scaled(), **ROUNDS)))
    for piece in build(make_experiment(FedAvg(), **ROUNDS)).server.layout.pieces:
        half = rows[:, piece.span].abs().amax(dim=1) / 127 / 2  # half a step
        assert ((scaled - rows)[:, piece.span].abs().amax(dim=1) <= half * 1.001).all()
        assert (scaled - rows)[:, piece.span].abs().max() > 0


def test_a_client_sees_the_received_model_and_its_own_stream(run):
    seen = []

    class Watching(Aggregator):
        def encode(self, update, client):
            seen.append((torch.equal(client.net.vector, client.received_model), client.random("x").random()))
            return update

    assert run(Watching()).model_digest == run(FedAvg()).model_digest
    assert all(same for same, _ in seen)
    assert len({number for _, number in seen}) == 8


@pytest.mark.parametrize("cls", [Votes, Scaled, LocallyPrivate])
def test_a_resumed_run_ends_bit_equal(run, tmp_path, cls):
    def stop(event):
        if event["event"] == "round" and (event["task"], event["round"]) == (1, 1):
            raise KeyboardInterrupt

    whole = run(cls())
    with pytest.raises(KeyboardInterrupt):
        run(cls(), stop, tmp_path / "cut", runtime=Runtime(checkpoint="round"))
    resumed = run(cls(), None, tmp_path / "cut", runtime=Runtime(checkpoint="round"))
    assert resumed.model_digest == whole.model_digest
    assert (resumed.cost.bytes_up, resumed.cost.bytes_down) == (whole.cost.bytes_up, whole.cost.bytes_down)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda message: {}, r"decode returned nothing for '.*'; the update has floats"),
        (lambda message: {**message, "x": torch.zeros(2)}, r"torch.float32 \[2\] for 'x'; the update has nothing"),
        (lambda message: {k: v.reshape(-1) for k, v in message.items()}, r"decode returned torch.float32 \["),
        (lambda message: {k: v.to(torch.int8) for k, v in message.items()}, r"decode returned torch.int8 \["),
    ],
)
def test_a_decoded_update_must_be_the_updates_shape(run, answer, message):
    class Wrong(Aggregator):
        def decode(self, message, server):
            return answer(message)

    with pytest.raises(ValueError, match=message):
        run(Wrong())


def test_whole_numbers_do_not_hide_an_update_that_was_not_finite(make_experiment, one_round):
    """The sign of NaN as int8 is 0: without a look before it is encoded, the client would be merged."""

    class Broken(SomeClients):
        def upload(self, message, random):
            return {**message, "delta": message["delta"] * math.nan}

    federation = build(make_experiment(Votes(), stressor=Broken(), **ROUNDS))
    one_round(federation)
    result = one_round.result
    (bad,) = federation.channel.affected
    assert result.merged == 1
    assert result.not_finite == f"the update of client {bad} in task 1, round 1"


def test_what_a_client_kept_of_an_upload_that_was_lost_is_taken_back(make_experiment, one_round):
    federation = build(make_experiment(Scaled(), stressor=Dropout(Dropout.Params(rate=1.0)), **ROUNDS))
    one_round(federation)
    (lost,) = federation.channel.affected
    assert federation.clients[lost].state == {}
    assert len(federation.clients[1 - lost].state) == 4


# ---------------------------------------------------------------- stressors act on the update, or decline the cell


def made(cls, **params):
    return cls(cls.Params(**params))


ATTACKS = [SignFlip, Gaussian, Scale]
"""They change floating-point numbers."""
EVERY = {
    LabelShift: {},
    LabelFlip: {},
    SignFlip: {},
    Gaussian: {"sigma": 10.0},
    Scale: {},
    Dropout: {"rate": 1.0},
    Straggler: {},
    Stale: {},
}
SMALL_BATCHES = {"batch_size": 5}


def digest(run, method, stressor=None):
    changes = {} if stressor is None else {"stressor": stressor}
    return run(method, **SMALL_BATCHES, **changes).model_digest


@pytest.mark.parametrize(("cls", "params"), EVERY.items())
def test_an_int8_method_feels_every_stressor_before_its_update_is_encoded(run, cls, params):
    """Only a scaled update has the same signs: that is the method's virtue, not the stressor's failure."""
    felt = digest(run, Votes(), made(cls, **params)) != digest(run, Votes())
    assert felt == (cls is not Scale)


@pytest.mark.parametrize(("cls", "params"), EVERY.items())
def test_int8_votes_as_statistics_are_declined_where_a_stressor_cannot_touch_them(run, cls, params):
    if cls in ATTACKS:
        whole = rf"the stressor cannot touch {4 * PARAMETERS // 2:,} of the {4 * PARAMETERS // 2:,} numbers"
        with pytest.raises(Unsupported, match=whole):  # one client of two, two rounds of the first task
            digest(run, VotesAsStatistics(), made(cls, **params))
    else:
        assert digest(run, VotesAsStatistics(), made(cls, **params)) != digest(run, VotesAsStatistics())


@pytest.mark.parametrize("cls", [*ATTACKS, Dropout])
def test_a_method_that_uploads_nothing_is_declined(run, cls):
    with pytest.raises(Unsupported, match="stress: no affected client uploaded anything that the stressor can touch"):
        run(SilentRounds(), stressor=made(cls))


def test_counts_beside_floats_are_no_reason_to_decline(run):
    """NCM sends sums of 16 numbers a class, and a count each."""
    assert run(Ncm(), stressor=made(SignFlip)).model_digest != run(Ncm()).model_digest


def test_no_older_model_and_no_work_to_leave_out_are_declined(run):
    with pytest.raises(Unsupported, match="trained on an older global model: there was none"):
        run(Ncm(), stressor=made(Stale))
    with pytest.raises(Unsupported, match="trained on an older global model: there was none"):
        run(FedAvg(), stressor=made(Stale), tasks=1, rounds=1)
    with pytest.raises(Unsupported, match="more than one step to take"):
        run(FedAvg(), stressor=made(Straggler), batch_size=512)
    slow = run(Ncm(), stressor=made(Straggler), batch_size=512)  # its statistics cover fewer samples
    assert slow.model_digest != run(Ncm(), batch_size=512).model_digest
    assert run(FedAvg(), stressor=made(Straggler, done=1.0)).model_digest == run(FedAvg()).model_digest


def test_clients_that_never_take_part_are_declined(run):
    """Client 0 holds no sample, so that nobody misbehaves."""

    class First(SignFlip):
        def affected(self, clients, random):
            return (0,)

    class FirstIsEmpty(FedAvg):
        def build_schedule(self, schedule):
            phases = [type(p)(**{**vars(p), "clients": (p.clients[0][:0], *p.clients[1:])}) for p in schedule.phases]
            return type(schedule)(tuple(phases))

    with pytest.raises(Unsupported, match="no affected client took part in a round"):
        run(FirstIsEmpty(), stressor=First())


def test_what_was_reached_before_a_resume_counts(run, tmp_path):
    """The stale client trains on an older model in the first task alone; the run is resumed in the second."""
    stressor = made(Stale, rounds=1)

    def stop(event):
        if event["event"] == "task" and event["task"] == 0:
            raise KeyboardInterrupt

    settings = {"stressor": stressor, "runtime": Runtime(checkpoint="round")}
    with pytest.raises(KeyboardInterrupt):
        run(FedAvg(), stop, tmp_path / "cut", **settings)
    assert run(FedAvg(), None, tmp_path / "cut", **settings).model_digest == run(FedAvg(), **settings).model_digest


# ---------------------------------------------------------------- late and colluding attacks


class Late(SignFlip):  # behaves until task `start`
    class Params(SignFlip.Params):
        start: int = Field(1, ge=0, description="first task of the attack, from 0")

    def uploads(self, messages, turn):
        return super().uploads(messages, turn) if turn.task.index >= self.params.start else messages


class Colluding(SomeClients):  # all send the mean of their honest updates, reversed
    def uploads(self, messages, turn):
        mean = torch.stack([message["delta"] for message in messages.values()]).mean(0)
        return {client: {**message, "delta": -mean} for client, message in messages.items()}


def test_a_late_attack_leaves_the_tasks_before_it_alone(run):
    clean, late, early = (
        run(FedAvg(), **changes) for changes in ({}, {"stressor": made(Late)}, {"stressor": made(Late, start=0)})
    )
    assert late.accuracy["oracle"][0] == clean.accuracy["oracle"][0]
    assert late.model_digest != clean.model_digest
    assert early.model_digest == run(FedAvg(), stressor=made(SignFlip)).model_digest


def test_colluding_clients_send_one_vector(make_experiment, one_round):
    options = {"clients": 4, "tasks": 2, "partition": Partition(kind="iid")}
    honest = one_round(build(make_experiment(**options))).clone()
    federation = build(make_experiment(stressor=made(Colluding, clients=2), **options))
    rows = one_round(federation)
    one, two = sorted(federation.channel.affected)
    assert torch.equal(rows[one], rows[two])
    assert torch.allclose(rows[one], -(honest[one] + honest[two]) / 2, atol=1e-7)
    others = [client for client in range(4) if client not in (one, two)]
    assert torch.equal(rows[others], honest[others])


def test_a_turn_says_when_it_is_and_its_streams_are_keyed(run):
    seen = []

    class Watching(SomeClients):
        def share(self, turn, random):
            return 0.5 if turn.task.index == 1 else 1.0

        def uploads(self, messages, turn):
            seen.append((turn.task.index, turn.tasks, turn.round, turn.rounds, turn.affected, tuple(messages)))
            streams.append([turn.random(client).random() for client in (*messages, None)])
            return messages

    class AtTheEnd(FedAvg):
        def task_statistics(self, client):
            return {"steps": torch.tensor([float(client.steps)])}

        def end_task(self, server, statistics):
            told.append({client: int(message["steps"]) for client, message in statistics.items()})

    streams, told = [], []
    run(AtTheEnd(), stressor=made(Watching, clients=2), batch_size=20)
    turns = [(task, round_) for task in (0, 1) for round_ in (0, 1, 2)]  # the third is the end of the task
    assert seen == [(task, 2, round_, 2, (0, 1), (0, 1)) for task, round_ in turns]
    assert len({number for numbers in streams for number in numbers}) == 3 * 6
    assert told == [{0: 3, 1: 3}, {0: 1, 1: 1}]  # 50 samples each, 20 a batch; half of three steps


@pytest.mark.parametrize("wrong", [lambda m: {}, lambda m: {**m, 7: None}])
def test_a_stressor_answers_for_the_clients_that_it_was_given(run, wrong):
    class Wrong(SomeClients):
        def uploads(self, messages, turn):
            return wrong(messages)

    with pytest.raises(ValueError, match="the stressor answers for clients"):
        run(FedAvg(), stressor=Wrong())
