"""Finding the user's app: `module:attribute`, as uvicorn and gunicorn have it, or the name of a package."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

from leasehold.app import App
from leasehold.discovery import discover
from leasehold.errors import ConfigError
from leasehold.importing import importing


def load_app(name: str) -> App:
    """Import the app. Whatever the user's own module raises is the user's to see.

    Of a package, its modules called `tasks` are imported too, and the app may be in one of them.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name:
        raise ConfigError(f"app {name!r} names no module", hint="write it as module:app")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with importing(module_name):
            module = importlib.import_module(module_name)
            more = discover(module) if hasattr(module, "__path__") else []
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # something that the module itself wants
        raise ConfigError(f"no module named {error.name!r}", hint=f"looked from {here}; is it spelt right?") from None
    if attribute:
        app = getattr(module, attribute, None)
        if not isinstance(app, App):
            raise ConfigError(f"{module_name} has no App named {attribute!r}", hint=_known(vars(module)))
        return app
    apps = {id(app): app for where in (module_name, *more) for app in _apps_of(sys.modules[where])}
    if len(apps) != 1:
        raise ConfigError(f"{module_name} has {len(apps)} Apps", hint=_known(vars(module)))
    return next(iter(apps.values()))


def _apps_of(module: ModuleType) -> list[App]:
    return [value for value in vars(module).values() if isinstance(value, App)]


def _known(names: dict[str, object]) -> str:
    apps = ", ".join(name for name, value in names.items() if isinstance(value, App))
    return f"it has: {apps}" if apps else "it has none; make one with app = leasehold.App()"
