"""Five matrices: what may go wrong, times what the fleet does. Each file holds one of them as data."""
