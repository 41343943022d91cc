"""Hostile files: every reader of Tacit ends with a value or with a sentence of its own, whatever it is given."""
