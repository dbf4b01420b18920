"""Ranking of responses: the conversational task of USE (Cer et al. 2018, section 3.3)."""

from typing import cast

from torch import Tensor, nn

from pipeline.models.layers.post_pooling import new_dense
from pipeline.objectives import OBJECTIVES
from pipeline.objectives.in_batch import InBatchContrast


@OBJECTIVES.register("input_response")
class InputResponse(InBatchContrast):
    """Softmax of u_i . g(v_j) over the responses j of a batch, with row i's own response as target.

    u and v are the vectors of inputs (role anchor) and responses (role positive) by one encoder, and g is a
    new dense layer with tanh, so that a sentence need not be like its response. The layer is not part of the
    result. For pairs that mean the same use `supervised`.
    """

    columns = ("anchor", "positive")
    has_positive_pairs = False  # an input and its response do not mean the same
    temperature = 1.0
    similarity = "dot"

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__(encoder)
        self.response = new_dense(self.dim, self.dim, "Tanh")

    def project_candidates(self, vectors: Tensor) -> Tensor:
        return cast(Tensor, self.response(vectors))
