"""Planted bugs: each breaks the privacy of Tacit in one realistic way, and the test suite must notice."""
