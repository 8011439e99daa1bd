"""What operators make and need while they run, as the kernels of the CPU do it: found by running them without data."""
