"""The problem as arrays: costs, units that share a device, loads of assignments, what paths reach."""
