import torch

from fcilbench.engine.precision import autocast, forbid_tf32


def test_fp32_means_fp32():
    torch.backends.cudnn.allow_tf32 = True
    forbid_tf32()
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32


def test_autocast_runs_products_in_bfloat16_only_when_asked():
    a = torch.ones(4, 4)
    cpu = torch.device("cpu")
    with autocast("bf16", cpu):
        assert (a @ a).dtype == torch.bfloat16
    with autocast("fp32", cpu):
        assert (a @ a).dtype == torch.float32
