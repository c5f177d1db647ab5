"""Probe: micro-benchmarks that turn this machine or cluster into a catalogue device and its links."""
