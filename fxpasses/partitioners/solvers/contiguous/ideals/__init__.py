"""Where a graph can be cut: families of ideals, and what lies between two of them weighs on each device."""
