"""NMT encoder (Hill, Cho & Korhonen 2016): the vector of a text lets a decoder write its translation."""

from torch import nn

from pipeline.objectives import OBJECTIVES
from pipeline.objectives.encoder_decoder import EncoderDecoder


@OBJECTIVES.register("translation")
class Translation(EncoderDecoder):
    """Negative log-likelihood of a text's translation, written by a GRU decoder from the vector of the text.

    There is no attention (Cho et al. 2014): the decoder knows the text by its vector alone. Both languages
    share one vocabulary, so a word that is spelled alike in both has one vector. For one language use `sdae`,
    which writes the text itself.
    """

    columns = ("text", "translation")

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__(encoder, written=("translation",), cell="gru")
