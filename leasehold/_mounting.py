"""The HTTP API for programs that mount it: Starlette is imported when the API is made, not before."""

from typing import TYPE_CHECKING, Literal

from leasehold.errors import ConfigError

if TYPE_CHECKING:
    from leasehold.app import App
    from leasehold.http.app import Api
    from leasehold.http.settings import ApiSettings
    from leasehold.web.visit import DemoControls


def api(
    app: "App", *, tokens: 'bool | Literal["auto"] | None' = None, settings: "ApiSettings | None" = None,
    demo: "DemoControls | None" = None,
) -> "Api":  # fmt: skip
    """Return the HTTP API of the app as a Starlette application: `web.mount("/leasehold", leasehold.api(app))`.

    Requests need a token, unless `tokens` is False (never) or "auto" (as soon as one was ever made). The dashboard is
    below it, at `/dashboard/`, unless the settings switch it off. `demo`: what the header of a demo shows and can do.
    """
    try:
        from leasehold.http.app import Api as Made  # noqa: PLC0415 (an extra that not everybody installs)
        from leasehold.web.dashboard import attach  # noqa: PLC0415
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in {"starlette", "prometheus_client", "jinja2"}:
            raise ConfigError(f"{missing} is not installed", hint="pip install 'leasehold[api]'") from None
        raise
    made = Made(app, tokens=tokens, settings=settings)
    if made.state.leasehold.settings.dashboard != "off":
        attach(made, demo=demo)
    return made
