"""Keys of the JSON files of an encoder folder, each with a changed value, and what becomes of it.

computed: vectors change, and equal those of sentence-transformers; refused: a ModelError names the file;
without effect: vectors stay, for sentence-transformers, too. config.json of the model is not in this table.
"""

from typing import Any, Literal, NamedTuple

Outcome = Literal["computed", "refused", "without effect"]


class Change(NamedTuple):
    """A value of a key of a file, replaced or added. Keys inside of values are separated by dots."""

    file: str
    key: str
    value: Any
    outcome: Outcome
    tokenizer_class: str | None = None
    """class in tokenizer_config.json; None: the one that reads tokenizer.json as it is"""


_TOKENIZER, _CONFIG = "tokenizer.json", "tokenizer_config.json"
_MAP, _IDS = "special_tokens_map.json", "added_tokens.json"
_ST, _TRANSFORMER = "config_sentence_transformers.json", "sentence_bert_config.json"
_POOLING, _DENSE, _NORMALIZE = "1_Pooling/config.json", "2_Dense/config.json", "3_Normalize/config.json"
_TOKEN = {"content": "og", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
_FRAME = {
    "type": "BertProcessing",
    "sep": ["[MASK]", 4],
    "cls": ["[CLS]", 1],
}
_METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
_MODULES = "sentence_transformers.models."

CHANGES = (
    Change(_TOKENIZER, "version", "1.0", "without effect"),
    Change(
        _TOKENIZER,
        "truncation",
        {"direction": "Left", "max_length": 9, "strategy": "LongestFirst", "stride": 0},
        "computed",
    ),
    Change(
        _TOKENIZER,
        "padding",
        {
            "strategy": "BatchLongest",
            "direction": "Right",
            "pad_to_multiple_of": 8,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "[PAD]",
        },
        "without effect",
    ),
    Change(_TOKENIZER, "added_tokens", [], "without effect"),
    Change(_TOKENIZER, "normalizer", {"type": "Lowercase"}, "computed"),
    Change(_TOKENIZER, "normalizer", None, "computed"),
    Change(_TOKENIZER, "normalizer.clean_text", False, "without effect"),
    Change(_TOKENIZER, "normalizer.handle_chinese_chars", False, "computed"),
    Change(_TOKENIZER, "normalizer.strip_accents", True, "computed"),
    Change(_TOKENIZER, "normalizer.lowercase", True, "computed"),
    Change(_TOKENIZER, "pre_tokenizer", {"type": "WhitespaceSplit"}, "computed"),
    Change(
        _TOKENIZER,
        "pre_tokenizer",
        _METASPACE,
        "computed",
    ),
    Change(_TOKENIZER, "post_processor", None, "computed"),
    Change(_TOKENIZER, "post_processor", _FRAME, "computed"),
    Change(_TOKENIZER, "post_processor.single", [{"Sequence": {"id": "A", "type_id": 0}}], "computed"),
    Change(_TOKENIZER, "post_processor.special_tokens", {}, "refused"),
    Change(_TOKENIZER, "decoder", {"type": "WordPiece", "prefix": "##", "cleanup": True}, "without effect"),
    Change(_TOKENIZER, "model.unk_token", "[MASK]", "computed"),
    Change(_TOKENIZER, "model.unk_token", "[none]", "refused"),
    Change(_TOKENIZER, "model.continuing_subword_prefix", "@@", "computed"),
    Change(_TOKENIZER, "model.max_input_chars_per_word", 3, "computed"),
    Change(_TOKENIZER, "model.type", "WordLevel", "computed"),
    *(
        Change(_CONFIG, name, "og", "computed")
        for name in ("bos_token", "eos_token", "unk_token", "sep_token", "cls_token", "mask_token", "x_token")
    ),
    Change(_CONFIG, "pad_token", "og", "computed"),
    Change(_CONFIG, "added_tokens_decoder", {"300": _TOKEN | {"special": False}}, "computed"),
    Change(_CONFIG, "additional_special_tokens", ["og"], "computed"),
    Change(_CONFIG, "extra_special_tokens", {"a": "og"}, "computed"),
    Change(_CONFIG, "split_special_tokens", True, "computed"),
    Change(_CONFIG, "model_max_length", 9, "computed"),
    Change(_CONFIG, "truncation_side", "left", "computed"),
    Change(_CONFIG, "padding_side", "left", "without effect"),
    Change(_CONFIG, "model_input_names", ["input_ids", "attention_mask"], "without effect"),
    Change(_CONFIG, "clean_up_tokenization_spaces", True, "without effect"),
    Change(_CONFIG, "chat_template", "{{ messages }}", "without effect"),
    Change(_CONFIG, "backend", "tokenizers", "without effect"),
    Change(_CONFIG, "is_local", False, "without effect"),
    Change(_CONFIG, "local_files_only", False, "without effect"),
    Change(_CONFIG, "add_prefix_space", True, "without effect"),
    Change(_CONFIG, "do_lower_case", True, "without effect"),
    Change(_CONFIG, "do_lower_case", True, "computed", "BertTokenizer"),
    Change(_CONFIG, "strip_accents", True, "computed", "BertTokenizer"),
    Change(_CONFIG, "tokenize_chinese_chars", False, "computed", "BertTokenizer"),
    Change(_CONFIG, "never_split", ["og"], "without effect", "BertTokenizer"),
    Change(_MAP, "mask_token", "og", "computed"),
    Change(_MAP, "additional_special_tokens", ["og"], "computed"),
    Change(_IDS, "og", 300, "computed"),
    Change(_ST, "__version__", {}, "without effect"),
    Change(_ST, "model_type", "SparseEncoder", "refused"),
    Change(_ST, "prompts", {"document": "two "}, "computed"),
    Change(_ST, "default_prompt_name", "query", "without effect"),
    Change(_ST, "similarity_fn_name", "dot", "without effect"),
    Change(_ST, "truncate_dim", 5, "computed"),
    Change(_TRANSFORMER, "transformer_task", "fill-mask", "refused"),
    Change(_TRANSFORMER, "module_output_name", "x", "refused"),
    Change(_TRANSFORMER, "modality_config.text.method_output_name", "pooler_output", "refused"),
    Change(_TRANSFORMER, "modality_config.text.method", "get_text_features", "refused"),
    Change(_TRANSFORMER, "max_seq_length", 9, "computed"),
    Change(_TRANSFORMER, "do_lower_case", True, "computed"),
    Change(_TRANSFORMER, "processing_kwargs", {"text": {"max_length": 9}}, "computed"),
    Change(_TRANSFORMER, "processing_kwargs", {"text": {"add_special_tokens": False}}, "refused"),
    Change(_TRANSFORMER, "config_kwargs", {"num_hidden_layers": 1}, "refused"),
    Change(_TRANSFORMER, "processor_kwargs", {"split_special_tokens": True}, "refused"),
    Change(_TRANSFORMER, "model_kwargs", {"attn_implementation": "eager"}, "without effect"),
    Change(_TRANSFORMER, "query_length", 9, "refused"),
    Change(_TRANSFORMER, "unpad_inputs", True, "without effect"),
    Change(_POOLING, "embedding_dimension", 48, "without effect"),
    Change(_POOLING, "pooling_mode", "cls", "computed"),
    Change(_POOLING, "pooling_mode", "max", "computed"),
    Change(_POOLING, "pooling_mode", "weightedmean", "computed"),
    Change(_POOLING, "pooling_mode", "lasttoken", "computed"),
    Change(_POOLING, "pooling_mode", "mean_sqrt_len_tokens", "computed"),
    Change(_POOLING, "pooling_mode", "none", "refused"),
    Change(_POOLING, "pooling_mode_max_tokens", True, "without effect"),
    Change(_POOLING, "include_prompt", False, "without effect"),
    Change(_DENSE, "in_features", 47, "refused"),
    Change(_DENSE, "out_features", 15, "refused"),
    Change(_DENSE, "bias", False, "refused"),
    Change(_DENSE, "activation_function", "torch.nn.modules.activation.ReLU", "computed"),
    Change(_DENSE, "activation_function", "torch.nn.modules.linear.Identity", "computed"),
    Change(_DENSE, "module_input_name", "token_embeddings", "refused"),
    Change(_DENSE, "module_output_name", "x", "refused"),
    Change(_DENSE, "use_residual", True, "refused"),
    Change(_NORMALIZE, "module_input_name", "token_embeddings", "refused"),
    Change(_NORMALIZE, "module_output_name", "x", "refused"),
    Change("modules.json", "0.type", f"{_MODULES}CLIPModel", "refused"),
    *(
        Change("modules.json", "3.type", f"{_MODULES}{kind}", "refused")
        for kind in (
            "LayerNorm",
            "WeightedLayerPooling",
            "CNN",
            "LSTM",
            "BoW",
            "WordEmbeddings",
            "Router",
            "Asym",
        )
    ),
    Change("modules.json", "0.idx", 7, "without effect"),
    Change("modules.json", "0.name", "x", "without effect"),
    Change("modules.json", "2.path", "../2_Dense", "refused"),
    Change("modules.json", "0.kwargs", ["task"], "without effect"),
)
