"""Work that any worker does for all: no leader, safe from any number of them at once."""
