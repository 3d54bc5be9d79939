"""The control plane: records intents and shows outcomes over HTTP. It never runs a job."""
