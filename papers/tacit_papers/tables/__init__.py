"""Private models for tables compared at their defaults: Tacit, DP-EBM and others, and models without privacy."""
