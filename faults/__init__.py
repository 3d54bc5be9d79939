"""Faults, really injected, and the histories that they leave, really checked."""
