"""Pages of jobs. The URL says everything: state, filters, place; so reloading and going back show the same.

Except for what a payload must contain: URLs are written to logs, and values of payloads have no business there. The
browser keeps it in a cookie, and the URL names the cookie.
"""

import base64
import json
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

from starlette.datastructures import ImmutableMultiDict, QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from leasehold.errors import InvalidArgument
from leasehold.http.body import read_form, validated
from leasehold.http.problems import Problem, invalid
from leasehold.http.runtime import Runtime
from leasehold.http.schemas import JobFilter, rfc3339
from leasehold.operate import jobs, system
from leasehold.operate.jobs import STATES
from leasehold.operate.refusals import Refusal, is_uuid
from leasehold.web.session import check_same_origin, set_cookie
from leasehold.web.visit import MOMENT, Visit

_SHORT: Final = {
    "error_class": "error", "exclusive_key": "key", "created_after": "after", "created_before": "before",
}  # fmt: skip
FIELDS: Final = {_SHORT.get(name, name): name for name in (*JobFilter.model_fields, "payload")}
"""Names in the URL and in a filter."""

PAGE: Final = 50
_COOKIE: Final = "leasehold_payload_"
_AGO: Final = re.compile(r"(\d{1,6}) ?(s|min|m|h|d)", re.ASCII)
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_UNITS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_WORD: Final = re.compile(r'(?:(\w+):)?(?:"([^"]*)"|(\S+))')


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the URL asks for."""

    state: str | None
    given: dict[str, Any]  # the filters, by their names in the URL; metadata are a list of key=value
    cursor: str | None
    trail: tuple[str, ...]  # where the pages before this one began
    kept: str | None  # what names the browser's cookie with the payload's condition
    unknown: str | None  # a state or a filter that there is not, in words

    def query(self, **changes: Any) -> str:
        """Return a URL's query: this one with the changes; a change of state or filter begins at the first page."""
        fields = {"state": self.state, **self.given, "payload": self.kept, **changes}
        return urlencode({name: value for name, value in fields.items() if value}, doseq=True)

    @property
    def next(self) -> str:
        """The trail of the page after this one."""
        return "~".join([*self.trail, self.cursor or "0"][-20:])

    @property
    def back(self) -> str | None:
        """The query of the page before this one; None: this is the first."""
        if self.cursor is None:
            return None
        if not self.trail or self.trail[-1] == "0":
            return self.query()
        return self.query(cursor=self.trail[-1], trail="~".join(self.trail[:-1]))


def wanted_of(params: QueryParams, jar: Mapping[str, str] | None = None) -> Wanted:
    """Return what a URL's query asks for; what makes no sense is named in `unknown`."""
    given = _given(params, FIELDS)
    kept = given.pop("payload", None)
    if kept is not None and (condition := _read((jar or {}).get(f"{_COOKIE}{kept[:16]}"))) is not None:
        given["payload"] = condition
    state = params.get("state", "")
    return Wanted(
        state=state if state in STATES else None,
        given=given,
        cursor=params.get("cursor") or None,
        trail=tuple(filter(None, params.get("trail", "")[:20_000].split("~"))),
        kept=kept,
        unknown=_unknown(params),
    )


def _unknown(params: QueryParams) -> str | None:
    """Return what is wrong with a query: to leave it out would show more jobs than were asked for, and change them."""
    if (state := params.get("state", "")) and state not in STATES:
        return f"state {state[:40]!r} unknown; known: {', '.join(STATES)}"
    for name in params:
        if name != "metadata" and len(set(params.getlist(name))) > 1:
            return f"{name[:40]} is given more than once, which no job can fit; give it once"
        if name not in {*FIELDS, "state", "cursor", "trail"}:
            known = ", ".join(("state", *FIELDS))
            return f"filter {name[:40]!r} unknown; known: {known}. A kind with a colon is found by kind:{name[:40]}:…"
    return None


async def show(visit: Visit) -> Response:
    """Return the page."""
    params = visit.request.query_params
    if "q" in params or ("payload" in params and not re.fullmatch("[0-9a-f]{8}", params["payload"].strip())):
        return _redirected(visit.request, params)
    wanted = wanted_of(params, visit.request.cookies)
    state = {"state": wanted.state} if wanted.state else {}
    problem, rows, cursor = wanted.unknown, [], None
    if problem is None and wanted.kept and "payload" not in wanted.given:
        problem = "what the payload must contain is kept in the browser that searched; write it here again"
    if problem is None:
        try:
            found = await visit.run(jobs.listed, chosen(JobFilter, wanted.given) | state, wanted.cursor, PAGE)
            rows, cursor = found.jobs, found.cursor
        except (Problem, Refusal, InvalidArgument) as error:
            problem = str(error.args[0])
    return visit.page(
        "jobs.html",
        wanted=wanted,
        jobs=rows,
        cursor=cursor,
        problem=problem,
        counts=None if wanted.given else await visit.if_allowed(MOMENT, system.counts),
        states=STATES,
        filter=json.dumps(wanted.given | state),
    )


