"""Whether the automatic and the soft form keep their promise: never clearly worse than dense training on a table."""
