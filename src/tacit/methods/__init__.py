"""The training methods: each a small file that returns the phases of a run, before calibration."""
