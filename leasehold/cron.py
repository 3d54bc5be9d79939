"""When a schedule fires: intervals and cron expressions, in a time zone."""
