"""Renders pages from templates: everything is escaped, nothing is inline, an unchanged page is not sent twice."""

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
from leasehold.operate import reasons
from leasehold.version import __version__
from leasehold.web import words
from leasehold.web.assets import edition

SECURITY: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""On every answer of the dashboard."""


@cache
def environment() -> Environment:
    """Return the templates."""
    made = Environment(
        loader=PackageLoader("leasehold.web", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"span": words.span, "number": words.number, "size": words.size, "iso": words.iso, "when": when}
    made.filters["counted"] = lambda count: words.number(*count)
    made.globals |= {name: getattr(reasons, name) for name in ("DEAD", "MEANINGS", "REASONS")}
    made.globals |= {"shown_state": words.shown_state, "version": __version__}
    return made


def when(moment: datetime | None, form: str = "ago") -> Markup:
    """Return an element in which scripts show a moment in the viewer's zone: `ago`, `at`, `in`, a lease's `left`."""
    if moment is None:
        return Markup(words.NONE)  # noqa: S704 (a constant)
    text = moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{0}" data-t="{1}" title="{2}">{2}</time>').format(words.iso(moment), form, text)


def page(request: Request, template: str, context: Mapping[str, Any], *, status: int = 200) -> Response:
    """Return a page; 304 if the browser has it. The moment at which it was made does not count as a change."""
    base = request.scope.get("root_path", "")
    jar = request.cookies
    shared = {
        "base": base,
        "path": request.scope["path"][len(base) :] or "/",
        "asset": lambda name: f"{base}/static/{edition()}/{name}",
        "theme": theme if (theme := jar.get("leasehold_theme")) in {"light", "dark"} else "auto",
        "zone": "utc" if jar.get("leasehold_zone") == "utc" else "local",
    }
    text = environment().get_template(template).render({**shared, **context})
    etag = f'W/"{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}"'
    now = words.iso(datetime.now(UTC))
    headers = {"cache-control": "private, no-cache", "vary": "cookie", "etag": etag, "x-now": now}
    if status == 200 and (header(request.scope, b"if-none-match") or b"").decode("latin-1") == etag:
        return Response(status_code=304, headers=headers)
    text = text.replace('data-now=""', f'data-now="{now}"', 1)
    return Response(text, status_code=status, media_type="text/html; charset=utf-8", headers=headers)
