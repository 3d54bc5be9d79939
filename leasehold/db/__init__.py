"""Everything that speaks to PostgreSQL. Only this package imports a driver."""
