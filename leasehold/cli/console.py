"""Where the command line talks: people read standard error, programs read standard output."""

from rich.console import Console

from leasehold.errors import LeaseholdError


def say(message: str, *, style: str | None = None) -> None:
    """Tell the person at the terminal something that is not the command's result."""
    # Made anew each time: tests and the embedded server replace sys.stderr. Not wrapped, no markup:
    # a line stays one line when it is searched for, and a value with brackets stays as it is.
    Console(stderr=True).print(message, style=style, markup=False, highlight=False, soft_wrap=True)


def say_error(error: LeaseholdError) -> None:
    """Say what went wrong and, where known, what to do: never a traceback."""
    say(f"error: {error.args[0]}", style="bold red")
    if error.hint:
        say(f"hint: {error.hint}")
