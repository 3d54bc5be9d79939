"""The benchmark suite: `python -m bench`. See docs/performance.md."""
