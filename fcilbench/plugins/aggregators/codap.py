"""CODA-Prompt: Smith et al. 2023, "COntinual Decomposed Attention-based Prompting" (CVPR), federated by FedAvg."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import nn

from fcilbench.api import (
    Batch,
    Context,
    FeatureExtractor,
    Field,
    Net,
    No,
    PresetParams,
    Request,
    Server,
    Wire,
    masked_cross_entropy,
)
from fcilbench.plugins.aggregators.prompts import PromptedViT, PromptMethod

BLOCKS = 5
"""Blocks that get prefixes: the first ones, or all if there are fewer (Smith et al. 2023, section 5)."""
PARTS = ("prompts", "keys", "attention")
"""What a component consists of, for each block: P_m `[L, D]`, K_m `[D]` and A_m `[D]`."""


class TaskComponents(nn.Module):
    """The components of one task, zeros until the server begins it.

    Attributes:
        prompts: P `[blocks, m, L, D]`.
        keys: K `[blocks, m, D]`.
        attention: A `[blocks, m, D]`.
    """

    def __init__(self, blocks: int, count: int, length: int, width: int) -> None:
        super().__init__()
        self.prompts = nn.Parameter(torch.zeros(blocks, count, length, width))
        self.keys = nn.Parameter(torch.zeros(blocks, count, width))
        self.attention = nn.Parameter(torch.zeros(blocks, count, width))


class ComponentViT(PromptedViT):
    """A transformer whose first blocks attend to prefixes that are sums of components, weighted by the sample's query.

    There are `count` components of `length` tokens for each task; those of later tasks are zero, so they have weight 0
    and change nothing.
    """

    def __init__(self, plain: FeatureExtractor, tasks: int, count: int, length: int) -> None:
        super().__init__(plain)
        blocks, width = min(BLOCKS, self.transformer.depth), self.transformer.width
        self.tasks = nn.ModuleList(TaskComponents(blocks, count, length, width) for _ in range(tasks))

    def prompted(self, inputs: torch.Tensor, query: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns `features`: what the transformer reads from its tokens, by default the class token."""
        prefixes, tokens = self.prefixes(query), self.tokens(inputs)
        for number, block in enumerate(self.body.blocks):
            tokens = with_prefix(block, tokens, prefixes[number]) if number < len(prefixes) else block(tokens)
        return {"features": self.body.forward_head(self.body.norm(tokens))}

    def prefixes(self, query: torch.Tensor) -> torch.Tensor:
        """Returns p(x) = sum_m alpha_m P_m of each block, float32 `[blocks, B, L, D]`, for queries `[B, D]`."""
        prompts, keys, attention = (torch.cat([getattr(task, part) for task in self.tasks], dim=1) for part in PARTS)
        with torch.autocast(query.device.type, enabled=False):
            return torch.einsum("lbm,lmnd->lbnd", component_weights(query, attention, keys), prompts)


class TaskHead(nn.Module):
    """A classifier head `[C, F]` cut by the tasks' numbers of classes: the rows of one task train and travel alone."""

    def __init__(self, head: nn.Linear, tasks: Sequence[int]) -> None:
        super().__init__()
        self.out_features, self.in_features = head.weight.shape
        self.weight = nn.ParameterList(rows.clone() for rows in torch.split(head.weight.detach(), list(tasks)))
        self.bias = nn.ParameterList(rows.clone() for rows in torch.split(head.bias.detach(), list(tasks)))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Maps features `[B, F]` to logits `[B, C]`."""
        return F.linear(features, torch.cat(list(self.weight)), torch.cat(list(self.bias)))


def component_weights(query: torch.Tensor, attention: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Returns alpha_m = <q * A_m / ||q * A_m||, K_m / ||K_m||>, `[blocks, B, M]`, which may be negative.

    q is `[B, D]`, A and K are `[blocks, M, D]`. There is no softmax; norms are at least 1e-12. Two products of matrices
    keep no q * A_m `[B, M, D]`: the numerator is <q, A_m * K_m / ||K_m||>, and ||q * A_m||^2 = <q^2, A_m^2>.
    """
    numerator = query @ (attention * F.normalize(keys, dim=2)).transpose(1, 2)
    norm = (query.square() @ attention.square().transpose(1, 2)).clamp(min=1e-24).sqrt()
    return numerator / norm


