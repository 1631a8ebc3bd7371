"""DualPrompt: Wang et al. 2022, "DualPrompt: Complementary Prompting for Rehearsal-free Continual Learning" (ECCV).

Federated by FedAvg.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import nn

from fcilbench.api import (
    AllClasses,
    Batch,
    Context,
    FeatureExtractor,
    Field,
    Message,
    Module,
    Net,
    No,
    Predictors,
    PresetParams,
    PromptedViT,
    PromptMethod,
    Request,
    Server,
    Space,
    TrueTask,
    Updates,
    Wire,
    masked_cross_entropy,
)
from fcilbench.plugins.aggregators.codap import TaskHead, takes_prefix, with_prefix

_CODE = "google-research/l2p"
BLOCKS = 5
"""Blocks that get prefixes, the first ones: two a G-prompt, three an E-prompt (Wang et al. 2022, section 5)."""
_MODULE = "task-{}"


class TaskPrompt(nn.Module):
    """The E-prompt of one task, zeros until the server begins it.

    Attributes:
        prompt: `[blocks, 2 L_e, D]`: for each block L_e keys, then L_e values.
        key: k `[D]`, one for all blocks; of a task that has not begun it is 0.
    """

    def __init__(self, blocks: int, length: int, width: int) -> None:
        super().__init__()
        self.prompt = nn.Parameter(torch.zeros(blocks, 2 * length, width))
        self.key = nn.Parameter(torch.zeros(width))


class DualViT(PromptedViT):
    """A transformer whose first blocks attend to a prefix that all tasks share, and the next ones to a task's own.

    Of a transformer with fewer than five blocks half of them, rounded down, have the G-prompt. A sample gets the
    E-prompt that the context has as `prompt` `[blocks, 2 L_e, D]`, and otherwise that of the key closest to its query.

    Attributes:
        general: The G-prompt `[blocks, 2 L_g, D]`.
        forced: The task whose E-prompt every sample gets in place of its key's choice; -1 for none.
    """

    def __init__(self, plain: FeatureExtractor, tasks: int, lengths: tuple[int, int]) -> None:
        super().__init__(plain)
        blocks, width = min(BLOCKS, self.transformer.depth), self.transformer.width
        shared = min(2, blocks // 2)
        self.general = nn.Parameter(torch.zeros(shared, 2 * lengths[0], width))
        self.tasks = nn.ModuleList(TaskPrompt(blocks - shared, lengths[1], width) for _ in range(tasks))
        self.forced = nn.Parameter(torch.tensor(-1.0), requires_grad=False)

    def outputs(self, inputs: torch.Tensor, context: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns `features` `[B, F]`, with the context's E-prompt or that of the key closest to the query."""
        if "prompt" in context:
            return self._run(inputs, context["prompt"][:, None].expand(-1, len(inputs), -1, -1))
        return super().outputs(inputs, context)

    def prompted(self, inputs: torch.Tensor, query: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns `features` `[B, F]`: each sample has the E-prompt of the key closest to its own query."""
        tasks: list[Any] = list(self.tasks)
        chosen = nearest(query, torch.stack([task.key for task in tasks]))
        chosen = torch.where(self.forced >= 0, self.forced.long(), chosen)
        return self._run(inputs, torch.stack([task.prompt for task in tasks], dim=1)[:, chosen])

    def _run(self, inputs: torch.Tensor, own: torch.Tensor) -> dict[str, torch.Tensor]:
        """Runs the transformer with E-prompts `[blocks, B, 2 L_e, D]`."""
        tokens = self.tokens(inputs)
        prefixes = [*self.general[:, None].expand(-1, len(inputs), -1, -1), *own]
        for number, block in enumerate(self.body.blocks):
            prefixed = number < len(prefixes) and prefixes[number].shape[1] > 0
            tokens = with_prefix(block, tokens, prefixes[number]) if prefixed else block(tokens)
        return {"features": self.body.forward_head(self.body.norm(tokens))}


def cosines(query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Returns cos(q_b, k_t) `[B, T]` of queries `[B, D]` and keys `[T, D]`, norms at least 1e-6.

    There is no matrix product, which autocast would round to bfloat16.
    """
    units, own = F.normalize(query.float(), dim=1, eps=1e-6), F.normalize(keys.float(), dim=1, eps=1e-6)
    return (units[:, None] * own).sum(dim=2)


def nearest(query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Returns for each query `[B, D]` the row of the key `[T, D]` with the largest cosine, int64 `[B]`.

    Keys of zeros are those of tasks that have not begun: they are never chosen if there is another one. Of equal
    cosines the earlier key wins.
    """
    found = torch.where(keys.any(dim=1), cosines(query, keys), -2.0)
    return found.sort(dim=1, descending=True, stable=True)[1][:, 0]


class DualPrompt(PromptMethod):
    """DualPrompt: a G-prompt that all tasks share, and for each task an E-prompt that samples find by its key.

    The backbone is frozen. Prompts are prefixes of attention: L keys and L values that join those of a block's tokens.
    The first two blocks have the G-prompt, the next three the E-prompt of one task. A client minimises L_CE - lambda
    mean_b cos(q(x_b), k_t) with the E-prompt of its task t, where q(x) is the feature of x under the backbone without
    prompts; k_t learns from the second term alone. A test sample gets the E-prompt of the task s with the largest
    cos(q(x), k_s) among those seen (Wang et al. 2022, section 4). An E-prompt starts as a copy of the one before.

    Clients train and send the G-prompt, the task's E-prompt and key, and the task's rows of the head; FedAvg merges
    them. Under `oracle` the E-prompt of the true task is used. The authors let a batch of one task vote on its E-prompt
    for CIFAR-100; here a sample's answer depends on that sample alone.

    `dual/key_cosine` logs the largest cosine of the task's key with an earlier one.
    """

    version = "2"  # keys are drawn small; selectors read features without prompts
    card: ClassVar = {
        "family": "prompts",
        "trained": "a shared prompt, a prompt and a key for each task, and the head",
        "travels": "what is trained",
        "memory": "nothing",
        "source": "Wang et al. 2022, ECCV",
    }
    lr_range = (1e-3, 0.1)
    breaks: ClassVar = {
        "idle-task": "the server draws a task's key at its start, before it knows whether a client has samples"
    }

    class Params(PresetParams):
        """Hyperparameters of DualPrompt."""

        presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"original": {"length_e": 5, "init": "positive"}}

        length_g: int = Field(
            5, ge=0, description="keys, and values, of the G-prompt in each of its blocks; 0: none", source=_CODE
        )
        length_e: int = Field(
            20,
            ge=0,
            description="keys, and values, of an E-prompt in each of its blocks; 0: none",
            source=f"{_CODE}, ImageNet-R",
            space=Space(choices=(5, 10, 20)),
        )
        lambda_key: float = Field(
            1.0,
            ge=0,
            description="weight of the term that pulls a task's key towards its queries; 0: keys stay as drawn",
            source=_CODE,
            space=Space(low=0.01, high=10.0, log=True),
        )
        inherit: bool = Field(
            True, description="an E-prompt starts as the one before, or is drawn anew", source=f"{_CODE}, ImageNet-R"
        )
        init: Literal["centred", "positive"] = Field(
            "centred",
            description="prompts and keys are drawn from U(-0.02, 0.02), or from U(0, 0.01)",
            source="ours",
        )

    params: Params

    def insert(self, network: Any, plain: FeatureExtractor, request: Request) -> No | None:
        """Gives the transformer the prompts, and cuts the head by task; declines attention that takes no prefix."""
        blocks: Any = plain.body.blocks
        if not all(map(takes_prefix, blocks[:BLOCKS])):
            return No("DualPrompt adds prefixes to timm's plain attention, and this transformer has another")
        params = self.params
        network.extractor = DualViT(plain, len(request.tasks), (params.length_g, params.length_e))
        network.head = TaskHead(network.head, request.tasks)
        return None

    # ---------------------------------------------------------------- clients

    def loss(self, net: Net, batch: Batch, context: Context) -> torch.Tensor:
        """Returns the masked cross-entropy under the task's E-prompt minus lambda times the mean cosine to its key."""
        name = f"extractor.tasks.{batch.task.index}"
        features = net.outputs(batch.inputs, {"prompt": net.piece(f"{name}.prompt")})["features"]
        query = self.query(net, batch.inputs) if batch.memo is None else batch.memo
        pull = batch.mean(cosines(query, net.piece(f"{name}.key")[None])[:, 0])
        loss: torch.Tensor = masked_cross_entropy(net.head(features), batch) - self.params.lambda_key * pull
        return loss

    # ---------------------------------------------------------------- server

    def begin_task(self, server: Server) -> None:
        """Draws the G-prompt before the first task, the task's key, and its E-prompt if it has none to start from."""
        own = f"extractor.tasks.{server.task.index}"
        if server.task.index == 0:
            self._draw(server, "extractor.general")
        self._draw(server, f"{own}.key")
        if server.task.index == 0 or not self.params.inherit:
            self._draw(server, f"{own}.prompt")
            return
        span = server.layout.piece(f"{own}.prompt").span
        before = server.layout.piece(f"extractor.tasks.{server.task.index - 1}.prompt").span
        server.step(server.vector[before] - server.vector[span], span)

    def _draw(self, server: Server, name: str) -> None:
        """Draws a tensor that is zeros."""
        span = server.layout.piece(name).span
        numbers = server.random(name).random(span.stop - span.start)
        numbers = 0.01 * numbers if self.params.init == "positive" else 0.02 * (2 * numbers - 1)
        server.step(torch.from_numpy(numbers).to(server.vector), span)

    def wire(self, server: Server) -> Wire:
        """Trains and sends the G-prompt, and of the current task its E-prompt, its key and its rows of the head."""
        task = server.task.index
        pieces = ("extractor.general", f"extractor.tasks.{task}.*", f"head.*.{task}")
        return Wire(train=pieces, up=pieces)

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Averages as FedAvg, and logs how close the task's key is to an earlier one."""
        super().aggregate(updates, server)
        spans = [server.layout.piece(f"extractor.tasks.{task.index}.key").span for task in server.tasks]
        *old, own = (server.vector[span][None] for span in spans)
        if old:
            server.log("dual/key_cosine", float(cosines(own, torch.cat(old)).max()))

    def predictors(self, server: Server) -> Predictors:
        """Deploys the global model, which picks E-prompts by their keys, and for `oracle` the same with a fixed one."""
        modules: dict[str, Callable[[], Module | torch.Tensor]] = {"global": lambda: server.vector}
        for task in server.tasks:
            modules[_MODULE.format(task.index)] = partial(_forced, server, task.index)
        return Predictors(modules, {"none": AllClasses(), "inferred": AllClasses(), "oracle": TrueTask(_MODULE)})

    def export(self, server: Server) -> Message:
        """Returns the global vector: which E-prompt `oracle` fixes is part of the question, not of the model."""
        return {"theta": server.vector}


def _forced(server: Server, task: int) -> Module:
    return Module(server.vector, {"extractor.forced": torch.tensor(float(task))})
