"""The fine-tuning table: SPARTA and other methods."""
