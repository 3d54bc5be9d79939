"""The health file: how the workers are doing, for whoever can look at a file."""

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leasehold.errors import ConfigError

EVERY = 2.0
"""Seconds between two writes. A file that is much older means that something hangs, or is gone."""


class HealthFile:
    """A JSON file that is replaced as a whole, so that nobody reads half of it."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._guard = threading.Lock()
        self._removed = False
        self._draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")

    def write(self, content: Mapping[str, Any]) -> None:
        """Replace the file."""
        try:
            with self._guard:
                if not self._removed:
                    self._draft.write_text(json.dumps(content) + "\n")
                    self._draft.replace(self._path)
        except OSError as error:
            raise ConfigError(f"health file {self._path} cannot be written: {error.strerror}") from None

    def remove(self) -> None:
        """There is nobody left whose health it could be."""
        with self._guard:
            self._removed = True
            for path in (self._path, self._draft):
                path.unlink(missing_ok=True)
