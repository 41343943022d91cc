"""Experiments: from a description in a file to a run, a comparison or a diagnosis."""
