"""SCAFFOLD: Karimireddy et al. 2020, "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from fcilbench.api import (
    Aggregator,
    Client,
    Context,
    Field,
    Message,
    Net,
    No,
    PresetParams,
    Protocol,
    Request,
    Server,
    Space,
    Updates,
)
from fcilbench.vectors.local_steps import gradient_weight
from fcilbench.vectors.sums import client_weights, weighted_sum


class Scaffold(Aggregator):
    """SCAFFOLD: control variates correct each local step for how a client's gradient differs from the mean one.

    The server keeps a control variate c `[P]`, each client its own c_k `[P]`. Each local step has the gradient
    g_k - c_k + c. After K steps from theta_r to y_k the client sets (Karimireddy et al. 2020, algorithm 1)

        option I:   c_k+ = grad L_k(theta_r) over all its samples,
        option II:  c_k+ = c_k - c + (theta_r - y_k) / A_k,

    and sends y_k - theta_r and c_k+ - c_k. A_k is the total weight of the gradients in the move: the sum of the
    learning rates, with momentum more (`fcilbench.vectors.local_steps`). The server adds eta_g sum_k w_k (y_k -
    theta_r) to theta, and c = sum_k w_k c_k holds after each round. Buffers have no control variate: their mean by
    samples is taken.

    Ours: w_k = p_k in both sums, c over the clients that have uploaded in the task, and a client begins a task with
    c_k = c, its first steps uncorrected (`cold_start: received`). The paper: w_k = 1 / |S| in theta, 1 / N over all
    registered clients in c, and c_k = 0 at first. It has no tasks: control variates are gradients of a task's loss, so
    they begin anew with each task, or are carried (`memory: carry`), and never have values on head rows that do not
    train: those would move without a sample that corrects them.
    """

    version = "1"
    card: ClassVar = {
        "family": "optimisation",
        "trained": "the whole model",
        "travels": "the model and a control variate, both ways",
        "memory": "its control variate",
        "source": "Karimireddy et al. 2020, ICML",
    }

    class Params(PresetParams):
        """Hyperparameters of SCAFFOLD."""

        presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
            "original": {"weighting": "uniform", "cold_start": "zero"},
        }

        eta_g: float = Field(
            1.0,
            gt=0,
            description="learning rate of the server",
            source="Karimireddy et al. 2020",
            space=Space(low=0.5, high=1.5),
        )
        option: Literal["auto", "I", "II"] = Field(
            "auto",
            description="what a client's control variate becomes: I, its gradient at the received model; II, the mean "
            "gradient of its steps, which needs `sgd`; auto: II for `sgd`, else I",
        )
        weighting: Literal["samples", "uniform"] = Field(
            "samples", description="weights of the clients by sample count, or equal"
        )
        cold_start: Literal["received", "zero"] = Field(
            "received",
            description="a client's control variate in its first round of a task: the received one, so that nothing is "
            "corrected, or 0; with 0 and equal weights the server's is the mean over all registered clients",
        )
        memory: Literal["task", "carry"] = Field(
            "task", description="whether control variates begin anew with each task, or are kept"
        )

    def prepare(self, network: nn.Module, request: Request) -> No | None:
        """Declines option II where a step is no linear function of the gradient."""
        if self._option(request.protocol) == "I":
            return None
        if request.protocol.optimizer != "sgd":
            return No(f"SCAFFOLD: option II divides a move by learning rates, {request.protocol.optimizer} rescales it")
        if request.protocol.clip_norm is not None:
            return No("SCAFFOLD: option II takes the mean gradient from the move, which clip_norm has shortened")
        return None

    def _option(self, protocol: Protocol) -> str:
        option: str = self.params.option
        return option if option != "auto" else "II" if protocol.optimizer == "sgd" else "I"

    # ---------------------------------------------------------------- clients

    def begin_client_task(self, client: Client) -> None:
        """Sets the client's control variate, or clears what a carried one has on head rows that no longer train."""
        state, parts = client.state, client.net.layout
        if self.params.memory == "carry" and "control" in state:
            live = parts.live(client.task.classes).to(state["control"].device)
            state["control"] = state["control"] * live
            return
        start = client.received.get("control") if self.params.cold_start == "received" else None
        zero = torch.zeros_like(client.received_model[parts.trainable])
        state["control"], state["sent"] = zero if start is None else start.clone(), False

    def gradient(self, gradient: torch.Tensor, net: Net, context: Context) -> None:
        """Adds c - c_k; c is 0 before the first merge of a task, and then not sent."""
        own = context["state/control"]
        gradient.add_(context["control"] - own if "control" in context else -own)

    def statistics(self, client: Client) -> Message:
        """Sends the change of the client's control variate `[P]`, and keeps the new one."""
        state, parts = client.state, client.net.layout
        if self._option(client.protocol) == "I":
            control = self._full_gradient(client)
        else:
            weight = gradient_weight(client.learning_rates, client.protocol.momentum)
            control = (client.received_model - client.net.vector)[parts.trainable] / weight
            control += (
                state["control"] - client.received["control"] if "control" in client.received else state["control"]
            )
        control *= parts.live(client.task.classes).to(control.device)
        change = control - state["control"] if state["sent"] else control.clone()
        state["control"], state["sent"] = control, True
        return {"control": change}

    def _full_gradient(self, client: Client) -> torch.Tensor:
        """Returns the mean gradient `[P]` over the client's samples at the received model, batch by batch."""
        vector, size = client.received_model.clone().requires_grad_(), client.protocol.batch_size
        own = {f"state/{name}": value for name, value in client.state.items() if isinstance(value, torch.Tensor)}
        context = {**client.received, **own, "received": client.received_model}
        total, samples = torch.zeros_like(vector), 0
        for batch in client.batches():
            for start in range(0, len(batch.labels), size):
                rows = slice(start, start + size)
                part = replace(batch, inputs=batch.inputs[rows], labels=batch.labels[rows], mask=batch.mask[rows])
                with torch.enable_grad():
                    loss = self.loss(client.net.under(vector), part, context) * len(part.labels)
                total += torch.autograd.grad(loss, vector)[0]
                samples += len(part.labels)
        return total[client.net.layout.trainable] / samples

    # ---------------------------------------------------------------- server

    def begin_task(self, server: Server) -> None:
        """Forgets the control variates, or clears what they have on head rows that no longer train."""
        state = server.state
        if self.params.memory == "carry" and "controls" in state:
            state["controls"] *= server.layout.live(server.task.classes).to(server.vector.device)
        else:
            state.pop("controls", None)
            state["weights"] = {}

    def broadcast(self, server: Server) -> Message:
        """Sends c `[P]` once a client has uploaded; before, it is 0."""
        state = server.state
        if "controls" not in state:
            return {}
        everybody = self.params.weighting == "uniform" and self.params.cold_start == "zero"
        total = server.clients if everybody else sum(state["weights"].values())
        return {"control": state["controls"] / total}

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Moves the model along the mean update, and adds what the control variates have changed by.

        `controls` is the sum of the clients' control variates, each weighed as in its first upload.
        """
        state, parts = server.state, updates.layout
        if "controls" not in state:
            state["controls"] = torch.zeros_like(server.vector[parts.trainable])
        for client, samples, message in zip(updates.clients, updates.samples, updates.statistics, strict=True):
            weight = state["weights"].setdefault(client, samples if self.params.weighting == "samples" else 1)
            state["controls"].add_(message["control"], alpha=weight)
        weights = client_weights(updates.weights, self.params.weighting)
        server.step(self.params.eta_g * weighted_sum(weights, updates.delta[:, parts.trainable]), parts.trainable)
        server.step(updates.mean(parts.buffers), parts.buffers)
