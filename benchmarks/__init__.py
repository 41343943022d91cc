"""The cost of a private step, measured side by side with plain SGD and with Opacus."""
