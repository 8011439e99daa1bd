"""A graph as a placement problem, and the way back: what shares a device, the search, replicas, reasons."""
