"""Imports that wait until they are needed: torch takes longer to import than a search takes."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch
else:

    class _Later(ModuleType):
        """Stands for a module, which is imported when something of it is first used."""

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module(self.__name__), name)

    torch = _Later("torch")


def exported(package: str, *modules: str) -> Callable[[str], Any]:
    """``__getattr__`` of a package that hands on the names of some of its modules, which are
    imported when one of these names is first used."""

    def find(name: str) -> Any:
        if not name.startswith("_") and find_spec(f"{package}.{name}") is None:
            for home in (import_module(f"{package}.{module}") for module in modules):
                if hasattr(home, name):
                    return getattr(home, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
