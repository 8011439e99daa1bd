"""What operators and placements cost: operations, bytes, seconds; of a node, of a graph, of each device."""
