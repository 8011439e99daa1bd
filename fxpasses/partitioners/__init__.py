"""Proposals: a partitioner reads a graph and answers with an Assignment; it never mutates."""
