"""A compiled kernel serves any number of rows; it is compiled once for each layout."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch._dynamo.testing import CompileCounter

from pipeline.models.inference.packed_layer import FusedKernel, norm_of_sum
from pipeline.models.layers.rotary import angles_of, rotate, rotate_by

ROWS = (32_768, 16, 100, 8_192, 3, 32_768)


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def norms(kernel: FusedKernel, rows: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the kernel's normalized sum, and torch's."""
    draws = torch.Generator().manual_seed(rows)
    update, x = (torch.randn(rows, width, generator=draws) for _ in range(2))
    weight, bias = (torch.randn(width, generator=draws) for _ in range(2))
    expected = F.layer_norm(update + x, (width,), weight, bias, 1e-5)
    return kernel((update, x), weight, bias, 1e-5), expected


@torch.inference_mode()
def test_any_number_of_rows_has_one_kernel_for_each_width():
    counter = CompileCounter()
    for width in (8, 16):
        kernel = FusedKernel(norm_of_sum, backend=counter)
        for rows in ROWS:
            found, expected = norms(kernel, rows, width)
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert counter.frame_count == 2


@torch.inference_mode()
def test_any_number_of_kernels_of_one_function_are_compiled():
    counter, widths = CompileCounter(), range(8, 200, 16)
    assert len(widths) > torch._dynamo.config.recompile_limit
    for width in widths:
        norms(FusedKernel(norm_of_sum, backend=counter), 16, width)
    assert counter.frame_count == len(widths)


@torch.inference_mode()
def test_a_kernel_with_more_layouts_than_torch_compiles_is_an_error():
    kernel = FusedKernel(norm_of_sum, backend=CompileCounter())
    limit = torch._dynamo.config.recompile_limit
    for width in range(1, limit + 1):
        norms(kernel, 16, width)
    for _ in range(2):
        with pytest.raises(FailOnRecompileLimitHit):
            norms(kernel, 16, limit + 1)


@torch.inference_mode()
def test_the_first_number_of_rows_does_not_matter():
    sizes: list[list[int]] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        sizes.append([each.node.hint for each in inputs if isinstance(each, torch.SymInt)])
        return graph.forward

    for first in (16, 32_768):
        torch._dynamo.reset()
        norms(FusedKernel(norm_of_sum, backend=backend), first, 8)
    assert sizes == [[8_192], [8_192]]


@torch.inference_mode()
def test_heads_that_are_a_part_of_wider_rows_are_rotated_by_one_kernel():
    counter = CompileCounter()
    kernel = FusedKernel(rotate_by, backend=counter)
    for rows in ROWS:
        heads = torch.randn(rows, 6, 8, generator=torch.Generator().manual_seed(rows))[:, :4]
        angles = angles_of(torch.arange(rows), 10_000.0, 8)
        assert torch.equal(kernel((heads, *angles)), rotate(heads, angles))
    assert counter.frame_count == 1


@pytest.mark.slow
@torch.inference_mode()
def test_the_compiled_kernels_agree_with_torch():
    kernel = FusedKernel(norm_of_sum)
    for rows in (64, 1_000):
        torch.testing.assert_close(*norms(kernel, rows, 48), atol=1e-5, rtol=1e-5)
    rotation = FusedKernel(rotate_by)
    heads = torch.randn(100, 6, 8, dtype=torch.bfloat16)[:, :4]
    angles = angles_of(torch.arange(100), 10_000.0, 8)
    torch.testing.assert_close(rotation((heads, *angles)), rotate(heads, angles))
