"""Linear layers whose kernels depend on the processor."""

import pytest
import torch
import torch.nn.functional as F

from pipeline.models.layers.linear import TrainableLinear, is_onednn

SUPPORT = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}
CPU = torch.device("cpu")


@pytest.mark.parametrize("supported", [set(), {torch.bfloat16}, {torch.float16}, set(SUPPORT)])
def test_a_processor_uses_onednn_for_the_types_that_it_has_instructions_for(
    supported: set[torch.dtype], monkeypatch: pytest.MonkeyPatch
):
    for dtype, name in SUPPORT.items():
        monkeypatch.setattr(torch.ops.mkldnn, name, lambda answer=dtype in supported: answer)
    dtypes = [value for value in vars(torch).values() if isinstance(value, torch.dtype)]
    assert {dtype for dtype in dtypes if is_onednn(CPU, dtype)} == supported | {torch.float32}


def test_a_layer_in_float64_equals_torchs_on_processors_with_instructions_for_float16(
    monkeypatch: pytest.MonkeyPatch,
):
    for name in SUPPORT.values():
        monkeypatch.setattr(torch.ops.mkldnn, name, lambda: True)
    layer = TrainableLinear(4, 3).double()
    x = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    expected = F.linear(x, layer.weight, layer.bias)
    assert torch.equal(layer(x), expected)
    assert torch.autograd.gradcheck(layer, x)
