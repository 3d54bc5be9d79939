"""Bring a schema to this release: the SQL files, what is applied of them, what is to be done, and doing it."""
