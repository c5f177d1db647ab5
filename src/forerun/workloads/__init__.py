"""Workloads: what a person has (a name, a file, a module, a row) becomes a Workload."""
