"""Choose the pooling of an encoder folder, and check that the settings fit the folder."""

from pipeline.errors import ModelError, did_you_mean
from pipeline.models.folder.averaging import refuse_if
from pipeline.models.folder.encoder_folder import MASKED, SEQUENCE_FAMILIES, EncoderFolder
from pipeline.models.folder.modules import Denoising
from pipeline.models.spec.pooling import POOLINGS
from pipeline.settings import EncoderSettings


def choose_pooling(settings: EncoderSettings, folder_pooling: tuple[str, ...]) -> tuple[str, ...]:
    """Return the poolings that the settings name (mean, mean+max), or else mask for a template, or else the
    folder's.
    """
    if settings.pooling is None:
        return MASKED if settings.template is not None else folder_pooling
    pooling = tuple(name.strip() for name in settings.pooling.split("+"))
    for name in pooling:
        if name not in POOLINGS:
            raise ModelError(
                "encoder.pooling",
                f"one of {', '.join(POOLINGS)}",
                repr(name),
                did_you_mean(name, POOLINGS, "choose one; a + between two concatenates them"),
            )
    return pooling


def check_template(folder: EncoderFolder, settings: EncoderSettings) -> None:
    """Check that the template fits the family."""
    refuse_if(
        folder.template is not None and (folder.whole_words or folder.family == "static"),
        "encoder.template",
        "a model with a mask token",
        f"an encoder {'of whole words' if folder.whole_words else 'without layers'} at {settings.path}",
        "set it to null",
    )
    refuse_if(
        folder.template is not None and settings.exclude,
        "encoder.exclude",
        "an empty list with encoder.template, whose words would be left out of all texts",
        ", ".join(settings.exclude),
        "set one of the two only",
    )


def check_dim(folder: EncoderFolder, settings: EncoderSettings) -> None:
    """Check that the vectors have as many components as `encoder.dim` keeps."""
    refuse_if(
        settings.dim is not None and settings.dim > folder.dim,
        "encoder.dim",
        f"at most {folder.dim}, the dimensions of the vectors of {settings.path}",
        str(settings.dim),
        "lower it, or set it to null",
    )


def check_pooling(folder: EncoderFolder) -> None:
    """Check that pooling, modules and family fit each other."""
    pooling = "+".join(folder.pooling)
    refuse_if(
        "mask" in folder.pooling and folder.pooling != MASKED,
        "encoder.pooling",
        "mask alone",
        pooling,
        "choose mask, or poolings without it",
    )
    refuse_if(
        folder.pooling != MASKED and any(isinstance(module, Denoising) for module in folder.tail),
        "encoder.pooling",
        "mask, the pooling that the folder's Denoise module belongs to",
        pooling,
        "set it to null",
    )
    refuse_if(
        folder.family == "paragraph" and pooling != "cls",
        "encoder.pooling",
        "cls, the only pooling of paragraph vectors: the vector itself",
        pooling,
        "set it to null",
    )
    averages = {"dan": "a deep averaging network", "static": "a table of token vectors"}
    refuse_if(
        folder.family in averages and pooling != "mean",
        "encoder.pooling",
        f"mean, the only pooling of {averages.get(folder.family)}",
        pooling,
        "set it to null",
    )
    if folder.family in SEQUENCE_FAMILIES:
        _check_sequence_pooling(folder)
    refuse_if(
        "ends" in folder.pooling and folder.config.get("directions") != 2,
        "encoder.pooling",
        "an encoder of two directions, because ends concatenates the final states of both",
        pooling,
        "choose last, mean or max",
    )


def _check_sequence_pooling(folder: EncoderFolder) -> None:
    """Check that the pooling suits an encoder that reads words in their order."""
    pooling = "+".join(folder.pooling)
    refuse_if(
        not all(POOLINGS[name].sequences for name in folder.pooling),
        "encoder.pooling",
        f"one of {', '.join(each.name for each in POOLINGS.values() if each.sequences)} for a "
        f"{folder.family} encoder",
        pooling,
        "choose one of these",
    )
    refuse_if(
        folder.config.get("contexts") and folder.pooling != ("mean",),
        "encoder.pooling",
        "mean, the only pooling of an encoder with attention weights",
        pooling,
        "set it to null",
    )
