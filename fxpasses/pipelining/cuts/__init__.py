"""Where a model is cut into stages, and what becomes of what lies on both sides of a cut."""
