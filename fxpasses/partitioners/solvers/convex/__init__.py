"""Each device one convex set of nodes, while values may flow between two devices in both directions."""
