"""Aggregators that each fail a check, to show that the kit finds it."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from fcilbench.api import (
    Aggregator,
    AllClasses,
    Field,
    Params,
    Predictors,
    Samples,
    Space,
    TrueTask,
    Wire,
    masked_cross_entropy,
)


class NoVersion(Aggregator):
    """Has an empty version."""

    version = ""


class Undocumented(Aggregator):  # has a parameter without a description
    class Params(Params):
        beta: float = 0.5


class OutsideItsSpace(Aggregator):  # has a default that its own search space excludes
    class Params(Params):
        beta: float = Field(5.0, description="x", space=Space(low=0.1, high=1.0))


class OutsideASpaceThatEndsAtZero(Aggregator):  # as before, where the end is a number that counts as false
    class Params(Params):
        shift: float = Field(5.0, description="x", space=Space(low=-1.0, high=0.0))


class CannotPrepare(Aggregator):
    """Asks the network for a layer that it does not have."""

    def prepare(self, network, request):
        network.extractor.body.prompts.requires_grad_(False)


class Adds(Aggregator):  # adds the updates up instead of averaging them: twice as far for two equal clients
    def aggregate(self, updates, server):
        server.step(updates.delta.sum(0))


class Halves(Aggregator):  # goes half of the way
    def aggregate(self, updates, server):
        server.step(0.5 * updates.mean())


class CountsRegistered(Aggregator):  # divides by the registered clients, those without samples among them
    def build_schedule(self, schedule):
        self.registered = len(schedule.phases[0].clients)
        return schedule

    def aggregate(self, updates, server):
        server.step(updates.delta.sum(0) / self.registered)


class TrustsTheFirst(Aggregator):  # takes the first client's update
    def aggregate(self, updates, server):
        server.step(updates.delta[0])


class DividesByZero(Aggregator):  # deploys a module that is not finite
    def predictors(self, server):
        given = super().predictors(server)
        return Predictors({**given.modules, "bad": lambda: server.vector / 0}, given.rules)


class ExpectsEveryone(Aggregator):  # has three weights for three clients
    def aggregate(self, updates, server):
        server.step(torch.tensor([0.2, 0.3, 0.5]) @ updates.delta)


class NeedsARound(Aggregator):  # expects `aggregate` to have run before the task ends
    def aggregate(self, updates, server):
        server.state["last"] = updates.mean()
        server.step(server.state["last"])

    def end_task(self, server, statistics):
        server.state["kept"] = server.state["last"].clone()


class CountsRoundingNoise(Aggregator):
    # Keeps a vector for each task and scales the largest one to norm 1, also if it is rounding noise.
    def aggregate(self, updates, server):
        server.state["before"] = server.state.get("before", server.vector.clone())
        super().aggregate(updates, server)

    def end_task(self, server, statistics):
        before = server.state.pop("before", server.vector)
        noise = 1e-8 * server.vector.norm() * torch.ones_like(server.vector)
        step = server.vector - before + noise
        server.state[f"task-{server.task.index}"] = step / step.norm()

    def predictors(self, server):
        signs = sum(value.sign() for name, value in server.state.items() if name.startswith("task-"))
        given = super().predictors(server)
        return Predictors({"global": lambda: server.vector + signs * 0.01}, given.rules)


class Standardises(Aggregator):
    # Divides by the deviation of the labels of a client, which is zero for one class and undefined for one sample.
    def statistics(self, client):
        labels = torch.cat([batch.labels for batch in client.batches()]).float()
        return {"inverse": (1 / labels.std(correction=0))[None].nan_to_num(posinf=-1.0)}

    def aggregate(self, updates, server):
        if any(float(message["inverse"]) < 0 for message in updates.statistics):
            raise ZeroDivisionError("deviation of one class")
        super().aggregate(updates, server)


class SecondHelping(Aggregator):  # expects a client of the first round in every later one
    def aggregate(self, updates, server):
        first = server.state.setdefault("clients", list(updates.clients))
        assert list(updates.clients) == first
        super().aggregate(updates, server)


class EqualTasks(Aggregator):  # computes offsets from a task's index and the first task's size
    def loss(self, net, batch, context):
        logits = net.logits(batch.inputs)
        return torch.nn.functional.cross_entropy(logits[:, batch.task.classes], batch.labels - batch.task.index * 3)


class LastTaskOnly(Aggregator):  # trains the last task alone, so that nothing is measured before
    def build_schedule(self, schedule):
        return type(schedule)(schedule.phases[-1:])


class Lottery(Aggregator):  # draws merge weights from torch's global generator
    def aggregate(self, updates, server):
        weights = torch.rand(len(updates.clients))
        server.step((weights / weights.sum()) @ updates.delta)


class KeepsObjects(Aggregator):  # keeps an object of its own class in the state
    @dataclass
    class Memory:
        rounds: int = 0

    def begin(self, server):
        server.state["memory"] = self.Memory()


class KeepsAReference(Aggregator):  # keeps the global vector itself as the anchor, which then moves with every step
    def begin(self, server):
        server.state["anchor"] = server.vector

    def aggregate(self, updates, server):
        server.step(updates.mean() + 0.5 * (server.state["anchor"] - server.vector))


class Momentum(Aggregator):  # keeps its momentum on the object, where a resume loses it
    momentum: ClassVar = 0.0

    def aggregate(self, updates, server):
        self.velocity = 0.5 * getattr(self, "velocity", 0.0) + updates.mean()
        server.step(self.velocity)


class WhispersInItsClass(Aggregator):  # the server reads what clients have left in a container of the class
    heard: ClassVar = {}

    def finish(self, client):
        self.heard[client.id] = client.net.vector - client.received_model

    def aggregate(self, updates, server):
        super().aggregate(updates, server)
        server.step(0.1 * sum(self.heard.values()) / max(1, len(self.heard)))


class Whispers(Aggregator):  # the client half leaves its sample count on the object for the server half
    def __init__(self, params=None):
        super().__init__(params)
        self.counts = {}

    def statistics(self, client):
        self.counts[client.id] = float(client.samples)
        return {}

    def aggregate(self, updates, server):
        weights = torch.tensor([self.counts.get(client, 1.0) ** 2 for client in updates.clients])
        server.step((weights / weights.sum()) @ updates.delta)


class KeepsTheNetwork(Aggregator):  # keeps the network in which its own layers are
    def prepare(self, network, request):
        self.layers = {"body": [network.extractor.body]}


class KeepsAClosure(Aggregator):  # keeps a function that holds the first global model
    def begin(self, server):
        first = server.vector.clone()
        self.distance = lambda vector: (vector - first).norm()


class SendsAView(Aggregator):  # sends a view of the resident model, which the next client overwrites
    def statistics(self, client):
        return {"bias": client.net.parameters[-10:].detach()}


class SendsANumber(Aggregator):  # sends a Python number
    def statistics(self, client):
        return {"count": client.samples}


class MeanOfMeans(Aggregator):  # averages the means of batches, whose last one is short
    def statistics(self, client):
        return {"mean": torch.stack([client.net.features(b.inputs).mean(0) for b in client.batches()]).mean(0)}


class OneStreamForAllLayers(Aggregator):
    # Sketches its layers' inputs from one random stream, so the layers take turns in it batch by batch.
    layers = ("extractor.*",)

    def statistics(self, client):
        random, sketches = client.random("sketch"), {}
        for inputs in client.inputs(self.layers):
            for name, rows in inputs.items():
                draws = torch.from_numpy(random.standard_normal((len(rows), 3))).to(rows)
                sketches[name] = sketches.get(name, 0) + draws.T @ rows
        return sketches


class CountsCalls(Aggregator):  # anneals its loss with a counter on the object
    calls = 0

    def loss(self, net, batch, context):
        self.calls += 1
        return super().loss(net, batch, context) * (1 + 0.1 * self.calls)


class MeanOverPadding(Aggregator):  # takes the mean over all rows, padding too
    def loss(self, net, batch, context):
        logits = net.logits(batch.inputs)[:, batch.task.classes]
        return torch.nn.functional.cross_entropy(logits, batch.task.local(batch.labels))


class Branches(Aggregator):  # branches on the value of the loss
    def loss(self, net, batch, context):
        loss = masked_cross_entropy(net.logits(batch.inputs), batch)
        return loss if loss.item() > 1.0 else 0.5 * loss


class FindsTheLargest(Aggregator):  # indexes with a boolean mask
    def loss(self, net, batch, context):
        logits = net.logits(batch.inputs)
        return masked_cross_entropy(logits, batch) + logits[logits > 3].sum()


class AsksTheBatch(Aggregator):  # centres the initial network's features by the mean of their batch
    def query(self, net, inputs):
        features = net.features(inputs)
        return features - features.mean(0)


class MisspellsAPiece(Aggregator):  # trains a layer that the network does not have
    def wire(self, server):
        return Wire(train=("head.*", "*.lora_a"))


class ReplaysAtRandom(Aggregator):  # draws its replay samples anew when it is asked again
    def replay(self, server):
        self.calls = getattr(self, "calls", 0) + 1
        images = torch.full((2, 8, 8, 1), self.calls, dtype=torch.uint8).numpy()
        return Samples(images, torch.zeros(2, dtype=torch.int64).numpy())


class EncodesInPlace(Aggregator):  # clips the row that the engine still needs
    def encode(self, update, client):
        return {name: tensor.clamp_(-1e-3, 1e-3) for name, tensor in update.items()}


class CountsInDecode(Aggregator):  # weights uploads by the order in which they are decoded
    def decode(self, message, server):
        server.state["seen"] = server.state.get("seen", 0) + 1
        return {name: tensor / server.state["seen"] for name, tensor in message.items()}


class DoesNotSeeTheUpdate(Aggregator):  # sends what it noted itself, which no stressor has touched
    def statistics(self, client):
        client.state["own"] = client.net.vector - client.received_model
        return {}

    def encode(self, update, client):
        own, layout = client.state.pop("own"), client.net.layout
        return {name: own[layout.piece(name).span].view(tensor.shape) for name, tensor in update.items()}


class NoOracle(Aggregator):  # does not answer under `oracle` in the true task's slice: it forgets the offset
    def predictors(self, server):
        class Local(TrueTask):
            def __call__(self, logits, tasks, true):
                return super().__call__(logits, tasks, true) - true.offset

        return Predictors({"global": lambda: server.vector}, {**super().predictors(server).rules, "oracle": Local()})


class MajorityVote(Aggregator):  # gives a whole batch the answer of its majority
    def predictors(self, server):
        class Vote(AllClasses):
            def __call__(self, logits, tasks, true):
                found = super().__call__(logits, tasks, true)
                return torch.full_like(found, int(found.mode().values))

        return Predictors({"global": lambda: server.vector}, {**super().predictors(server).rules, "none": Vote()})


class DeploysAnother(Aggregator):  # answers with a scaled model, whose bytes nobody counts
    def predictors(self, server):
        return Predictors({"global": lambda: 1.5 * server.vector}, super().predictors(server).rules)


class ForgetsItsMemory(Aggregator):  # keeps samples that its loss never reads
    def begin_client_task(self, client):
        client.memory = client.memory.join(client.past.take(range(min(2, len(client.past)))))


class MeanOverDraws(Aggregator):  # takes the mean over all rows of a draw, padding too
    def begin_client_task(self, client):
        client.memory = client.memory.join(client.past.take(range(min(2, len(client.past)))))

    def loss(self, net, batch, context):
        loss = super().loss(net, batch, context)
        return loss if batch.memory is None else loss + net.logits(batch.memory.inputs).square().mean()


class LeavesAVector(Aggregator):  # the client half keeps on the object what it has trained
    def finish(self, client):
        before = getattr(self, "last", client.net.vector.clone())
        self.last = client.net.vector.clone()
        return 0.5 * (before + client.net.vector)


BROKEN = {
    "contract": [NoVersion],
    "params-documented": [Undocumented, OutsideItsSpace, OutsideASpaceThatEndsAtZero],
    "runs": [CannotPrepare, MisspellsAPiece, DividesByZero, EqualTasks],
    "one-client": [Halves, CountsRegistered],
    "identical-clients": [Adds],
    "permutation": [TrustsTheFirst],
    "faulty-client": [ExpectsEveryone, NeedsARound],
    "attack-felt": [DoesNotSeeTheUpdate],
    "encoding": [EncodesInPlace, CountsInDecode],
    "idle-task": [CountsRoundingNoise],
    "few-samples": [Standardises, SecondHelping],
    "accuracy-matrix": [LastTaskOnly],
    "answers": [NoOracle, MajorityVote],
    "repeatable": [Lottery],
    "resume": [Momentum, KeepsObjects, KeepsAReference],
    "deployed": [DeploysAnother],
    "client-memory": [ForgetsItsMemory],
    "isolation": [Whispers, WhispersInItsClass, CountsCalls, LeavesAVector],
    "attributes": [KeepsTheNetwork, KeepsAClosure, Momentum],
    "messages": [SendsAView, SendsANumber],
    "replay": [ReplaysAtRandom],
    "loss-pure": [CountsCalls],
    "loss-mask": [MeanOverPadding, MeanOverDraws],
    "loss-capture": [Branches, FindsTheLargest],
    "query-per-sample": [AsksTheBatch],
    "statistics-batch-size": [MeanOfMeans, OneStreamForAllLayers],
}
"""For each check the aggregators that fail it; those of GPUs and of bytes stand alone."""
