"""Stages for a process group: built, with the sizes of what arrives, and with tied parameters kept alike."""
