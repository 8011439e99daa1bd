"""Pipelines for one sample whose parts run as wholes: each begins once all that it takes is there."""
