"""Pipelines where memory is tight: fill the devices, or prove by how much and at which node none fits."""
