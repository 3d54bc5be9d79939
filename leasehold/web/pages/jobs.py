"""Pages of jobs. The URL says everything: state, filters, place; so reloading and going back show the same.

Except for what a payload must contain: URLs are written to logs, and values of payloads have no business there. The
browser keeps it in a cookie, and the URL names the cookie.
"""

import base64
import binascii
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from leasehold.errors import InvalidJob
from leasehold.http.body import read_form, validated
from leasehold.http.ops.schemas import JobFilter
from leasehold.http.problems import Problem, invalid
from leasehold.http.runtime import Runtime
from leasehold.http.schemas import rfc3339
from leasehold.web import facts
from leasehold.web.session import check_origin, forget, keep
from leasehold.web.visit import Visit
from leasehold.web.words import STATES

FIELDS: Final = {
    "kind": "kind",
    "queue": "queue",
    "tag": "tag",
    "error": "error_class",
    "key": "exclusive_key",
    "after": "created_after",
    "before": "created_before",
    "payload": "payload",
}
"""Names in the URL and in a filter."""

PAGE: Final = 50
_COOKIE: Final = "leasehold_payload_"
_KEPT: Final = re.compile(r"[0-9a-f]{8}", re.ASCII)
_ELSEWHERE: Final = "what the payload must contain is kept in the browser that searched; write it here again"
_MOST_KEPT: Final = 5
"""Conditions that one browser keeps: with more, and long ones, its requests would have too large a head."""
_LONGEST_CONDITION: Final = 2000
_LONGEST_FORM: Final = 32 * 1024
TIMES: Final = frozenset({"after", "before"})
"""Fields that take a time."""
_AGO: Final = re.compile(r"(\d{1,6}) ?(s|min|m|h|d)", re.ASCII)
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_UNITS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_LONGEST_TRAIL: Final = 20
_DEEPEST: Final = 20
_WORD: Final = re.compile(r'(?:(\w+):)?(?:"([^"]*)"|(\S+))')
_PLACES: Final = frozenset({"state", "cursor", "trail"})
"""What a URL has besides the filters."""
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the URL asks for."""

    state: str | None
    given: dict[str, str]
    """The filters, by their names in the URL."""
    cursor: str | None
    trail: tuple[str, ...]
    """Where the pages before this one began."""
    kept: str | None = None
    """What names the browser's cookie with the payload's condition."""
    unknown: str | None = None
    """A state or a filter that there is not, in words."""

    def query(self, **changes: Any) -> str:
        """A URL's query: as this one, but for the changes; a change of state or filter begins at the first page."""
        given = self.given | ({"payload": self.kept} if self.kept else {})
        fields: dict[str, Any] = {**({"state": self.state} if self.state else {}), **given, **changes}
        return urlencode({name: value for name, value in fields.items() if value})

    def fields(self) -> dict[str, Any]:
        """The filter as the database has it, or a Problem that names the wrong field."""
        if self.unknown is not None:
            raise invalid(("", self.unknown))
        found = chosen(JobFilter, self.given)
        return found | ({"state": self.state} if self.state else {})

    @property
    def next(self) -> str:
        """The trail of the page after this one."""
        return "~".join([*self.trail, self.cursor or "0"][-_LONGEST_TRAIL:])

    @property
    def back(self) -> str | None:
        """The query of the page before this one; None: this is the first."""
        if self.cursor is None:
            return None
        if not self.trail or self.trail[-1] == "0":
            return self.query()
        return self.query(cursor=self.trail[-1], trail="~".join(self.trail[:-1]))


def wanted_of(params: QueryParams, jar: Mapping[str, str] | None = None) -> Wanted:
    """What a URL's query asks for; what makes no sense is left to `fields`."""
    given = {name: value for name in FIELDS if (value := params.get(name, "").strip())}
    kept = given.pop("payload", None)
    if kept is not None and (condition := _read((jar or {}).get(f"{_COOKIE}{kept[:16]}"))) is not None:
        given["payload"] = condition
    state = params.get("state", "")
    trail = tuple(filter(None, params.get("trail", "")[:20_000].split("~")))
    return Wanted(
        state=state if state in STATES else None,
        given=given,
        cursor=params.get("cursor") or None,
        trail=trail,
        kept=kept,
        unknown=_unknown(params),
    )


def _unknown(params: QueryParams) -> str | None:
    """What is wrong with a query that names a state or a filter that there is not: to leave it out would show more jobs
    than were asked for, and change them.
    """
    if (state := params.get("state", "")) and state not in STATES:
        return f"state {state[:40]!r} unknown; known: {', '.join(STATES)}"
    for name in params:
        if name not in FIELDS and name not in _PLACES:
            known = ", ".join(("state", *FIELDS))
            return f"filter {name[:40]!r} unknown; known: {known}. A kind with a colon is found by kind:{name[:40]}:…"
    return None


