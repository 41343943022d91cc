"""Data sets and their preparation from public facts."""
