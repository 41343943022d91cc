"""Recipes for images beside the best results that others published without public data."""
