"""Side by side against the peers, in one run: ``python -m benchmarks [PATTERN] [--quick] [--json FILE]``."""
