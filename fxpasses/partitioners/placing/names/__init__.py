"""What a caller means: operators by node or module path, device maps, and what parts are called."""