async def search(request: Request, parts: Runtime) -> Response:
    """Redirect to what a search form asks for in its body."""
    check_same_origin(request)
    return _redirected(request, await read_form(request, most=32 * 1024, seconds=parts.settings.body_seconds))


def _given(asked: ImmutableMultiDict[str, str], names: Iterable[str]) -> dict[str, Any]:
    """Return what is not empty of these fields: one value each, or a list: of metadata, and of what was repeated."""
    found: dict[str, Any] = {}
    for name in names:
        values = list(dict.fromkeys(value.strip() for value in asked.getlist(name) if value.strip()))
        if values:
            found[name] = values if name == "metadata" or len(values) > 1 else values[0]
    return found


def _redirected(request: Request, asked: ImmutableMultiDict[str, str]) -> Response:
    """Redirect to what was asked for. The condition on payloads goes into a cookie, its name into the URL."""
    base = request.scope.get("root_path", "")
    fields = _given(asked, ("state", *FIELDS))
    if "q" in asked:
        found = searched(asked["q"])
        if isinstance(found, str):
            return RedirectResponse(f"{base}{found}", status_code=303)
        fields = found
    condition = fields.pop("payload", None)
    kept = secrets.token_hex(4)
    if isinstance(condition, list):
        raise invalid(("payload", "given more than once; give it once"))
    query = urlencode(fields | ({"payload": kept} if condition else {}), doseq=True)
    response = RedirectResponse(f"{base}/jobs{'?' if query else ''}{query}", status_code=303)
    if condition:
        value = base64.urlsafe_b64encode(condition[:2000].encode("utf-8", "replace")).decode()
        set_cookie(request, response, f"{_COOKIE}{kept}", value)
        # A browser keeps five: with more, and long ones, its requests would have too large a head. It sends the oldest
        # first. A search whose condition is forgotten says so.
        earlier = [name for name in request.cookies if name.startswith(_COOKIE)]
        for name in earlier[: max(0, len(earlier) - 4)]:
            set_cookie(request, response, name, "", 0)
    return response


def searched(text: str) -> str | dict[str, Any]:
    """Return where a search leads: to a job by its id, else to a filter. Words without a field are a kind.

    Of a field that there is not only the name is kept, for the page to refuse: its value might be that of a payload.
    """
    text = text.strip()
    if is_uuid(text):
        return f"/jobs/{text.lower()}"
    words = [(name or "kind", quoted or plain) for name, quoted, plain in _WORD.findall(text[:2000])]
    known = [(name, value if name in FIELDS or name == "state" else "") for name, value in words]
    return {name: "" for name, _ in known} | _given(ImmutableMultiDict(known), dict(known))


def _read(value: str | None) -> str | None:
    """Return the condition in a cookie; None: there is none."""
    try:
        return None if value is None else base64.urlsafe_b64decode(value.encode("ascii", "replace")).decode()
    except ValueError:
        return None


def chosen(model: type[JobFilter], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a filter by the names of the URL as the database has it; raise a Problem that names a wrong field."""
    plain = {
        FIELDS.get(name, name): moment(value) if name in {"after", "before"} and isinstance(value, str) else value
        for name, value in given.items()
        if name != "payload"
    }
    found = validated(model, plain).fields()
    return found | ({"payload": contained(given["payload"])} if given.get("payload") else {})


def contained(text: str | list[str]) -> dict[str, Any]:
    """Return `to.city=Rome` as the object that a payload must contain. A value that is not JSON is a text."""
    if isinstance(text, list):
        raise invalid(("payload", "given more than once; give it once"))
    path, sign, value = text.partition("=")
    names = [name.strip() for name in path.split(".")]
    if not sign or not all(names) or len(names) > 20 or "\0" in text:
        raise invalid(("payload", "write it as path=value, such as to.city=Rome"))
    try:
        found: Any = json.loads(value, parse_constant=int)  # which refuses NaN and Infinity: JSON has neither
    except (ValueError, RecursionError):
        found = value
    for name in reversed(names):
        found = {name: found}
    return found  # type: ignore[no-any-return] # there is at least one name


def moment(text: str) -> str:
    """Return a time as people write it, so long ago, a day, or in full, in full."""
    if (ago := _AGO.fullmatch(text)) is not None:
        try:
            return rfc3339(datetime.now(UTC) - timedelta(seconds=int(ago[1]) * _UNITS[ago[2]]))
        except OverflowError:
            raise invalid(("", f"{text} ago there was no calendar: use a shorter time")) from None
    return f"{text}T00:00:00Z" if _DAY.fullmatch(text) else text
