"""Where sparsity wins: methods by model size, ε, active ratio and warm-up, every learning rate tuned alike."""
