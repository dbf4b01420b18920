"""Skip-Thought (Kiros et al. 2015): the vector of a sentence lets two decoders write its neighbours."""

from torch import nn

from pipeline.models.folder.concatenated import check_same_reading
from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.encoder import TrainableEncoder, load_trainable
from pipeline.objectives import OBJECTIVES, TrainedModel
from pipeline.objectives.encoder_decoder import EncoderDecoder
from pipeline.settings import EncoderSettings


@OBJECTIVES.register("skip_thought")
class SkipThought(EncoderDecoder):
    """Negative log-likelihood of the sentences before and after, written by two GRU decoders from the vector.

    The published models are a GRU of one direction (uni-skip), of two directions (bi-skip), and both side by
    side (combine-skip). For the last one, `beside` is the encoder folder of a model that was trained on the
    same rows before; the result appends its vectors to the trained encoder's. `quickthoughts` finds the
    neighbours among other sentences; `fastsent` predicts their words without an order.
    """

    columns = ("previous", "text", "next")
    _beside: TrainableEncoder | None = None

    def __init__(self, encoder: nn.Module, *, beside: str | None = None) -> None:
        super().__init__(encoder, written=("previous", "next"), cell="gru")
        if beside is not None:
            trained = load_trainable(open_folder(EncoderSettings(path=beside)))
            check_same_reading(self.encoder.folder, trained.folder)
            self.set_unregistered("_beside", trained.eval().requires_grad_(False))

    def trained_model(self) -> TrainedModel:
        if self._beside is None:
            return TrainedModel(self.encoder)
        return TrainedModel(self.encoder, twin=self._beside.to(self.output.device))
