"""Worker processes: started, watched, replaced and stopped; and how they report that they are well.

The supervisor runs no jobs, opens no connection and does not import the user's app: what a task breaks, it breaks in a
worker process.
"""

RETIRED = 75
"""The exit code of a worker that stopped by itself to be replaced: enough jobs, or too much memory."""
