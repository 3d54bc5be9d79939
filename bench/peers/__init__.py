"""The contestants: one small script each, all with the same commands. See adapter.py."""
