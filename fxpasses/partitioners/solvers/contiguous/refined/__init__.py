"""All ideals at which a pipeline under a threshold can be cut, found from a coarse problem to the given one."""
