"""Load configurations, models and tokenizers through transformers.

Code in a folder is never run, and no weight is left at a random value.
"""

import contextlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from safetensors import SafetensorError, safe_open

from pipeline.errors import MODEL_FAILURES, ModelError
from pipeline.models.folder.check_weights import check_finite, check_unused
from pipeline.models.folder.modules import read_json
from pipeline.text.tokens.tokenizer_errors import tokenizer_errors

OFFLINE: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
"""arguments of every `from_pretrained`; unless trust_remote_code is False, transformers asks on the terminal
whether to run a folder's code"""
_FETCH_AGAIN = "fetch its files again, or use another model"
_LOADING_ERRORS = (*MODEL_FAILURES, OSError, ImportError, SafetensorError, UnpicklingError)
_PORTS = {
    "new": "gte",
    "NewModel": "gte",
    "NomicBertModel": "nomic_bert",
    "XLMRobertaLoRA": "jina_embeddings_v3",
}
"""implementations in transformers of models that are published with code: the class or model_type in the
published files -> model_type in transformers"""


def _loading_errors() -> tuple[type[Exception], ...]:
    """Return the errors with which transformers refuses a folder, also when it checks config.json."""
    from huggingface_hub.errors import StrictDataclassError

    return (*_LOADING_ERRORS, StrictDataclassError)


def check_code(folder: Path, auto: str = "AutoModel") -> None:
    """Check that a folder's model needs no code outside transformers, without importing it.

    Args:
        folder: folder of the model.
        auto: name of the transformers class that will load the model; code for other classes is ignored.

    Raises:
        ModelError: the model comes with code, fetches its attention kernel from the hub, or is an adapter to
            another model. The message names the code, and the implementation in transformers if it has one.
    """
    file, config = folder / "config.json", read_json(folder / "config.json")
    for name, value in _attention_settings(config):
        if "/" in value:
            raise ModelError(
                str(file),
                "an attention that is part of transformers",
                f"{name} {value!r}, a repository of code",
                "remove that line",
            )
    # transformers would load the model that an adapter names, whatever else is in the folder
    if (adapter := folder / "adapter_config.json").exists():
        raise ModelError(
            str(adapter),
            "a model whose adapters are merged",
            f"an adapter to {read_json(adapter).get('base_model_name_or_path')!r}",
            "merge it (peft's merge_and_unload) and save the model",
        )
    model_type, code = str(config.get("model_type")), config.get("auto_map")
    remote = (code.get("AutoModel") or code.get(auto)) if isinstance(code, dict) else code
    # folders for an implementation in transformers still name the code that it replaces
    if remote and model_type not in _PORTS.values():
        raise _needs_code(file, f"auto_map, which names the code {remote}", model_type, str(remote))


