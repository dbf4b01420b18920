"""Files of a remote store, and their copies in the cache."""

import hashlib
import os
import time
from pathlib import Path

import numpy as np

CONTENT = np.random.default_rng(0).bytes(3 << 20)


SHA256 = hashlib.sha256(CONTENT).hexdigest()


ENCODER = {
    "config.json": b"{}",
    "model.safetensors": CONTENT,
    "1_Pooling/config.json": b'{"pooling": 1}',
    "onnx/model.onnx": b"not wanted",
}


def age(path: Path, hours: float) -> None:
    """Set the time of the last access to some hours ago; of a folder, also that of its last change."""
    time_ns = int((time.time() - 3_600 * hours) * 1e9)
    os.utime(path, ns=(time_ns, time_ns if path.is_dir() else path.stat().st_mtime_ns))
