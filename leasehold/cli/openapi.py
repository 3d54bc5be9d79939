"""`leasehold openapi`: the description of the HTTP API."""

import json

import typer

import leasehold
from leasehold.app import App


def command() -> None:
    """Print the API's OpenAPI 3.1 description as JSON; needs no database."""
    typer.echo(json.dumps(leasehold.api(App()).openapi(), indent=2))
