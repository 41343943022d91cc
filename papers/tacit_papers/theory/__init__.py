"""Numerical checks of the theory page."""
