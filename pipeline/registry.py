"""Methods by name.

A registry imports every module of its package, so adding a method adds one file and edits no list.
"""

import importlib
import pkgutil
from collections.abc import Callable
from typing import Generic, TypeVar

from pipeline.errors import ConfigError, Defect, did_you_mean

T = TypeVar("T")


class Registry(Generic[T]):
    """Classes or functions by name, registered by the modules of `package`.

    The modules are imported at the first look-up.
    """

    def __init__(self, noun: str, package: str) -> None:
        """Make an empty registry; `noun` names an entry in messages, as in "transform"."""
        self.noun, self.package = noun, package
        self._entries: dict[str, T] = {}
        self._complete = False

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers a class or function under `name`.

        The decorator raises Defect if another class or function is registered under this name.
        """

        def add(entry: T) -> T:
            registered = self._entries.get(name, entry)
            if _origin(registered) != _origin(entry):
                raise Defect(
                    f"{self.noun} {name!r}",
                    "one owner",
                    f"{_origin(registered)} and {_origin(entry)}",
                    "rename one of them",
                )
            self._entries[name] = entry
            return entry

        return add

    def names(self) -> list[str]:
        """Return every name, sorted."""
        self._import()
        return sorted(self._entries)

    def __getitem__(self, name: str) -> T:
        """Return the entry `name`. Raises ConfigError with the closest names if there is none."""
        if name not in self._entries:
            self._import()
        if name not in self._entries:
            raise ConfigError(
                f"{self.noun} {name!r}",
                f"the name of {'an' if self.noun[0] in 'aeiou' else 'a'} {self.noun}",
                "no such name",
                did_you_mean(name, self._entries, f"known: {', '.join(self.names()) or 'none'}", most=3),
            )
        return self._entries[name]

    def _import(self) -> None:
        if self._complete:
            return
        for module in pkgutil.iter_modules(importlib.import_module(self.package).__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        self._complete = True  # only now: a module that fails to import fails again at the next look-up


def _origin(entry: object) -> str:
    """Return the qualified name of an entry. It stays the same if the module is loaded again."""
    return f"{getattr(entry, '__module__', '?')}.{getattr(entry, '__qualname__', entry)}"
