"""What operators see and do, written once: HTTP, the dashboard and the CLI only parse requests and render results.

An operation is a coroutine of an Operator and its own arguments. It returns a frozen value that holds nothing which the
caller may not see, or raises a Refusal. With a blocking Operator it never suspends.
"""
