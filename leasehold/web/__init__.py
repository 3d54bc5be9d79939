"""The dashboard: server-rendered pages over the same calls that /ops makes, mounted below the HTTP API."""
