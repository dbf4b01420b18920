"""Encoder folders that contain code, each in a different way. If the code is run, it writes a file."""

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.models.folders import edit_json, save_folder

CODE = "evil_code"
_TRANSFORMER = "sentence_transformers.models.Transformer"


class _Touch:
    """Object that writes a file when it is unpickled."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.witness,)


@dataclass(frozen=True)
class Poisoned:
    """An encoder folder, and the file that its code would write."""

    path: Path
    witness: Path

    def edit(self, name: str, **changes: object) -> None:
        """Replace keys of a JSON file of the folder."""
        edit_json(self.path / name, **changes)

    def code(self, *names: str) -> None:
        """Write the code to files of the folder."""
        for name in names:
            file = self.path / name
            file.parent.mkdir(exist_ok=True)
            touch = f"import pathlib\npathlib.Path({str(self.witness)!r}).touch()\n"
            file.write_text(f"{touch}class Model: pass\nConfig = T = Module = MaskPooling = Model\n")

    def pickle(self, *names: str) -> None:
        """Write files of the folder whose unpickling runs code."""
        for name in names:
            (self.path / name).write_bytes(pickle.dumps({"weight": _Touch(self.witness)}))

    def modules(self, first: str, second: str = "sentence_transformers.models.Pooling") -> None:
        """Write a modules.json of two modules, given by their classes."""
        entries = [
            {"idx": 0, "name": "0", "path": "", "type": first},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": second},
        ]
        (self.path / "modules.json").write_text(json.dumps(entries))
        (self.path / "1_Pooling").mkdir()
        self.edit("1_Pooling/config.json", word_embedding_dimension=48, pooling_mode_mean_tokens=True)

    def slow_tokenizer(self) -> None:
        """Remove tokenizer.json, so that transformers makes the tokenizer that the configuration names."""
        words = json.loads((self.path / "tokenizer.json").read_text())["model"]["vocab"]
        (self.path / "vocab.txt").write_text("\n".join(sorted(words, key=words.__getitem__)))
        (self.path / "tokenizer.json").unlink()


def _slow_tokenizer(folder: Poisoned) -> None:
    folder.slow_tokenizer()
    folder.edit("tokenizer_config.json", auto_map={"AutoTokenizer": [f"{CODE}.T", None]}, tokenizer_class="T")


def _slow_tokenizer_of_config(folder: Poisoned) -> None:
    folder.slow_tokenizer()
    folder.edit("config.json", auto_map={"AutoTokenizer": f"{CODE}.T"})


def _module_of_this_name(folder: Poisoned) -> None:
    folder.modules(_TRANSFORMER, "template_modules.MaskPooling")
    folder.code("template_modules.py")


def _trusting_arguments(folder: Poisoned) -> None:
    folder.modules(_TRANSFORMER)
    folder.edit("config.json", auto_map={"AutoModel": f"{CODE}.Model"})
    trust = {"trust_remote_code": True}
    folder.edit(
        "sentence_bert_config.json",
        max_seq_length=32,
        model_args=trust,
        config_args=trust,
        tokenizer_args=trust,
    )


def _pickled_weights(folder: Poisoned) -> None:
    (folder.path / "model.safetensors").unlink()
    folder.pickle("pytorch_model.bin")


def _adapter(folder: Poisoned) -> None:
    mapping = {"base_model_class": "Model", "parent_library": CODE}
    folder.edit(
        "adapter_config.json", peft_type="LORA", base_model_name_or_path="evil/base", auto_mapping=mapping
    )


Poison = Callable[[Poisoned], None]
LOADED: dict[str, Poison] = {
    "the configuration's class": lambda folder: folder.edit(
        "config.json", auto_map={"AutoConfig": f"{CODE}.Config"}
    ),
    "the tokenizer's class": lambda folder: folder.edit(
        "tokenizer_config.json", auto_map={"AutoTokenizer": [f"{CODE}.T", f"{CODE}.T"]}, tokenizer_class="T"
    ),
    "a module with the name of one of this project": _module_of_this_name,
    "pickles beside the weights": lambda folder: folder.pickle(
        "training_args.bin", "optimizer.pt", "scheduler.pt"
    ),
    "a chat template": lambda folder: folder.edit(
        "tokenizer_config.json", chat_template="{{ ''.__class__.__mro__[1].__subclasses__() }}"
    ),
    "files that Python looks for": lambda folder: folder.code(
        "sitecustomize.py", "__init__.py", "transformers.py", "torch.py", "conftest.py"
    ),
    "code to generate texts": lambda folder: folder.code("custom_generate/generate.py"),
}
"""code that no vector depends on: the folder is read, and the code is ignored"""
REFUSED: dict[str, Poison] = {
    "the model's class": lambda folder: folder.edit("config.json", auto_map={"AutoModel": f"{CODE}.Model"}),
    "the configuration's class, for a model type that transformers does not know": lambda folder: folder.edit(
        "config.json", model_type="evil", auto_map={"AutoConfig": f"{CODE}.Config"}
    ),
    "the slow tokenizer's class": _slow_tokenizer,
    "the slow tokenizer's class, by the configuration": _slow_tokenizer_of_config,
    "a first module with code": lambda folder: folder.modules(f"{CODE}.Module"),
    "a second module with code": lambda folder: folder.modules(_TRANSFORMER, f"{CODE}.Module"),
    "a module of a package": lambda folder: folder.modules(_TRANSFORMER, "os.system"),
    "arguments that trust remote code": _trusting_arguments,
    "a pickle for weights": _pickled_weights,
    "a kernel from the hub": lambda folder: folder.edit("config.json", attn_implementation="evil/kernel"),
    "a kernel from the hub, further down": lambda folder: folder.edit(
        "config.json", text_config={"attn_implementation": "evil/kernel"}
    ),
    "an adapter with code": _adapter,
}
"""code that computes the vectors, or might: the folder is refused"""


def save_poisoned(folder: Path, family: str, poison: Poison, witness: Path) -> Path:
    """Write a folder of that family, with code that writes the file `witness` if it runs."""
    poisoned = Poisoned(save_folder(folder, family), witness)
    poisoned.code(f"{CODE}.py")
    poison(poisoned)
    return folder
