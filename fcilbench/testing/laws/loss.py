"""Laws of the local objective: a function of tensors, so that it can be captured, stacked and padded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.func import grad, vmap

from fcilbench.api.aggregator import Aggregator
from fcilbench.api.client import Batch, Context, Net
from fcilbench.engine.model import FlatModel
from fcilbench.testing.law import LawBroken, Laws, NotApplicable
from fcilbench.testing.subject import AggregatorSubject, gap

LAWS: Laws[AggregatorSubject] = Laws()

_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Moment:
    """One call of the loss, in the last task of a run, where penalties on old tasks are at work."""

    aggregator: Aggregator
    model: FlatModel
    batch: Batch
    context: Context


@contextmanager
def moment(subject: AggregatorSubject) -> Iterator[Moment]:
    """Gives the last call of the loss in a run of two tasks, with the network in eval mode.

    Raises:
        NotApplicable: If the method does not train.
    """
    if not subject.trains:
        raise NotApplicable("the method is training-free: clients minimise nothing")
    calls: list[Moment] = []

    def watch(aggregator: Aggregator) -> None:
        own = aggregator.loss

        def loss(net: Any, batch: Batch, context: Context) -> torch.Tensor:
            kept = {name: value.detach().clone() for name, value in context.items()}
            calls[:] = [Moment(aggregator, net, batch, kept)]
            return own(net, batch, context)

        aggregator.loss = loss  # type: ignore[method-assign]

    subject.run(watch, tasks=(4, 6))
    found = calls[0]
    del found.aggregator.loss  # the class's own again
    found.model.network.eval()
    yield found


def _value(now: Moment, theta: torch.Tensor, batch: Batch | None = None) -> torch.Tensor:
    return now.aggregator.loss(_net(now, theta), batch or now.batch, now.context)


def _net(now: Moment, theta: torch.Tensor) -> Net:
    return now.model.under(torch.cat([theta, now.model.vector[now.model.layout.buffers]]))


def _theta(now: Moment) -> torch.Tensor:
    return now.model.vector[now.model.layout.trainable].detach().clone()


@LAWS.law(
    "loss-pure",
    "the loss is a differentiable scalar; two calls with the same arguments agree, and leave them and the plugin as "
    "they were",
    fix="compute from `net`, `batch` and `context` alone; no attributes, no in-place operations, no random numbers",
)
def loss_pure(subject: AggregatorSubject) -> None:
    """Calls loss and gradient hook twice."""
    with moment(subject) as now:
        theta = _theta(now).requires_grad_()
        inputs, labels = now.batch.inputs.clone(), now.batch.labels.clone()
        context = {name: value.clone() for name, value in now.context.items()}
        before = repr(vars(now.aggregator))
        one, two = _value(now, theta), _value(now, theta)
        if one.shape != () or not one.is_floating_point() or not one.requires_grad:
            raise LawBroken(f"the loss is {one.dtype} {list(one.shape)}, gradient {one.requires_grad}: not a scalar")
        if not bool(torch.isfinite(one)):
            raise LawBroken(f"the loss is {float(one.detach())}")
        if not torch.equal(one, two):
            raise LawBroken(f"two calls give {float(one.detach())} and {float(two.detach())}")
        gradients = [_hooked(now, theta, value) for value in (one, two)]
        if not torch.equal(*gradients):
            raise LawBroken("the gradients of two calls differ")
        if repr(vars(now.aggregator)) != before:
            raise LawBroken("the loss changed attributes of the plugin")
        if not torch.equal(now.batch.inputs, inputs) or not torch.equal(now.batch.labels, labels):
            raise LawBroken("the loss changed its batch in place")
        for name, value in context.items():
            if not torch.equal(now.context[name], value):
                raise LawBroken(f"the loss changed {name!r} of its context in place")


def _hooked(now: Moment, theta: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    (gradient,) = torch.autograd.grad(value, theta)
    with torch.no_grad():
        now.aggregator.gradient(gradient, _net(now, theta.detach()), now.context)
    return gradient


@LAWS.law(
    "loss-mask",
    "rows of padding (mask 0) do not count in the loss",
    fix="multiply per-sample losses by `batch.mask` and divide by its sum, as `masked_cross_entropy` does",
)
def loss_mask(subject: AggregatorSubject) -> None:
    """The loss with two rows of padding is the loss without them."""
    with moment(subject) as now:
        batch, theta = now.batch, _theta(now)
        noise = torch.full_like(batch.inputs[:1], 3.0).expand(2, *batch.inputs.shape[1:])
        padded = replace(
            batch,
            inputs=torch.cat([batch.inputs, noise]),
            labels=torch.cat([batch.labels, torch.full_like(batch.labels[:1], batch.task.offset).expand(2)]),
            mask=torch.cat([batch.mask, torch.zeros_like(batch.mask[:1]).expand(2)]),
        )
        plain, filled = _value(now, theta), _value(now, theta, padded)
        if not torch.allclose(plain, filled, rtol=1e-4, atol=1e-6):
            raise LawBroken(f"the loss is {float(plain):.6g}, with two rows of padding {float(filled):.6g}")


@LAWS.law(
    "loss-stacks",
    "torch.func.vmap of the gradient over a stack of models equals the gradients one by one",
    fix="no .item(), no `if` on a tensor, no in-place writes into new tensors: use torch.where and masks; if the loss "
    "cannot be stacked by nature, declare the law in `breaks`",
)
def loss_stacks(subject: AggregatorSubject) -> None:
    """Two models at once."""
    with moment(subject) as now:
        theta = _theta(now)
        stack = torch.stack([theta, theta * 0.9 + 0.01])
        try:
            found = vmap(grad(lambda vector: _value(now, vector)), randomness="different")(stack)
        except Exception as error:
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise LawBroken(f"it cannot be stacked: {reason[:200]}") from error
        for row, vector in zip(found, stack, strict=True):
            leaf = vector.clone().requires_grad_()
            (expected,) = torch.autograd.grad(_value(now, leaf), leaf)
            wrong = gap(row, expected, expected)
            if not wrong <= _TOLERANCE:
                raise LawBroken(f"stacked gradients differ by up to {wrong:.2g} of the largest entry")
