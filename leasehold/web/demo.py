"""What a demo gives the dashboard: figures for the header, and a worker to kill."""

from typing import Any, Protocol


class DemoControls(Protocol):
    """Implemented by whoever runs the demo; both are called in a thread and may take a moment."""

    def scoreboard(self) -> dict[str, Any]:
        """Names and figures in the order to be shown, such as {"jobs lost": 0, "done": 812, "kills": 3}."""
        ...

    def kill(self) -> dict[str, Any]:
        """Kill one worker with SIGKILL, and say which: {"worker": "…", "pid": 4711}."""
        ...
