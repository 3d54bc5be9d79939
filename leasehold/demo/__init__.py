"""A small shop's background work, to look at Leasehold with: `leasehold demo`, and `leasehold dev` without an app."""
