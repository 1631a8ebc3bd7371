"""What DGR and FedCIL share: a generator and a critic beside the classifier, federated, and the images they replay."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fcilbench.api import (
    Client,
    Field,
    ImageInput,
    Message,
    No,
    Params,
    Request,
    Server,
    Space,
    Updates,
)
from fcilbench.plugins.aggregators.synthesis import ServerImages, declined_text, network_input
from fcilbench.plugins.aggregators.synthesis import pixels as unit_range
from fcilbench.vectors.gan import from_vector, pixels, to_vector

Gan = tuple[nn.Module, nn.Module]
"""Generator and critic."""

_CHUNK = 256
"""Images that the server makes or labels at a time."""


class GanParams(Params):
    """Hyperparameters of the networks that make images."""

    n_syn: int = Field(1000, ge=0, description="images that are replayed in a task; 0 is FedAvg, without a generator")
    gan_steps: int = Field(50, ge=1, description="steps of the critic after a client's local training")
    gan_batch: int = Field(32, ge=2, description="images of such a step", source="code of FedCIL (Qi et al. 2023)")
    lr_gan: float = Field(
        2e-4,
        gt=0,
        description="learning rate of generator and critic (Adam)",
        source="code of FedCIL (Qi et al. 2023), CIFAR",
        space=Space(low=1e-5, high=1e-3, log=True),
    )
    gen_image_size: int = Field(
        32, ge=8, description="height and width of generated images, at most those of the backbone's input"
    )
    gen_width: int = Field(
        512, ge=8, description="maps of the generator's first layer, half as many in each later one and in the critic"
    )


class GenerativeReplay(ServerImages):
    """Base of the methods whose clients train a generator G and a critic D on their samples after local training.

    G and D travel beside the model in both directions, as vectors of all their floats, and are averaged by p_k. At the
    end of a task, the last one excepted, the server draws `n_syn` images from G, which clients replay in the next task.
    The generator with which a task began, G_{t-1}, is sent as `last`, so that clients can replay it to their G and D;
    in the task's first round it is the generator itself, which is then not sent a second time.
    """

    params: GanParams

    def prepare(self, network: nn.Module, request: Request) -> No | None:
        """Declines text backbones, for which a generator can make no inputs."""
        return declined_text(type(self).__name__, request)

    @abstractmethod
    def _make(self, channels: int, size: int, classes: int) -> tuple[Callable[[], nn.Module], Callable[[], nn.Module]]:
        """Returns functions that build the generator and the critic."""

    @abstractmethod
    def _learn(
        self, client: Client, gan: Gan, last: nn.Module | None, images: torch.Tensor, labels: torch.Tensor
    ) -> None:
        """Trains a client's generator and critic on its images in [0, 1], and on those of G_{t-1} if there is one."""

    @abstractmethod
    def _draw(self, server: Server, generator: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns `n_syn` images in [0, 1] and their labels, which the next task replays."""

    def _replays(self) -> bool:
        return self.params.n_syn > 0

    def _networks(self, wanted: ImageInput, classes: int) -> tuple[Callable[[], nn.Module], Callable[[], nn.Module]]:
        return self._make(wanted.channels, self._size(wanted), classes)

    def _size(self, wanted: ImageInput) -> int:
        """Returns height and width of the generated images."""
        size: int = min(self.params.gen_image_size, max(*wanted.shape, 8))
        return size

    # ---------------------------------------------------------------- clients

    def statistics(self, client: Client) -> Message:
        """Sends what training has changed of the generator and of the critic."""
        received = client.received
        if "critic" not in received:
            return {}
        assert client.image_input is not None  # `prepare` declines texts
        makers = self._networks(client.image_input, client.net.layout.classes)
        start = received["generator"] if "generator" in received else received["last"], received["critic"]
        generator, critic = (from_vector(make, vector) for make, vector in zip(makers, start, strict=True))
        last = from_vector(makers[0], received["last"]).eval() if "last" in received else None
        images, labels = self._own(client)
        with torch.enable_grad():
            self._learn(client, (generator, critic), last, images, labels)
        names = ("generator", "critic")
        return {n: to_vector(m) - s for n, m, s in zip(names, (generator, critic), start, strict=True)}

    def _own(self, client: Client) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns a client's images in [0, 1], `[n, channels, size, size]`, made smaller by averaging, and labels."""
        assert client.image_input is not None
        size, images, labels = self._size(client.image_input), list[torch.Tensor](), list[torch.Tensor]()
        for batch in client.batches():
            plain = unit_range(batch.inputs, client.image_input)
            fits = plain.shape[2:] == (size, size)
            images.append(plain if fits else F.interpolate(plain, (size, size), mode="area"))
            labels.append(batch.labels)
        return torch.cat(images), torch.cat(labels)

    # ---------------------------------------------------------------- server

    def begin(self, server: Server) -> None:
        """Draws the initial generator and critic, with PyTorch's own initial weights."""
        if not self._replays():
            return
        assert server.image_input is not None
        devices = [server.vector.device] if server.vector.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(int(server.random("gan").integers(2**63)))
            networks = [make() for make in self._networks(server.image_input, server.layout.classes)]
        for name, network in zip(("generator", "critic"), networks, strict=True):
            server.state[name] = to_vector(network).to(server.vector.device)
        server.state["trained"] = False

    def begin_task(self, server: Server) -> None:
        """Makes the generator that the last task has left the one that this task replays."""
        if server.state.get("trained"):
            server.state["last"] = server.state["generator"].clone()

    def broadcast(self, server: Server) -> Message:
        """Sends generator and critic, and from the second task on the generator with which the task began."""
        state = server.state
        if "critic" not in state:
            return {}
        names = ["critic", *(["last"] if "last" in state else [])]
        if server.round > 0 or "last" not in state:  # in a task's first round they are the same
            names.append("generator")
        return {name: state[name] for name in names}

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Averages the model, the generator and the critic by sample count."""
        super().aggregate(updates, server)
        state = server.state
        if "critic" not in state:
            return
        for name in ("generator", "critic"):
            weights, change = updates.weights.to(state[name]).tolist(), torch.zeros_like(state[name])
            for weight, message in zip(weights, updates.statistics, strict=True):
                change.add_(message[name], alpha=weight)
            state[name] = state[name] + change
        state["trained"] = True

    def end_task(self, server: Server, statistics: dict[int, Message]) -> None:
        """Draws the images that the next task replays."""
        if server.last_task or not server.state.get("trained"):
            return
        generator = self._network(server, "generator").eval()
        with torch.no_grad():
            images, labels = self._draw(server, generator)
        server.state["images"], server.state["labels"] = pixels(images), labels

    def _network(self, server: Server, name: str, vector: torch.Tensor | None = None) -> nn.Module:
        """Returns the network whose floats are the state's vector of that name, or another `vector`."""
        assert server.image_input is not None
        generator, critic = self._networks(server.image_input, server.layout.classes)
        return from_vector(critic if name == "critic" else generator, server.state[name] if vector is None else vector)


def normal(rows: int, columns: int, random: np.random.Generator, like: torch.Tensor) -> torch.Tensor:
    """Returns standard normal numbers `[rows, columns]` on the device of `like`."""
    return torch.from_numpy(random.standard_normal((rows, columns), dtype=np.float32)).to(like)


def chunked(function: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    """Applies a function that looks at each row alone to many rows, some at a time."""
    return torch.cat([function(part) for part in torch.split(rows, _CHUNK)])


def taught(server: Server, images: torch.Tensor) -> torch.Tensor:
    """Returns the global model's logits over all classes seen, of images in [0, 1] as clients will get them."""
    assert server.image_input is not None
    wanted, net, seen = server.image_input, server.net, server.tasks[-1].seen
    sent = (255 * images.clamp(0.0, 1.0)).round() / 255
    return chunked(lambda part: net.logits(network_input(part, wanted))[:, :seen], sent)


def adam(networks: Gan, rate: float, betas: tuple[float, float]) -> tuple[torch.optim.Adam, torch.optim.Adam]:
    """Returns an optimiser for the generator and one for the critic."""
    generator, critic = (torch.optim.Adam(network.parameters(), lr=rate, betas=betas) for network in networks)
    return generator, critic


def descend(optimiser: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    """Takes one step of an optimiser; the gradients of no other network are computed."""
    own = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    optimiser.zero_grad()
    loss.backward(inputs=own)  # type: ignore[no-untyped-call]
    optimiser.step()
