"""Other ways to encode with the same weights: sentence-transformers, ONNX Runtime, OpenVINO.

The last two get texts sorted by length, in batches that are padded to their longest text, and their vectors
are averaged and normalized, as sentence-transformers does.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
import transformers
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

Encode = Callable[[list[str], int], np.ndarray]
"""Vectors (n, dim) of n texts, with a batch size."""
Run = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Hidden states (rows, L, dim) of a batch, from its ids and its mask, (rows, L) int64 each."""

_OPSET = 17


def peers(path: Path, max_length: int, threads: int, work: Path) -> dict[str, Encode]:
    """Load every peer.

    Args:
        path: folder of a BERT encoder with mean pooling.
        max_length: tokens of the longest text.
        threads: number of threads; sentence-transformers uses those of torch.
        work: folder for exported models, which are reused.

    Returns:
        Functions that encode, by the name of the peer.
    """
    runs = {
        "ONNX Runtime float32": _onnx_run(_optimized(path, work), threads),
        "ONNX Runtime int8": _onnx_run(_quantized(path, work), threads),
        "OpenVINO float32": _openvino_run(_exported(path, work), threads, "f32"),
        "OpenVINO bfloat16": _openvino_run(_exported(path, work), threads, "bf16"),
    }
    model = SentenceTransformer(str(path), device="cpu")
    batches = {name: partial(_encode_sorted, _tokenizer(path, max_length), run) for name, run in runs.items()}
    return {"sentence-transformers": lambda texts, size: model.encode(texts, batch_size=size), **batches}


def _tokenizer(path: Path, max_length: int) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.enable_truncation(max_length)
    tokenizer.enable_padding()
    return tokenizer


def _encode_sorted(tokenizer: Tokenizer, run: Run, texts: list[str], size: int) -> np.ndarray:
    """Encode batches of texts of similar length, longest first, with mean pooling."""
    order = np.argsort([-len(text) for text in texts], kind="stable")
    parts = []
    for start in range(0, len(order), size):
        encodings = tokenizer.encode_batch([texts[row] for row in order[start : start + size]])
        ids = np.array([encoding.ids for encoding in encodings], np.int64)
        mask = np.array([encoding.attention_mask for encoding in encodings], np.int64)
        sums = np.einsum("rld,rl->rd", run(ids, mask), mask.astype(np.float32))
        parts.append(sums / np.linalg.norm(sums, axis=1, keepdims=True))
    vectors = np.empty((len(texts), parts[0].shape[1]), np.float32)
    vectors[order] = np.concatenate(parts)
    return vectors


def _exported(path: Path, work: Path) -> Path:
    """Export the Transformer to ONNX."""
    file = work / "float32.onnx"
    if file.exists():
        return file
    model = transformers.AutoModel.from_pretrained(path, attn_implementation="eager").eval()
    ids = torch.ones(2, 8, dtype=torch.long)
    axes = {0: "rows", 1: "length"}
    torch.onnx.export(
        _States(model),
        (ids, ids),
        str(file),
        input_names=["input_ids", "attention_mask"],
        output_names=["states"],
        dynamic_axes={"input_ids": axes, "attention_mask": axes, "states": axes},
        opset_version=_OPSET,
        dynamo=False,
    )
    return file


class _States(torch.nn.Module):
    """Transformer that returns its last hidden state alone."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def _optimized(path: Path, work: Path) -> Path:
    """Fuse attention, GELU and normalization with the optimizer of ONNX Runtime."""
    from onnxruntime.transformers import optimizer

    file = work / "optimized.onnx"
    if not file.exists():
        config = transformers.AutoConfig.from_pretrained(path)
        model = optimizer.optimize_model(
            str(_exported(path, work)),
            model_type="bert",
            num_heads=config.num_attention_heads,
            hidden_size=config.hidden_size,
        )
        model.save_model_to_file(str(file))
    return file


def _quantized(path: Path, work: Path) -> Path:
    """Quantize weights per channel; activations are quantized when the model runs."""
    from onnx import TensorProto
    from onnxruntime.quantization import QuantType, quantize_dynamic

    file = work / "int8.onnx"
    if not file.exists():
        quantize_dynamic(
            _optimized(path, work),
            file,
            per_channel=True,
            weight_type=QuantType.QInt8,
            extra_options={"DefaultTensorType": TensorProto.FLOAT},  # of the fused operators
        )
    return file


def _onnx_run(file: Path, threads: int) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda ids, mask: session.run(None, {"input_ids": ids, "attention_mask": mask})[0]


def _openvino_run(file: Path, threads: int, precision: str) -> Run:
    import openvino

    settings = {
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
    }
    request = openvino.Core().compile_model(str(file), "CPU", settings).create_infer_request()

    def run(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        found = request.infer({"input_ids": ids, "attention_mask": mask}, share_inputs=True)
        return np.asarray(found[0], np.float32)

    return run
