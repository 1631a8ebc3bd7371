"""Low-rank adapters: Hu et al. 2022, "LoRA: Low-Rank Adaptation of Large Language Models".

A linear layer with the frozen weight W `[out, in]` becomes W + (alpha / rank) B A with trained factors A `[rank, in]`
and B `[out, rank]`. Whatever else the backbone has is frozen, BatchNorm statistics included: it is never trained, never
sent, and no part of the state vector. The classifier head stays outside and trains as always.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fcilbench.api.message import Layout, matches
from fcilbench.errors import UsageError
from fcilbench.spec.params import Field, Params
from fcilbench.vectors.lora import merge_products

_FUSED = "qkv"
"""A linear layer of this name computes query, key and value, in this order; each third can have its own adapter."""

Merge = Callable[[str, torch.Tensor], torch.Tensor]
"""Maps a layer's name and the clients' matrices `[N, m, in]` to the merged one `[m, in]`, each row by itself."""


class FrozenBatchNorm(_BatchNorm):
    """A BatchNorm layer that normalises by its running statistics in training too; see `freeze_batch_norm`."""

    def train(self, mode: bool = True) -> Self:
        """Keeps the layer in eval mode, so that its running statistics stay as they are."""
        return super().train(False)


def freeze_batch_norm(network: nn.Module) -> None:
    """Makes all BatchNorm layers of a network keep their running statistics, in place.

    The statistics leave the state vector: they are never sent. Scale and shift stay as trainable as they were.
    """
    for module in list(network.modules()):
        if isinstance(module, _BatchNorm) and not isinstance(module, FrozenBatchNorm):
            module.__class__ = type(type(module).__name__, (FrozenBatchNorm, type(module)), {})
            module._non_persistent_buffers_set.update(module._buffers)
            module.eval()


class Lora(Params):
    """The option `adapter` of a backbone."""

    use: Literal["lora", "ffa-lora"] = Field(
        description="lora trains A and B; ffa-lora (Sun et al. 2024) keeps the random A and trains B alone"
    )
    rank: int = Field(4, ge=1, description="rank of the product B A")
    alpha: float = Field(4.0, gt=0, description="the product is scaled by alpha / rank")
    targets: tuple[str, ...] = Field(
        ("*",),
        min_length=1,
        description="ends of the names of the linear layers to adapt, such as qkv, q, proj, fc1, 0.attn.proj; *: all",
    )


class LoraLinear(nn.Linear):
    """A linear layer with a frozen weight `[out, in]` and bias, and low-rank adapters beside them.

    Its factors are the parameters `lora_A` `[rank, in]` and `lora_B` `[out, rank]`; with adapters for parts of a fused
    projection `lora_A_q` `[rank, in]` and `lora_B_q` `[out / 3, rank]`, and so on. A is uniform in +-1 / sqrt(in) and
    drawn from torch's global generator, B is 0: at first the layer computes what `linear` does.

    Args:
        linear: The layer whose weight and bias are taken over, and frozen.
        alpha: Products are scaled by alpha / rank.
        parts: Which of `q`, `k` and `v` are adapted in a fused projection; empty for one adapter of the whole layer.
        tasks: Number of adapters, one for each task, which add up; their factors' names end in `_0`, `_1`, and so on.

    Attributes:
        rows: Output rows of each adapter, by the end of its parameters' names: `""`, or `_q`, `_k`, `_v`, `_q_0`, ...
    """

    def __init__(
        self, linear: nn.Linear, rank: int, alpha: float, parts: Sequence[str] = (), tasks: int | None = None
    ) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.requires_grad_(False)
        self.scale, third = alpha / rank, linear.out_features // len(_FUSED)
        thirds = {part: slice(place * third, (place + 1) * third) for place, part in enumerate(_FUSED)}
        self.rows = {f"_{part}": thirds[part] for part in parts} or {"": slice(0, linear.out_features)}
        if tasks is not None:
            self.rows = {f"{end}_{task}": rows for task in range(tasks) for end, rows in self.rows.items()}
        for end, rows in self.rows.items():
            a = torch.empty(rank, linear.in_features, device=linear.weight.device)
            nn.init.kaiming_uniform_(a, a=math.sqrt(5))
            self.register_parameter(f"lora_A{end}", nn.Parameter(a))
            self.register_parameter(f"lora_B{end}", nn.Parameter(a.new_zeros(rows.stop - rows.start, rank)))

    def factors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns all factors as one pair A `[m, in]` and B `[out, m]`, unscaled; B has zeros outside of its parts."""
        # Not `get_parameter`: the engine may run the network with plain tensors in place of its parameters.
        pairs = [(getattr(self, f"lora_A{end}"), getattr(self, f"lora_B{end}")) for end in self.rows]
        if "" in self.rows:
            return pairs[0]
        bounds = [(0, 0, rows.start, self.out_features - rows.stop) for rows in self.rows.values()]
        wide = [F.pad(b, bound) for (_, b), bound in zip(pairs, bounds, strict=True)]
        return torch.cat([a for a, _ in pairs]), torch.cat(wide, dim=1)

    def product(self) -> torch.Tensor:
        """Returns what the adapters add to the weight: (alpha / rank) B A, `[out, in]`."""
        a, b = self.factors()
        return self.scale * (b @ a)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Maps `[..., in]` to `[..., out]` by W + (alpha / rank) B A, without forming the product."""
        a, b = self.factors()
        return F.linear(inputs, self.weight, self.bias) + F.linear(self.scale * F.linear(inputs, a), b)


def lora_layers(network: nn.Module) -> dict[str, LoraLinear]:
    """Returns the LoRA layers of a network by name; a factor is the piece `<name>.lora_A...` of the state vector."""
    return {name: module for name, module in network.named_modules() if isinstance(module, LoraLinear)}


def insert_lora(
    network: nn.Module,
    rank: int,
    alpha: float,
    targets: Iterable[str] = ("*",),
    train_a: bool = True,
    *,
    tasks: int | None = None,
) -> None:
    """Freezes a network, BatchNorm statistics included, and gives its linear layers low-rank adapters, in place.

    Args:
        network: A backbone, such as `network.extractor` in `Aggregator.prepare`; without the classifier head.
        rank: Rank of each adapter.
        alpha: Products are scaled by alpha / rank.
        targets: Which layers: ends of their names, after a dot. `proj` are all layers called so,
            `blocks.0.attn.proj` is one; `*` stands for any characters. In a fused projection `qkv` the names `q`, `k`
            and `v` are its thirds, each with factors of its own.
        train_a: Whether A is trained; else B alone is (FFA-LoRA, Sun et al. 2024).
        tasks: Number of adapters of each target, one for each task, which add up; `None`: one adapter for all tasks.

    Raises:
        UsageError: If a target is no linear layer of the network, or the network has adapters already.
    """
    if lora_layers(network):
        raise UsageError("the network has LoRA layers already", hint="leave out the backbone's option `adapter`")
    wanted = list(targets)
    chosen = _choose({n: m for n, m in network.named_modules() if type(m).forward is nn.Linear.forward}, wanted)
    network.requires_grad_(False)
    freeze_batch_norm(network)
    made: dict[int, LoraLinear] = {}
    for linear, parts in chosen:
        made[id(linear)] = LoraLinear(linear, rank, alpha, parts, tasks)
        for name, factor in made[id(linear)].named_parameters():
            factor.requires_grad_(name.startswith("lora_B") or (train_a and name.startswith("lora_A")))
    for parent in list(network.modules()):
        for name, child in list(parent._modules.items()):
            if id(child) in made:
                setattr(parent, name, made[id(child)])


def merge_adapters(
    direction: torch.Tensor, start: torch.Tensor, delta: torch.Tensor, layout: Layout, merge: Merge
) -> float | None:
    """Replaces factors in a merged update by those of the merged products B A, in place (`fcilbench.vectors.lora`).

    Adapters whose A is not part of the state vector do not change: with one A for all, merging B merges B A.

    `direction` is the merged update `[D]`, whose parts for A and B hold the mean of the clients' updates `delta`
    `[N, D]` of the state vector `start` `[D]`; `merge` merges the clients' products of a layer.

    Returns:
        The share of a merged product's squared norm that is lost at this rank, the largest of all adapters; `None`
        without adapters.
    """
    pieces, lost = {piece.name: piece for piece in layout.pieces}, list[float]()
    for name, second in pieces.items():
        first = pieces.get(name.replace(".lora_B", ".lora_A"))
        if first is None or first is second:  # no B, or one without a trained A
            continue
        spans = [(piece.span, piece.shape) for piece in (first, second)]
        a, b = ((start[span] + delta[:, span]).view(-1, *shape) for span, shape in spans)
        means = [(start[span] + direction[span]).view(shape) for span, shape in spans]
        *factors, share = merge_products(a, b, means, partial(merge, name.rpartition(".")[0]))
        for (span, _), factor in zip(spans, factors, strict=True):
            direction[span] = factor.flatten().to(direction) - start[span]
        lost.append(share)
    return max(lost, default=None)


def _choose(layers: Mapping[str, nn.Module], targets: Sequence[str]) -> list[tuple[nn.Linear, list[str]]]:
    """Returns the targeted linear layers, each with the parts that are adapted (none: the whole layer)."""
    chosen, found = list[tuple[nn.Linear, list[str]]](), dict[str, None]()
    for name, layer in layers.items():
        assert isinstance(layer, nn.Linear)
        parts = {"": name}
        if name.rpartition(".")[2] == _FUSED and layer.out_features % len(_FUSED) == 0:
            parts |= {part: name.removesuffix(_FUSED) + part for part in _FUSED}
        found |= dict.fromkeys(parts.values())
        if wanted := [part for part, own in parts.items() if _ends(own, targets)]:
            chosen.append((layer, [] if "" in wanted else wanted))
    if not found:
        raise UsageError("the network has no linear layer that LoRA could adapt")
    for target in targets:
        if not any(_ends(name, [target]) for name in found):
            legal = sorted({name.rpartition(".")[2] for name in found})
            raise UsageError(
                f"adapter: no linear layer has a name that ends in {target!r}; there are {', '.join(legal)}",
                hint="a longer end of a name, such as 0.attn.proj, selects fewer layers",
            )
    return chosen


def _ends(name: str, targets: Sequence[str]) -> bool:
    return matches(f".{name}", [f"*.{target}" for target in targets])
