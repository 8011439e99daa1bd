"""The schedules of ``torch.distributed.pipelining``: which there are, in which order each runs, and when, on paper."""
