"""Settings in the folder of an encoder that makes paragraph vectors.

Imports neither torch nor transformers.
"""

from pipeline.config import validated
from pipeline.errors import ConfigError, ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.settings.weights import ParagraphSettings

SETTINGS = "paragraph_vectors"  # key of config.json: the value that train.paragraph_vectors had
ROWS = "paragraphs"  # key of config.json: number of training rows, each of which has a vector of its own
NOISE = "noise"  # name of the tensor (vocabulary,) of weights with which negatives are drawn
FORMAT = 1  # version of the folders; raise it when they are written or read differently


def paragraph_settings(folder: EncoderFolder) -> ParagraphSettings:
    """Read the settings that the paragraph vectors were trained with; inference uses them too.

    Raises:
        ModelError: config.json has none, or values that do not fit together.
    """
    file = str(folder.transformer_path / "config.json")
    try:
        settings = validated(ParagraphSettings, folder.config.get(SETTINGS) or {}, file)
    except ConfigError as error:
        raise ModelError(error.where, error.expected, error.found, "restore the file") from None
    width, models = folder.config.get("hidden_size"), len(settings.models)
    if settings.dim is None or settings.dim * models != width:
        raise ModelError(
            file,
            f"{SETTINGS} whose dim, times the number of models, is hidden_size",
            f"dim {settings.dim}, {models} models, hidden_size {width}",
            "restore the file",
        )
    return settings
