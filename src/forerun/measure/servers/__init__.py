"""Servers: real parameter servers beside a run's workers: synchronous, asynchronous or stale, in shards."""
