"""Pages from templates: everything is escaped, nothing is inline, and an unchanged page is not sent twice."""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from leasehold.http.body import header
from leasehold.version import __version__
from leasehold.web import words
from leasehold.web.assets import assets, edition

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)

SECURITY: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""On every answer of the dashboard."""

_NOW: Final = 'data-now=""'
_THEMES: Final = frozenset({"light", "dark"})
_ZONES: Final = frozenset({"utc", "local"})


@cache
def environment() -> Environment:
    """The templates."""
    made = Environment(
        loader=PackageLoader("leasehold.web", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"span": words.span, "number": words.number, "size": words.size, "iso": words.iso, "when": when}
    made.globals |= {
        "MEANINGS": words.MEANINGS,
        "REASONS": words.REASONS,
        "shown_state": words.shown_state,
        "version": __version__,
        "has_asset": lambda name: name in assets(),
    }
    return made


def when(moment: datetime | None, form: str = "ago") -> Markup:
    """A moment that scripts show in the viewer's way: `ago`, `at`, `in`, or a lease's `left`."""
    if moment is None:
        return Markup(words.NONE)  # noqa: S704 (a constant)
    text = moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}" data-t="{}" title="{}">{}</time>').format(words.iso(moment), form, text, text)


def page(request: Request, template: str, context: Mapping[str, Any], *, status: int = 200) -> Response:
    """A page; 304 if the browser has it as it is. The moment at which it was made does not count as a change."""
    base = request.scope.get("root_path", "")
    jar = request.cookies
    shared = {
        "base": base,
        "path": request.scope["path"][len(base) :] or "/",
        "asset": lambda name: f"{base}/static/{edition()}/{name}",
        "theme": jar["leasehold_theme"] if jar.get("leasehold_theme") in _THEMES else "auto",
        "zone": jar["leasehold_zone"] if jar.get("leasehold_zone") in _ZONES else "local",
    }
    text = environment().get_template(template).render({**shared, **context})
    etag = f'W/"{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}"'
    headers = {
        "cache-control": "private, no-cache",
        "vary": "cookie",
        "etag": etag,
        "x-now": words.iso(datetime.now(UTC)),
    }
    if status == 200 and (header(request.scope, b"if-none-match") or b"").decode("latin-1") == etag:
        return Response(status_code=304, headers=headers)
    text = text.replace(_NOW, f'data-now="{headers["x-now"]}"', 1)
    return Response(text, status_code=status, media_type="text/html; charset=utf-8", headers=headers)
