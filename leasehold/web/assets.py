"""Style sheets and scripts: read once, named by their content, kept by browsers for good."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

from starlette.responses import Response

_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """One file."""

    content: bytes
    media_type: str


@cache
def assets() -> dict[str, Asset]:
    """The files by name."""
    return dict(sorted(_read()))


@cache
def edition() -> str:
    """Changes exactly when any of the files does. In the path, so that scripts find each other by relative names."""
    digest = hashlib.blake2b(digest_size=8)
    for name, asset in assets().items():
        digest.update(name.encode() + b"\0" + asset.content)
    return digest.hexdigest()


def _read() -> Iterator[tuple[str, Asset]]:
    for file in resources.files("leasehold.web").joinpath("static").iterdir():
        suffix = file.name[file.name.rfind(".") :]
        if suffix in _TYPES:
            yield file.name, Asset(content=file.read_bytes(), media_type=_TYPES[suffix])


def served(wanted: str, name: str) -> Response | None:
    """The answer to a request for a file; None: there is none. Another edition's is served, but not for keeps."""
    asset = assets().get(name)
    if asset is None:
        return None
    kept = "public, max-age=31536000, immutable" if wanted == edition() else "no-store"
    return Response(asset.content, media_type=asset.media_type, headers={"cache-control": kept})
