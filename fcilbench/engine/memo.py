"""What a method's query says of each sample under the initial network: computed once, handed over with every batch."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fcilbench.api.client import Net
from fcilbench.engine.data import DeviceData
from fcilbench.engine.flat import FlatModel
from fcilbench.engine.precision import autocast
from fcilbench.spec.protocol import Protocol

Query = Callable[[Net, torch.Tensor], torch.Tensor | None]


def memo_table(
    model: FlatModel, data: DeviceData, query: Query, batch_size: int, precision: Protocol
) -> torch.Tensor | None:
    """Returns the query's answers for all samples, `[n, ...]`, or `None` if the method asks nothing.

    Args:
        model: The resident model, with the initial network loaded.
        data: The samples; their test inputs are used.
        query: `Aggregator.query`.
        batch_size: Samples per call.
        precision: The protocol, for its precision.
    """
    model.network.eval()
    index = torch.arange(len(data), device=data.labels.device)
    answers: list[torch.Tensor] = []
    with torch.no_grad(), autocast(precision.precision, index.device):
        for rows in torch.split(index, batch_size):
            answer = query(model, data.plain(rows))
            if answer is None:
                return None
            answers.append(answer)
    return torch.cat(answers) if answers else None