def with_prefix(block: Any, tokens: torch.Tensor, prefix: torch.Tensor) -> torch.Tensor:
    """Runs a `Block` of timm on tokens `[B, n, D]`: a prefix `[B, L, D]` joins its keys by one half, its values by one.

    softmax(Q [P_K; K]^T / sqrt(d)) [P_V; V] for each head: there are as many queries as before.
    """
    attn = block.attn
    queries, keys, values = _heads(attn.qkv(block.norm1(tokens)), attn.num_heads, 3)
    queries, keys = attn.q_norm(queries), attn.k_norm(keys)
    own_keys, own_values = (_heads(half, attn.num_heads, 1)[0].to(keys) for half in prefix.chunk(2, dim=1))
    keys, values = torch.cat([own_keys, keys], dim=2), torch.cat([own_values, values], dim=2)
    dropout = attn.attn_drop.p if attn.training else 0.0
    seen = F.scaled_dot_product_attention(queries, keys, values, dropout_p=dropout).transpose(1, 2).flatten(2)
    tokens = tokens + block.drop_path1(block.ls1(attn.proj_drop(attn.proj(seen))))
    result: torch.Tensor = tokens + block.drop_path2(block.ls2(block.mlp(block.norm2(tokens))))
    return result


def _heads(rows: torch.Tensor, heads: int, parts: int) -> tuple[torch.Tensor, ...]:
    """Cuts rows `[B, n, parts D]` into `parts` tensors `[B, heads, n, D / heads]`."""
    return tuple(rows.reshape(*rows.shape[:2], parts, heads, -1).permute(2, 0, 3, 1, 4))


def orthonormal_rows(old: torch.Tensor, random: torch.Tensor) -> torch.Tensor:
    """Makes random rows `[.., m, d]` orthogonal to the old ones `[.., f, d]` and to each other, and of norm 1.

    Gram-Schmidt as one QR decomposition: its first f columns span the old rows, whether these are orthogonal to each
    other or not (trained ones are not), the others are what Gram-Schmidt gives up to their sign, which is that of R.
    """
    q, r = torch.linalg.qr(torch.cat([old, random], dim=-2).mT)
    signed: torch.Tensor = q * r.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]
    return signed.mT[..., old.shape[-2] :, :]


def orthogonality(rows: torch.Tensor, reduce: Literal["mean", "sum"]) -> torch.Tensor:
    """Returns Omega(U) = reduce((U U^T - I)^2) of rows `[blocks, n, d]`, summed over the blocks."""
    gap = (rows @ rows.mT - torch.eye(rows.shape[1], device=rows.device)).square()
    return (gap.mean(dim=(1, 2)) if reduce == "mean" else gap.sum(dim=(1, 2))).sum()


