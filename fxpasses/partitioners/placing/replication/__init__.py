"""Values that are computed again where they are used, where that is cheaper than sending them."""
