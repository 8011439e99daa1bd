"""Free placement: any unit on any device; annealing, and proofs where they are within reach."""
