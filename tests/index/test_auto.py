"""A table of the kinds that `auto` plans, from ten thousand rows to a billion; `pytest -s` prints it."""

import pytest

from pipeline.index.build.index_shape import GIB, plan_index
from pipeline.index.measure.kind_recall import CAPTION_RECALLS, KindVariant, required_of_codes
from pipeline.settings import IndexSettings

KINDS = {
    384: ["flat", "ivf_flat", "ivf_flat", "ivf_sq8", "ivf_rabitq_refine", "ivf_rabitq_refine_fp16"],
    1_024: ["ivf_flat", "ivf_flat", "ivf_flat", "ivf_rabitq_refine", *2 * ["ivf_rabitq_refine_fp16"]],
}


@pytest.mark.parametrize("dim", KINDS)
def test_auto_picks_a_kind_that_may_pass_the_gate_at_every_size(dim: int):
    columns = f"{'files GiB':>11}{'memory GiB':>12}  recall@10 of the codes"
    print(f"\n{'rows':>13} {'dim':>5}  {'kind':24}{'factory':44}{'parts':>6}{columns}")
    kinds = []
    for power in range(4, 10):
        rows, settings = 10**power, IndexSettings()
        plan = plan_index(rows, dim, settings)
        code_recall = CAPTION_RECALLS.of(KindVariant(plan.kind))
        expected = code_recall.expected(rows) if code_recall else 1.0
        print(
            f"{rows:>13,} {dim:>5}  {plan.kind:24}{plan.factory:44}{plan.parts(rows):>6}"
            f"{plan.file_bytes / GIB:>11,.2f}{plan.memory_bytes / GIB:>12,.2f}  {expected:.4f}"
        )
        assert expected >= required_of_codes(0.95)
        kinds.append(plan.kind)
    assert kinds == KINDS[dim]
