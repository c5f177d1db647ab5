"""Graphs: networks as graphs of primitives, and what a hypernetwork embeds them as."""
