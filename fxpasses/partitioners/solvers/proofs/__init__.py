"""What no placement can beat: bounds, and integer programs for HiGHS."""