class CodaPrompt(PromptMethod):
    """CODA-Prompt: prefixes of the first blocks are sums of components, weighted by cosines of the sample's query.

    The backbone is frozen. Each of its first five blocks has M components of a prompt P_m `[L, D]`, a key K_m and an
    attention A_m; a sample gets p(x) = sum_m alpha_m P_m with alpha_m = cos(q(x) * A_m, K_m), where q(x) is its feature
    under the backbone without prompts. The first half of p(x) joins the keys of the block's attention, the second
    half its values (Smith et al. 2023, section 4). All of it learns from L_CE + mu sum_blocks (Omega(P) + Omega(K) +
    Omega(A)), Omega(U) = ||U U^T - I||^2.

    Each task has M / T components: the server draws them orthogonal to all earlier ones, clients train and send only
    these and the head's rows of the task, FedAvg merges them, and all others stay as they are. Inference needs no task
    identity.
    """

    version = "3"  # selectors read features without prompts
    card: ClassVar = {
        "family": "prompts",
        "trained": "prompt components with keys, and the head",
        "travels": "what is trained",
        "memory": "nothing",
        "source": "Smith et al. 2023, CVPR",
    }
    lr_range = (1e-4, 0.1)
    kit_params: ClassVar[Mapping[str, Any]] = {"components": 8}
    breaks: ClassVar = {
        "idle-task": "the server draws a task's components at its start, before it knows whether a client has samples"
    }

    class Params(PresetParams):
        """Hyperparameters of CODA-Prompt."""

        presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"original": {"mu": 0.1}}

        components: int = Field(
            100,
            ge=1,
            description="components of all tasks together, M; each task gets M / T",
            source="Smith et al. 2023",
        )
        length: int = Field(
            8, ge=2, multiple_of=2, description="prompt length L: half keys, half values", source="Smith et al. 2023"
        )
        mu: float = Field(
            0.0,
            ge=0,
            description="weight of the orthogonality penalty",
            source="GT-RIPL/CODA-Prompt, where new components are drawn orthogonal to old ones; paper: 0.1",
        )
        penalty: Literal["mean", "sum"] = Field(
            "mean",
            description="mean over the entries of U U^T - I, or sum as the paper writes it",
            source="GT-RIPL/CODA-Prompt",
        )

    def insert(self, network: Any, plain: FeatureExtractor, request: Request) -> No | None:
        """Gives the transformer the components of all tasks, and cuts the head by task.

        Declines blocks whose attention cannot take a prefix, and components that cannot all be orthogonal.
        """
        assert plain.transformer is not None
        tasks, width, components = len(request.tasks), plain.transformer.width, self.params.components
        name = type(self).__name__
        blocks: Any = plain.body.blocks
        if not all(map(takes_prefix, blocks[:BLOCKS])):
            return No(f"{name} adds prefixes to timm's plain attention, and this transformer has another")
        if not tasks <= components // tasks * tasks <= width:
            return No(
                f"{name} cannot share {components} orthogonal components of {width} numbers among {tasks} tasks: "
                f"set components to {tasks} .. {width // tasks * tasks}"
            )
        network.extractor = ComponentViT(plain, tasks, components // tasks, self.params.length)
        network.head = TaskHead(network.head, request.tasks)
        return None

    def begin_task(self, server: Server) -> None:
        """Draws the task's components, for each block and tensor orthogonal to those of all earlier tasks."""
        for part in PARTS:
            *old, new = (server.layout.piece(piece_name(task.index, part)) for task in server.tasks)
            blocks, count, *shape = new.shape
            kept = [server.vector[piece.span].view(blocks, count, -1).double().cpu() for piece in old]
            random = torch.from_numpy(server.random(part).standard_normal((blocks, count, *shape))).flatten(2)
            drawn = orthonormal_rows(torch.cat([random[:, :0], *kept], dim=1), random)
            server.step(drawn.flatten().to(server.vector) - server.vector[new.span], new.span)

    def wire(self, server: Server) -> Wire:
        """Trains and sends the components of the current task, and its rows of the head."""
        pieces = (piece_name(server.task.index, "*"), f"head.*.{server.task.index}")
        return Wire(train=pieces, up=pieces)

    def loss(self, net: Net, batch: Batch, context: Context) -> torch.Tensor:
        """Returns the masked cross-entropy plus mu times the orthogonality of the components up to the batch's task."""
        return self._objective(net, batch, self.outputs(net, batch)["features"])

    def _objective(self, net: Net, batch: Batch, features: torch.Tensor) -> torch.Tensor:
        """Returns the loss of a batch whose features `[B, F]` are known."""
        loss = masked_cross_entropy(net.head(features), batch)
        if self.params.mu == 0:
            return loss
        for part in PARTS:
            rows = torch.cat([net.piece(piece_name(t, part)) for t in range(batch.task.index + 1)], dim=1)
            loss = loss + self.params.mu * orthogonality(rows.flatten(2), self.params.penalty)
        return loss


def piece_name(task: int, part: str) -> str:
    """Returns the name of a task's components in the network."""
    return f"extractor.tasks.{task}.{part}"


def takes_prefix(block: nn.Module) -> bool:
    """Returns whether `with_prefix` computes what the block computes, but for the prefix."""
    from timm.layers.attention import Attention
    from timm.models.vision_transformer import Block  # here, so that listing plugins does not import timm

    attn = getattr(block, "attn", None)
    plain = all(isinstance(getattr(attn, part, None), nn.Identity | None) for part in ("norm", "gate"))
    return type(block) is Block and type(attn) is Attention and plain
