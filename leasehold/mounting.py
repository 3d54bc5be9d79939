"""The HTTP API for whoever wants it: FastAPI is imported when it is asked for, not before."""

from typing import TYPE_CHECKING, Literal

from leasehold.errors import ConfigError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from leasehold.app import App
    from leasehold.http.settings import ApiSettings
    from leasehold.web.demo import DemoControls


def api(
    app: "App",
    *,
    tokens: 'bool | Literal["auto"] | None' = None,
    settings: "ApiSettings | None" = None,
    demo: "DemoControls | None" = None,
) -> "FastAPI":
    """The HTTP API of the app's database as a FastAPI application: `web.mount("/leasehold", leasehold.api(app))`.

    Requests need a token, unless `tokens` is False (never) or "auto" (as soon as one was ever made). The dashboard is
    below it, at `/dashboard/`, unless the settings switch it off. `demo`: what the header of a demo shows and can do.
    """
    try:
        from leasehold.http.app import api as make  # noqa: PLC0415 (an extra that not everybody installs)
        from leasehold.web.dashboard import attach  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name in {"fastapi", "starlette", "prometheus_client", "jinja2"}:
            raise ConfigError(f"{error.name} is not installed", hint="pip install 'leasehold[api]'") from None
        raise
    made = make(app, tokens=tokens, settings=settings)
    if made.state.leasehold.settings.dashboard != "off":
        attach(made, demo=demo)
    return made
