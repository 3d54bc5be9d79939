"""The connections to PostgreSQL: how they are made, shared, bounded and given up."""
