"""Scripts for those who work on Tacit."""
