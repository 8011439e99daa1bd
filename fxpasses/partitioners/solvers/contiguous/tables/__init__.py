"""The dynamic program over ideals: which devices have run which of them, at what cost."""