def _attention_settings(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield name and value of each setting that chooses an attention, for the model or a part of it."""
    parts = [("", config)]
    while parts:
        prefix, part = parts.pop()
        for name, value in part.items():
            if name in ("attn_implementation", "_attn_implementation"):
                yield f"{prefix}{name}", str(value)
            elif isinstance(value, dict):
                parts.append((f"{prefix}{name}.", value))


def _check_known(folder: Path, auto: str = "AutoModel") -> None:
    """Check that transformers has the model_type; for an unknown type, it would ask whether to run code."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    check_code(folder, auto)
    model_type = str(read_json(folder / "config.json", required=True).get("model_type"))
    if model_type not in CONFIG_MAPPING:
        raise _needs_code(folder / "config.json", f"model_type {model_type!r}", model_type, "")


def _needs_code(file: Path, found: str, model_type: str, remote: str) -> ModelError:
    port = next((port for name, port in _PORTS.items() if name == model_type or name in remote), None)
    return ModelError(
        str(file),
        "a model that is part of transformers, since code from a folder is not run",
        found,
        f"use a copy that was saved with its implementation in transformers (model_type {port}, no auto_map)"
        if port
        else "use an encoder whose architecture is part of transformers",
    )


def load_complete(
    auto: Any,
    folder: Path,
    expected: str,
    *,
    unused: Collection[str] = (),
    remedy: str = _FETCH_AGAIN,
    **options: Any,
) -> Any:
    """Load a model and check that all of its weights were stored.

    Args:
        auto: the transformers class that loads it.
        folder: folder of the model.
        expected: the kind of model, for errors.
        unused: prefixes of weights that may be missing, as their outputs are not used.
        remedy: what to do if the folder cannot be loaded, for errors.
        options: further arguments of `from_pretrained`.

    Raises:
        ModelError: the folder cannot be loaded, or weights are NaN, infinite, missing or too many;
            transformers would draw missing ones at random, and ignore the surplus.
    """
    _check_known(folder, auto.__name__)
    try:
        with _load_quietly():
            model, report = auto.from_pretrained(str(folder), **OFFLINE, **options, output_loading_info=True)
    except _loading_errors() as error:
        raise ModelError(str(folder), expected, one_line(error), remedy) from None
    missing = sorted(
        name
        for name in report["missing_keys"]
        if not name.startswith(tuple(unused)) and not name.endswith("position_ids")
    )
    if missing:
        shown = f"{', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''}"
        raise ModelError(
            str(folder),
            f"{expected}, with all its weights",
            f"{len(missing)} weights missing: {shown}",
            remedy,
        )
    prefix, parts = f"{model.base_model_prefix}.", dict(model.base_model.named_children())
    check_unused(str(folder), (name.removeprefix(prefix) for name in report["unexpected_keys"]), parts)
    parameters = dict(model.named_parameters())
    _check_types(folder, parameters, prefix)
    for name, parameter in parameters.items():
        if not name.startswith(tuple(unused)):
            check_finite(str(folder), name, parameter.detach())
    return model


def _check_types(folder: Path, parameters: Mapping[str, Any], prefix: str) -> None:
    """Check that stored parameters are floating-point numbers, since transformers converts all types.

    Args:
        prefix: of names in files that a model with a head wrote.
    """
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(str(file), framework="np") as opened:
            for name in opened.keys():  # noqa: SIM118
                kind = opened.get_slice(name).get_dtype()
                is_float = kind.startswith(("F", "BF"))
                if not is_float and (name in parameters or name.removeprefix(prefix) in parameters):
                    raise ModelError(
                        str(file),
                        f"floating-point numbers in {name}",
                        kind,
                        "save the model with its weights as float32",
                    )


@contextlib.contextmanager
def _load_quietly() -> Iterator[None]:
    """Hide transformers' progress bar and its table of weights, unless its verbosity is info or debug.

    Each worker would print a bar. A bar also creates a semaphore, which a killed worker leaves behind.
    """
    from transformers import logging

    if logging.get_verbosity() != logging.WARNING:
        yield
        return
    shows_progress = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity_warning()
        if shows_progress:
            logging.enable_progress_bar()


def load_config(folder: Path) -> Any:
    """Load the configuration of a model folder.

    Raises:
        ModelError: transformers cannot read it.
    """
    from transformers import AutoConfig, PretrainedConfig

    _check_known(folder)
    try:
        config = AutoConfig.from_pretrained(str(folder), **OFFLINE)
        of_text = config.get_text_config()
    except _loading_errors() as error:
        raise ModelError(
            str(folder), "a config.json that transformers reads", one_line(error), _FETCH_AGAIN
        ) from None
    if not isinstance(of_text, PretrainedConfig):
        raise ModelError(
            f"{folder}/config.json",
            f"no configuration of a part (text_config, text_encoder, decoder) for {config.model_type}",
            repr(of_text)[:60],
            "remove that key, or use another model",
        )
    return config


def load_pretrained_tokenizer(folder: Path) -> Any:
    """Load the tokenizer of a folder through transformers.

    Raises:
        ModelError: files are damaged or missing.
        ImportError: a package that the tokenizer needs is missing.
    """
    from transformers import AutoTokenizer

    check_code(folder)
    try:
        with tokenizer_errors(folder, "a tokenizer that transformers loads"):
            return AutoTokenizer.from_pretrained(str(folder), **OFFLINE)
    except ImportError:
        raise
    except _LOADING_ERRORS as error:
        raise ModelError(
            str(folder), "a tokenizer that transformers loads", one_line(error), "fetch its files again"
        ) from None


def one_line(error: Exception) -> str:
    """Return type and message of an error in one line of at most 200 characters."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
