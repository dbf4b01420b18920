"""Python runs this first in every process that has this directory on its path: in drivers, Ray's workers and
child processes of a night under fire.

Faults are installed in a module when it has just been imported, so that no module is imported earlier than
without faults.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_STORES = tuple(f"pipeline.store.files.{name}" for name in ("local", "s3", "clouds"))
_ENCODER = "pipeline.models.inference.encoder"


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in (*_STORES, _ENCODER):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            sys.modules[name] = module
            _harm(name, module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _harm(name: str, module: ModuleType) -> None:
    if name in _STORES and "MANTA_CHAOS" in os.environ:
        from tests.chaos.harm import install

        install(module, os.environ["MANTA_CHAOS"])
    elif name == _ENCODER and "MANTA_CHAOS_POISON" in os.environ:
        from tests.flows.encode.poisoned import install as poison

        poison()


if "MANTA_CHAOS" in os.environ or "MANTA_CHAOS_POISON" in os.environ:
    sys.meta_path.insert(0, _Finder())
