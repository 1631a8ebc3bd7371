"""Which backbones the methods decline that insert low-rank adapters of their own."""

from __future__ import annotations

from torch import nn

from fcilbench.api import No, lora_layers


def declined_adapter(method: str, extractor: nn.Module) -> No | None:
    """Declines a backbone that has LoRA layers already."""
    if lora_layers(extractor):
        return No(f"{method} inserts its own LoRA: leave out the backbone's option `adapter`")
    return None


def declined_lora(method: str, extractor: nn.Module) -> No | None:
    """Declines a backbone that has LoRA layers already, or no linear layer that they could adapt."""
    if not any(type(module).forward is nn.Linear.forward for module in extractor.modules()):
        return declined_adapter(method, extractor) or No(f"{method} adapts linear layers, and this backbone has none")
    return declined_adapter(method, extractor)
