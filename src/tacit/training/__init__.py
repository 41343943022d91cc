"""Training: the private step, updates on active coordinates, and the trainer over a whole plan."""
