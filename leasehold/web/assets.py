"""Style sheets and scripts: read once, named by their content, cached by browsers without end."""

import hashlib
from functools import cache
from importlib import resources
from pathlib import PurePath
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@cache
def _assets() -> dict[str, bytes]:
    files = resources.files("leasehold.web").joinpath("static").iterdir()
    return {file.name: file.read_bytes() for file in files if PurePath(file.name).suffix in _TYPES}


@cache
def edition() -> str:
    """Return what changes exactly when a file does. It is part of the path, so scripts import each other relatively."""
    digest = hashlib.blake2b(digest_size=8)
    for name, content in sorted(_assets().items()):
        digest.update(name.encode() + b"\0" + content)
    return digest.hexdigest()


async def serve(request: Request) -> Response:
    """Return a file. A path of another edition works too, but its answer is not cached."""
    name = request.path_params["name"]
    if name not in _assets():
        raise HTTPException(404)
    kept = "public, max-age=31536000, immutable" if request.path_params["edition"] == edition() else "no-store"
    return Response(_assets()[name], media_type=_TYPES[PurePath(name).suffix], headers={"cache-control": kept})
