"""Methods that make variants of a text. Each method has one file, which the registry finds.

A method is a settings class whose fields are its options. A `WordAugmenter` edits words, is fast and needs no
model. A `ModelAugmenter` names models; each model after the first reads the output of the previous one.
Each model can have workers of its own, and its outputs are stored.

Random draws do not depend on the worker, the order or the neighbours of a row: each generator is seeded by a
key. The key of word edits is (seed, name of the variant, number of the variant, id). Models use text_key, a
hash of the text, instead of the id, so that a text which comes back under another id gets the same variants.
"""

from pipeline.augment.augmenter import (
    AUGMENTERS,
    Augmenter,
    Edit,
    LoadedStage,
    ModelAugmenter,
    ModelStage,
    ModelStats,
    ModelWork,
    NamedAugmenter,
    StageInput,
    StageOutput,
    WordAugmenter,
    Words,
    build_augmenters,
    keyed_rng,
)

__all__ = [
    "AUGMENTERS",
    "Augmenter",
    "Edit",
    "LoadedStage",
    "ModelAugmenter",
    "ModelStage",
    "ModelStats",
    "ModelWork",
    "NamedAugmenter",
    "StageInput",
    "StageOutput",
    "WordAugmenter",
    "Words",
    "build_augmenters",
    "keyed_rng",
]
