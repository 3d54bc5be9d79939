"""`python -m leasehold` is the `leasehold` command."""

from leasehold.cli import main

main()
