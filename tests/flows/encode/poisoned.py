"""An encoder on which some texts do harm, or that hangs while it is loaded where HANGS_LOADING is in the
environment, for tests of what comes of it.

It is put in place by `install`, in the process that is to suffer.
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
    """From now on, in this process, an encoder that meets the one text dies and that meets the other raises."""
    if HANGS_LOADING in os.environ:
        time.sleep(3600)
    original = module.Encoder.encode_stream

    def encode_stream(self: Any, batches: Iterable[Any], *tell: Any) -> Iterator[Any]:
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

        return original(self, watched(), *tell)

    module.Encoder.encode_stream = encode_stream  # type: ignore[method-assign]
