"""Write folders of new Transformers, one kind of new encoder: BERT's architecture over whole words, then a
dense layer.
"""

import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from pipeline.models.classic.new_vocabulary import MAX_LENGTH, most_frequent, write_pooling
from pipeline.models.folder.modules import write_json
from pipeline.models.folder.word_vectors import END, START, UNKNOWN, word_pattern
from pipeline.models.layers.post_pooling import new_dense
from pipeline.settings.weights import TransformerSettings

if TYPE_CHECKING:
    import tokenizers

FORMAT = 3  # version of the folders; raise it when they are written differently
_PADDING = "<pad>"
# Width of a feed-forward layer, as a multiple of a state's (Vaswani et al. 2017, section 3.3).
_FEED_FORWARD_FACTOR = 4


def write_transformer_folder(
    settings: TransformerSettings, counts: Counter[str], folder: Path, *, seed: int
) -> None:
    """Write the folder of a new Transformer: the pooling sqrt_len, then a dense layer.

    Its tokens are the lowercased words of `words_of`. transformers and sentence-transformers load it too.
    The vectors of positions and of the token type start at zero. They are the same in every text, and other
    values would make all texts alike, as word vectors are small. A state has a norm of sqrt(width); the dense
    layer divides by that, so that a text of n words gets a vector of norm sqrt(n) at most. With larger
    vectors, the softmax of inner products starts saturated.

    Args:
        settings: shape of the encoder.
        counts: counts of lowercased words.
        folder: folder to write to.
        seed: seed of the weights.

    Raises:
        ModelError: `counts` is empty.
    """
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    assert settings.width is not None, "the caller asks for a new encoder"
    limit = None if settings.vocabulary is None else settings.vocabulary - 1  # without UNKNOWN
    tokens = [_PADDING, UNKNOWN, START, END, *most_frequent(counts, limit)]
    config = BertConfig(
        vocab_size=len(tokens),
        hidden_size=settings.width,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        intermediate_size=_FEED_FORWARD_FACTOR * settings.width,
        max_position_embeddings=MAX_LENGTH,
        type_vocab_size=1,
        hidden_act="relu",
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BertModel(config, add_pooling_layer=False)
        layer = new_dense(settings.width, settings.output, "Identity")
    for embedding in (model.embeddings.position_embeddings, model.embeddings.token_type_embeddings):
        nn.init.zeros_(embedding.weight)
    with torch.no_grad():
        layer.linear.weight.div_(math.sqrt(settings.width))
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=_whole_words(tokens),
        unk_token=UNKNOWN,
        pad_token=_PADDING,
        bos_token=START,
        eos_token=END,
        model_max_length=MAX_LENGTH,
    ).save_pretrained(folder)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": MAX_LENGTH, "do_lower_case": False})
    write_pooling(folder, settings.width, "mean_sqrt_len_tokens", [layer])


def _whole_words(tokens: list[str]) -> "tokenizers.Tokenizer":
    """Create the tokenizer whose tokens, by id, are padding, unknown word, start, end, and then words."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

    ids = {token: number for number, token in enumerate(tokens)}
    # [\p{L}\p{N}_] is \w in Python. In the tokenizers library, \w lacks ² and ₂ and has more signs and marks,
    # so that words would be unknown.
    words = word_pattern().replace(r"\w", r"\p{L}\p{N}_")
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace("\u2019", "'")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(words), behavior="removed", invert=True)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A {END}", special_tokens=[(token, ids[token]) for token in (START, END)]
    )
    return tokenizer
