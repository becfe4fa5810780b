"""Modules that Trio and others import and the daemon has no use for, loaded only when they are used.

The TLS of `import trio` alone takes 5 MiB: OpenSSL, and what Python has around it. A daemon that talks to an
API server uses it and pays for it; no other does.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any, Final

# Only what is imported whole (`import ssl`) and not looked into at its import can be postponed.
UNUSED: Final = (
    "ssl",  # Trio, prometheus_client
    "hmac",  # Trio's DTLS: 3.5 MiB of OpenSSL by itself
    "bz2",  # shutil's archives
    "lzma",
    "idna",  # Trio: names of hosts
    "ipaddress",  # urllib.parse, which pathlib imports
)
_loading: Final = threading.RLock()


class _Postponed(ModuleType):
    """A module that is loaded when something is looked for in it that is not there yet.

    importlib's own LazyLoader does so at each `import` of it already, which asks for `__spec__`.
    """

    def __getattr__(self, name: str) -> Any:
        with _loading:  # reentrant: while it is loading a module may look for what it lacks
            loader = vars(self).pop("_postponed_loader", None)
            if loader is not None:
                loader.exec_module(self)
        try:
            return vars(self)[name]
        except KeyError:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}") from None


def postpone(names: Iterable[str]) -> None:
    """Have these modules loaded when they are first looked into; to be called before they are imported.

    What is imported already or is not to be had stays so, and so does what is not written in Python.
    """
    for name in names:
        spec = None if name in sys.modules else find_spec(name)
        if spec is None or not isinstance(spec.loader, SourceFileLoader):
            continue
        module = module_from_spec(spec)
        module.__class__ = _Postponed
        vars(module)["_postponed_loader"] = spec.loader
        sys.modules[name] = module
