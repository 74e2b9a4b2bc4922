"""Stand-ins for GPU packages that SGLang imports by name and never needs on a CPU: triton, sgl_kernel, torchvision, ...

Any name can be imported out of one; it is an empty class. Called while a module loads (a decorator, a constant) it
gives another; called at work it raises, so nothing is computed by a stand-in unnoticed.
Owns: names that import. Must not know: what SGLang does with them.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import inspect
import sys
import types

PACKAGES = {"sgl_kernel": "0.4.10", "torchaudio": "2.11.0", "torchvision": "0.28.0", "triton": "3.7.1"}
"""Package -> the version it claims. One that is really installed is left alone."""
LACKING = {"triton.knobs"}
"""Modules whose absence SGLang handles itself."""


class Absent(type):
    """The class of every name out of a package that is not there."""

    def __call__(cls, *args: object, **kwargs: object) -> object:
        if inspect.currentframe().f_back.f_code.co_flags & inspect.CO_OPTIMIZED:  # a function's code: not while loading
            raise RuntimeError(f"{cls.__module__}.{cls.__name__} is a stand-in: {cls.__module__} is not here")
        if args and isinstance(args[0], (int, float, str)):
            return args[0]  # triton's constexpr(value)
        return absent(cls.__module__, f"{cls.__name__}()")

    def __getattr__(cls, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return absent(cls.__module__, name)


def absent(package: str, name: str) -> Absent:
    """One name of `package`."""
    return Absent(name, (), {"__module__": package})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds PACKAGES and everything below them."""

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in PACKAGES or name in LACKING:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def exec_module(self, module: types.ModuleType) -> None:
        """Gives the module a name for everything, and the two helpers of triton that are plain arithmetic."""
        package = module.__name__.partition(".")[0]
        module.__version__ = PACKAGES[package]

        def attribute(name: str) -> Absent:
            if name.startswith("__"):
                raise AttributeError(name)
            return absent(package, name)

        module.__getattr__ = attribute
        if module.__name__ == "triton":
            module.cdiv = lambda a, b: -(-a // b)
            module.next_power_of_2 = lambda n: 1 << (n - 1).bit_length()


def install() -> None:
    """Puts the stand-ins behind everything that is installed."""
    sys.meta_path.append(_Finder())
