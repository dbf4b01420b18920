"""Choose and load the backbone of an encoder folder, for inference."""

from torch import nn

from pipeline.errors import ConfigError
from pipeline.models.classic.convolutional import ConvolutionalModel
from pipeline.models.classic.dan import DanModel
from pipeline.models.classic.paragraph import ParagraphModel
from pipeline.models.classic.recurrent import SteppedModel
from pipeline.models.classic.word_table import BagModel
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.inference.packed import PackedModel
from pipeline.models.inference.padded import PaddedModel
from pipeline.models.layers.backbones import Model
from pipeline.models.layers.numerics import Arithmetic
from pipeline.models.layers.post_pooling import FixedRows, load_mlp
from pipeline.models.layers.weights import open_checkpoint
from pipeline.text.tokens.tokens import Tokenizer

_OWN_MODELS = {
    "recurrent": SteppedModel,
    "convolutional": ConvolutionalModel,
    "dan": DanModel,
    "paragraph": ParagraphModel,
}


def load_backbone(
    folder: EncoderFolder, arithmetic: Arithmetic, tokenizer: Tokenizer
) -> tuple[Model, nn.Module | None]:
    """Load the backbone, and the layer of the pooling cls_mlp, or None without that pooling."""
    checkpoint = open_checkpoint(folder)
    if folder.family in ("words", "static"):
        return BagModel(folder, checkpoint, arithmetic, tokenizer), None
    if arithmetic.is_quantized and folder.family in ("other", "convolutional"):
        raise ConfigError(
            "encode.dtype",
            "float32, bfloat16 or float16 for an encoder without a packed forward pass",
            f"int8 for {folder.path}",
            "set encode.dtype=float32, or use an encoder of another family",
        )
    if (kind := _OWN_MODELS.get(folder.family)) is not None:
        return kind(folder, checkpoint, arithmetic), None
    is_packed = folder.family != "other"
    model = PackedModel(folder, checkpoint, arithmetic) if is_packed else PaddedModel(folder, arithmetic)
    if "cls_mlp" not in folder.pooling:
        return model, None
    return model, FixedRows(load_mlp(checkpoint, model.width)).to(arithmetic.torch_device)
