"""FedDyn: Acar et al. 2021, "Federated Learning Based on Dynamic Regularization"."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch

from fcilbench.api import Aggregator, Client, Context, Field, Message, Net, Server, Space, Updates
from fcilbench.api import Params as BaseParams


class FedDyn(Aggregator):
    """FedDyn: a regulariser that clients change in each round, so that their minima and the global one agree.

    Client k keeps h_k `[P]`, which is -1 / alpha times its last gradient at the end of training, and minimises

        L_k(theta) + alpha / 2 ||theta - theta_r||^2 + alpha <h_k, theta>;

    each step has the gradient g + alpha (theta - theta_r + h_k), and afterwards h_k <- h_k + Delta_k with Delta_k =
    theta_k - theta_r. The server keeps H <- H + 1/N sum_k Delta_k over all N registered clients, the mean of all h_k,
    and sets theta <- theta_r + mean_k Delta_k + H (Acar et al. 2021, algorithm 1, where g_k = -alpha h_k and h =
    -alpha H).

    Means are plain. `weighting: samples`, as in the authors' code, minimises sum_k p_k L_k instead: alpha_k = alpha m /
    n_k, where m is the mean of n_k over the clients that have uploaded in the task, from its second round on. Buffers
    are averaged by samples.

    The paper has no tasks. h_k and H stand for gradients of a task's loss: they begin anew with each task, or are
    carried (`memory: carry`), and are 0 on head rows of other tasks, which H would move in every round for ever.

    H adds up while clients agree: five rounds of equal Delta move 20 Delta, FedAvg 5. `feddyn/correction` is
    ||H|| / ||mean_k Delta_k||.
    """

    version = "1"
    card: ClassVar = {
        "family": "optimisation",
        "trained": "the whole model",
        "travels": "the model",
        "memory": "the sum of its updates in the task",
        "source": "Acar et al. 2021, ICLR",
    }
    breaks: ClassVar = {
        "one-client": "the server adds its correction H to the mean of the clients' steps",
        "identical-clients": "the server adds its correction H to the mean of the clients' steps",
    }

    class Params(BaseParams):
        """Hyperparameters of FedDyn."""

        alpha: float = Field(
            0.01,
            ge=0,
            description="weight of the regulariser",
            source="Acar et al. 2021, who tune it in {0.1, 0.01, 0.001}",
            space=Space(low=1e-3, high=10.0, log=True),
        )
        weighting: Literal["samples", "uniform"] = Field(
            "uniform",
            description="whether clients count by samples in what is minimised, or equally",
            source="Acar et al. 2021, algorithm 1",
        )
        memory: Literal["task", "carry"] = Field(
            "task", description="whether h_k and H begin anew with each task, or are kept"
        )
        dynamic: bool = Field(True, description="false: h_k = H = 0, which is FedProx with plain means")

    # ---------------------------------------------------------------- clients

    def begin_client_task(self, client: Client) -> None:
        """Sets h_k to 0, or clears what a carried one has on head rows that no longer train."""
        if not self.params.dynamic:
            return
        state, parts, vector = client.state, client.net.layout, client.received_model
        own = torch.zeros_like(vector[parts.trainable])
        if self.params.memory == "carry" and "h" in state:
            own = state["h"] * parts.live(client.task.classes).to(vector.device)
        state["h"] = own
        if self.params.weighting == "samples":
            state["samples"] = torch.tensor(client.samples, dtype=torch.float64, device=vector.device)

    def gradient(self, gradient: torch.Tensor, net: Net, context: Context) -> None:
        """Adds alpha (theta - theta_r + h_k), or alpha_k in place of alpha."""
        term = net.parameters - context["received"][net.layout.trainable]
        if "state/h" in context:
            term += context["state/h"]
        if "samples" in context:
            term *= context["samples"] / context["state/samples"]
        gradient.add_(term, alpha=self.params.alpha)

    def statistics(self, client: Client) -> Message:
        """Sends nothing; adds the client's update to h_k."""
        if self.params.dynamic:
            parts = client.net.layout
            moved = (client.net.vector - client.received_model)[parts.trainable]
            client.state["h"] = client.state["h"] + moved * parts.live(client.task.classes).to(moved.device)
        return {}

    # ---------------------------------------------------------------- server

    def begin_task(self, server: Server) -> None:
        """Sets H to 0, or clears what a carried one has on head rows that no longer train."""
        state = server.state
        state["samples"] = {}
        if self.params.memory == "carry" and "correction" in state:
            state["correction"] *= self._live(server)
        else:
            state["correction"] = torch.zeros_like(server.vector[server.layout.trainable])

    @staticmethod
    def _live(server: Server) -> torch.Tensor:
        """Returns which entries train in this task, bool `[P]`."""
        return server.layout.live(server.task.classes).to(server.vector.device)

    def broadcast(self, server: Server) -> Message:
        """Sends the mean number of samples, a float64, where clients weigh by it."""
        known = server.state["samples"].values()
        if not known or self.params.weighting == "uniform" or not self.params.dynamic:
            return {}
        return {"samples": torch.tensor(sum(known) / len(known), dtype=torch.float64, device=server.vector.device)}

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Moves the trained entries to the mean model and further by H, and buffers to their mean."""
        parts, state = updates.layout, server.state
        state["samples"].update(zip(updates.clients, updates.samples, strict=True))
        direction = updates.mean(parts.trainable, "uniform")
        if self.params.dynamic:
            length = float(direction.norm())
            state["correction"].add_(direction * self._live(server), alpha=len(updates.clients) / server.clients)
            direction += state["correction"]
            if length > 0:
                server.log("feddyn/correction", float(state["correction"].norm()) / length)
        server.step(direction, parts.trainable)
        server.step(updates.mean(parts.buffers), parts.buffers)
