"""Single operations of torch and numpy whose bits may depend on the processor, as digests.

    python -m benchmarks.operations > digests.json

`benchmarks.portability` runs this on several processors and compares. Inputs are drawn by torch and numpy themselves,
so random numbers are compared too. A new operation is one more entry of a table.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

UNARY = (
    *("exp", "exp2", "expm1", "sin", "cos", "tan", "tanh", "sigmoid", "erf", "erfc", "sinh", "cosh", "atan", "asinh"),
    *("relu", "square", "abs"),
)
POSITIVE = ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "lgamma", "digamma")
WITHIN_ONE = ("asin", "acos", "atanh", "erfinv")
ACTIVATIONS = ("gelu", "silu", "mish", "softplus", "elu", "selu", "logsigmoid", "hardswish")
REDUCTIONS = ("sum", "mean", "var", "std", "prod", "cumsum", "softmax", "log_softmax", "logsumexp", "amax", "norm")
NUMPY = ("exp", "expm1", "sin", "cos", "tanh", "arctan", "cbrt")
NUMPY_POSITIVE = ("log", "log1p", "log2", "sqrt")


def digest(value: Any) -> str:
    """Returns the digest of a tensor, an array, or a nest of them."""
    if isinstance(value, tuple | list):
        return hashlib.sha256("".join(map(digest, value)).encode()).hexdigest()[:16]
    array = value.detach().contiguous().numpy() if isinstance(value, Tensor) else np.asarray(value)
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def backward(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """Returns a function's output and the gradients of the sum of its squares."""
    leaves = [each.clone().requires_grad_() for each in inputs]
    output = function(*leaves)
    output.square().sum().backward()
    return [output, *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def elementwise(x: Tensor) -> Iterator[tuple[str, Any]]:
    positive, within = x.abs() + 1e-3, torch.tanh(x) * 0.99
    for names, value in ((UNARY, x), (POSITIVE, positive), (WITHIN_ONE, within)):
        yield from ((name, getattr(torch, name)(value)) for name in names)
    yield from ((name, getattr(F, name)(x)) for name in ACTIVATIONS)
    yield "gelu (tanh)", F.gelu(x, approximate="tanh")
    yield "pow 0.5", positive**0.5
    yield "pow 1.7", positive**1.7
    yield "pow of tensors", positive**within
    yield "atan2", torch.atan2(x, positive)
    yield "hypot", torch.hypot(x, positive)
    yield "addcmul", torch.addcmul(x, x, positive)
    yield "addcdiv", torch.addcdiv(x, x, positive)
    yield "lerp", torch.lerp(x, positive, 0.3)
    yield "div", x / positive


def linear_algebra(x: Tensor) -> Iterator[tuple[str, Any]]:
    m = x[:90000].view(300, 300)
    small, positive = m[:80, :50], (m @ m.T / 300 + torch.eye(300, dtype=x.dtype))[:60, :60].contiguous()
    factor, right = torch.linalg.cholesky(positive), m[:60, :20]
    batch = x[:90000].view(10, 90, 100)
    yield from ((name, getattr(m, name)(dim=1)) for name in REDUCTIONS)
    yield "sum of all", x.sum()
    yield "norm of all", torch.linalg.vector_norm(x)
    yield "matrix product", m @ m
    yield "matrix and vector", m @ m[0]
    yield "dot", m[0] @ m[1]
    yield "batched product", torch.bmm(batch, batch.transpose(1, 2).contiguous())
    yield "cdist", torch.cdist(m, m[:40])
    yield "cosine similarity", F.cosine_similarity(m, m.roll(1, 0))
    yield "normalize", F.normalize(m, dim=1)
    yield "svd", torch.linalg.svd(small)
    yield "svd, large", torch.linalg.svd(m)
    yield "qr", torch.linalg.qr(small)
    yield "eigh", torch.linalg.eigh(positive)
    yield "eigvalsh", torch.linalg.eigvalsh(positive)
    yield "cholesky", factor
    yield "cholesky_solve", torch.cholesky_solve(right, factor)
    yield "solve", torch.linalg.solve(positive, right)
    yield "inv", torch.linalg.inv(positive)
    yield "pinv", torch.linalg.pinv(small)
    yield "lstsq", torch.linalg.lstsq(small, m[:80, 50:60]).solution
    yield "matrix_exp", torch.matrix_exp(positive / 10)


def layers(x: Tensor) -> Iterator[tuple[str, Any]]:
    m, images, labels = x[:90000].view(300, 300), x[: 8 * 3 * 32 * 32].view(8, 3, 32, 32), torch.arange(300)
    filters, heads = x[-768:].view(16, 3, 4, 4) / 10, x[: 2 * 2 * 17 * 32].view(2, 2, 17, 32)
    yield "conv2d", backward(lambda a, w: F.conv2d(a, w, stride=2, padding=1), images, filters)
    yield "conv2d, patches", backward(lambda a, w: F.conv2d(a, w, stride=4), images, filters)
    depthwise = x[-27:].view(3, 1, 3, 3)
    yield "conv2d, depthwise", backward(lambda a, w: F.conv2d(a, w, groups=3, padding=1), images, depthwise)
    yield "conv_transpose2d", F.conv_transpose2d(images, x[-384:].view(3, 8, 4, 4), stride=2)
    yield "interpolate", F.interpolate(images, size=(47, 45), mode="bicubic")
    yield "adaptive_avg_pool2d", F.adaptive_avg_pool2d(images, 5)
    yield "layer_norm", backward(lambda a, w, b: F.layer_norm(a, (300,), w, b), m, m[0], m[1])
    yield "group_norm", backward(lambda a: F.group_norm(a, 3), images)
    yield "batch_norm", backward(lambda a, w, b: F.batch_norm(a, None, None, w, b, True), images, x[:3], x[3:6])
    yield "cross_entropy", backward(lambda a: F.cross_entropy(a, labels), m)
    yield "linear", backward(F.linear, m, m.roll(1, 0), m[2])
    yield "embedding", backward(lambda a: F.embedding(labels, a), m)
    yield "attention", backward(F.scaled_dot_product_attention, heads, heads.roll(1, 2), heads.roll(2, 2))
    yield "norm, backward", backward(lambda a: a.norm(dim=1), m)
    yield "sqrt, backward", backward(lambda a: a.abs().sqrt(), m)
    for name in ("AdamW", "Adam", "SGD"):
        yield f"{name}, fused", _optimised(getattr(torch.optim, name), m, fused=True)
    yield "AdamW, not fused", _optimised(torch.optim.AdamW, m, foreach=True)


def _optimised(kind: Any, start: Tensor, **options: Any) -> Tensor:
    weight = torch.nn.Parameter(start.clone())
    optimiser = kind([weight], lr=1e-2, **options)
    for _ in range(5):
        optimiser.zero_grad()
        weight.square().sum().backward()
        optimiser.step()
    return weight


def random_numbers() -> Iterator[tuple[str, Any]]:
    torch.manual_seed(3)
    for dtype in (torch.float32, torch.float64):
        yield f"randn {dtype}", torch.randn(1001, dtype=dtype)
        yield f"exponential {dtype}", torch.empty(1001, dtype=dtype).exponential_()
    yield "dirichlet", torch.distributions.Dirichlet(torch.full((5,), 0.5)).sample((100,))
    yield "randperm", torch.randperm(1000)
    yield "multinomial", torch.multinomial(torch.rand(50, 20), 5)
    random = np.random.default_rng(5)
    yield "numpy normal", random.standard_normal(5000)
    yield "numpy dirichlet", random.dirichlet([0.05] * 10, 500)
    yield "numpy gamma", random.standard_gamma(0.3, 5000)


def numpy_operations() -> Iterator[tuple[str, Any]]:
    x = np.random.default_rng(0).standard_normal(50000)
    for dtype in (np.float64, np.float32):
        own, matrix = x.astype(dtype), x[:40000].reshape(200, 200).astype(dtype)
        positive = np.abs(own) + dtype(0.1)
        yield from ((f"{name} {dtype.__name__}", getattr(np, name)(own)) for name in NUMPY)
        yield from ((f"{name} {dtype.__name__}", getattr(np, name)(positive)) for name in NUMPY_POSITIVE)
        yield f"power {dtype.__name__}", positive**own
        yield f"sum {dtype.__name__}", own.sum()
        yield f"matrix product {dtype.__name__}", matrix @ matrix
        yield f"svd {dtype.__name__}", np.linalg.svd(matrix[:50, :50])[1]
        yield f"eigh {dtype.__name__}", np.linalg.eigh(matrix[:50] @ matrix[:50].T)[0]
    yield "math", [np.array([math.exp(v), math.log(abs(v) + 1), math.sin(v), abs(v) ** 1.3]) for v in x[:500].tolist()]


def low_precision(generator: torch.Generator) -> Iterator[tuple[str, Any]]:
    x = torch.randn(64, 64, generator=generator).bfloat16()
    yield "matrix product bfloat16", (x @ x).float()
    yield "gelu bfloat16", F.gelu(x).float()
    yield "softmax bfloat16", x.softmax(1).float()


def operations() -> dict[str, str]:
    """Returns the digest of each operation's results, by its name."""
    generator, found = torch.Generator().manual_seed(0), {}
    for dtype in (torch.float32, torch.float64):
        x = torch.randn(100_003, generator=generator, dtype=torch.float64).to(dtype) * 3
        for table in (elementwise, linear_algebra, layers):
            found |= {f"torch {name} {str(dtype).removeprefix('torch.')}": digest(value) for name, value in table(x)}
    for name, value in (*random_numbers(), *low_precision(generator)):
        found[f"torch {name}"] = digest(value)
    return found | {f"numpy {name}": digest(value) for name, value in numpy_operations()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "--portable" in sys.argv:
        from fcilbench.engine.portable import make_portable

        make_portable()
    print(json.dumps(operations()))
