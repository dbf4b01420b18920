"""An encoder that some texts kill, make raise, or make hang, installed in a process by `install`.

With HANGS_LOADING in the environment it hangs while it is loaded.
"""

import os
import signal
import time
from collections.abc import Iterable, Iterator
from typing import Any

from pipeline.models.inference import encoder as module

KILLS, RAISES, HANGS = "this text kills", "this text raises", "this text hangs"
HANGS_LOADING = "TEST_HANGS_LOADING"


def install() -> None:
    """Make encoders of this process die at KILLS, hang at HANGS and raise at RAISES."""
    if HANGS_LOADING in os.environ:
        time.sleep(3600)
    original = module.Encoder.encode_stream

    def encode_stream(self: Any, batches: Iterable[Any], *arguments: Any) -> Iterator[Any]:
        def watched() -> Iterator[Any]:
            for batch in batches:
                texts = batch if isinstance(batch, list) else batch.to_pylist()
                if KILLS in texts:
                    os.kill(os.getpid(), signal.SIGKILL)
                if HANGS in texts:
                    time.sleep(3600)
                if RAISES in texts:
                    raise RuntimeError("a text that the model cannot digest")
                yield batch

        return original(self, watched(), *arguments)

    module.Encoder.encode_stream = encode_stream  # type: ignore[method-assign]
