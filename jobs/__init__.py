"""Jobs: one thin file per command."""

import contextlib
import importlib

with contextlib.suppress(ModuleNotFoundError):  # `manta` is not installed when jobs run from a source tree
    importlib.import_module("manta.hidden").check_packages()
