"""What a training step needs beside the forward: gradients, what autograd saves, what optimizers keep."""
