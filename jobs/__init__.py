"""Jobs: one thin file per command."""

import contextlib
import importlib

with contextlib.suppress(ModuleNotFoundError):  # a source tree that is not installed
    importlib.import_module("manta.hidden").refuse_others()
