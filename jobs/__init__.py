"""Jobs: one thin file per command."""

import contextlib
import importlib

# Refuse a user's package that shadows Manta's. When jobs run from a source tree, `manta` is not installed.
with contextlib.suppress(ModuleNotFoundError):
    importlib.import_module("manta.shadowing").check_packages()
