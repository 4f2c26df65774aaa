"""Plans the training of large language models on clusters of mixed accelerators.

    from hetplan import load_cluster, load_model, predict, search

Each name is loaded when it is first asked for, so that `import hetplan` costs nothing.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hetplan.predict import predict
    from hetplan.search.planner import search
    from hetplan.specs.files import load_cluster, load_model

__all__ = ["load_cluster", "load_model", "predict", "search"]
__version__ = "0.1.0"

_HOMES = {
    "load_cluster": "hetplan.specs.files",
    "load_model": "hetplan.specs.files",
    "predict": "hetplan.predict",
    "search": "hetplan.search.planner",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Keeps `hetplan.search` and `hetplan.predict` the functions.

    Importing a module of the same name would bind the module there, over the function.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