async def show(visit: Visit) -> Response:
    """The page."""
    params = visit.request.query_params
    if "q" in params or ("payload" in params and not _KEPT.fullmatch(params["payload"].strip())):
        return _led(visit.request, params)
    wanted = wanted_of(params, visit.request.cookies)
    problem, jobs, cursor = None, [], None
    try:
        if wanted.kept and "payload" not in wanted.given:
            raise Problem("not-found", _ELSEWHERE)  # noqa: TRY301
        if "payload" in wanted.given and not visit.visitor.sees_content:
            raise Problem("forbidden", "looking into payloads needs a token with the scope operate")  # noqa: TRY301
        found = await visit.ask(visit.store.list_jobs(wanted.fields() | visit.narrow, opened(wanted.cursor), PAGE))
        jobs, cursor = found.jobs, closed(found.cursor)
    except Problem as error:
        problem = error.detail
    except InvalidJob as error:
        problem = str(error.args[0])
    return visit.page(
        "jobs.html",
        wanted=wanted,
        jobs=jobs,
        cursor=cursor,
        problem=problem,
        counts=None if wanted.given else await facts.counts(visit),
        states=STATES,
        filter=json.dumps({**wanted.given, **({"state": wanted.state} if wanted.state else {})}),
    )


async def search(request: Request, parts: Runtime) -> Response:
    """What the search forms send, in a body: where it leads."""
    check_origin(request)
    body = await read_form(request, most=_LONGEST_FORM, seconds=parts.settings.body_seconds)
    return _led(request, body)


def _led(request: Request, asked: Mapping[str, str]) -> Response:
    """The way to what was asked for. The condition on payloads goes into a cookie, its name into the URL."""
    base = request.scope.get("root_path", "")
    fields = {name: asked[name].strip() for name in ("state", *FIELDS) if asked.get(name, "").strip()}
    if "q" in asked:
        found = searched(asked["q"])
        if isinstance(found, str):
            return RedirectResponse(f"{base}{found}", status_code=303)
        fields = found
    condition = fields.pop("payload", None)
    kept = secrets.token_hex(4)
    query = urlencode(fields | ({"payload": kept} if condition else {}))
    response = RedirectResponse(f"{base}/jobs{'?' if query else ''}{query}", status_code=303)
    if condition:
        value = base64.urlsafe_b64encode(condition[:_LONGEST_CONDITION].encode("utf-8", "replace")).decode()
        keep(request, response, f"{_COOKIE}{kept}", value)
        # Browsers send the oldest first. A search whose condition is forgotten says so.
        earlier = [name for name in request.cookies if name.startswith(_COOKIE)]
        for name in earlier[: max(0, len(earlier) + 1 - _MOST_KEPT)]:
            forget(request, response, name)
    return response


def searched(text: str) -> str | dict[str, str]:
    """Where a search leads: to a job by its id, else to a filter. Words without a field are a kind.

    Of a field that there is not only the name is kept, for the page to refuse: its value might be that of a payload.
    """
    text = text.strip()
    if _UUID.fullmatch(text):
        return f"/jobs/{text.lower()}"
    words = [(name or "kind", quoted or plain) for name, quoted, plain in _WORD.findall(text[:2000])]
    return {name: value if name in FIELDS or name == "state" else "" for name, value in words}


def _read(value: str | None) -> str | None:
    """The condition in a cookie."""
    try:
        return None if value is None else base64.urlsafe_b64decode(value.strip('"').encode("ascii", "replace")).decode()
    except (binascii.Error, ValueError):
        return None


def chosen(model: type[JobFilter], given: Mapping[str, str]) -> dict[str, Any]:
    """A filter by the names of the URL as the database has it, or a Problem that names the wrong field."""
    plain = {
        FIELDS.get(name, name): moment(value) if name in TIMES else value
        for name, value in given.items()
        if name != "payload"
    }
    found = validated(model, plain).fields()
    return found | ({"payload": contained(given["payload"])} if given.get("payload") else {})


def contained(text: str) -> dict[str, Any]:
    """`to.city=Rome` as the object that a payload must contain. Values are JSON where they can be, else texts."""
    path, sign, value = text.partition("=")
    names = [name.strip() for name in path.split(".")]
    if not sign or not all(names) or len(names) > _DEEPEST or "\0" in text:
        raise invalid(("payload", "write it as path=value, such as to.city=Rome"))
    try:
        found: Any = json.loads(value, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        found = value
    for name in reversed(names):
        found = {name: found}
    return found  # type: ignore[no-any-return] # there is at least one name


def _no_constant(name: str) -> None:
    raise ValueError(name)


def moment(text: str) -> str:
    """A time as people write it: so long ago, a day, or in full."""
    if (ago := _AGO.fullmatch(text)) is not None:
        try:
            return rfc3339(datetime.now(UTC) - timedelta(seconds=int(ago[1]) * _UNITS[ago[2]]))
        except OverflowError:
            raise invalid(("", f"{text} ago there was no calendar: give a shorter time")) from None
    return f"{text}T00:00:00Z" if _DAY.fullmatch(text) else text


def closed(cursor: str | None) -> str | None:
    """A cursor, for a URL."""
    return None if cursor is None else base64.urlsafe_b64encode(cursor.encode()).decode().rstrip("=")


def opened(cursor: str | None) -> str | None:
    """A cursor, for the database."""
    if cursor is None:
        return None
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
        place = json.loads(text)
    except (binascii.Error, ValueError, RecursionError):
        raise Problem("not-found", "this page is nowhere; begin at the first") from None
    if not isinstance(place, list) or not place or not all(isinstance(part, str | int) for part in place):
        raise Problem("not-found", "this page is nowhere; begin at the first")
    return json.dumps(place)
