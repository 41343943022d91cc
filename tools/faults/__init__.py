"""Harm runs in every way that a computer knows, let them go on, and check what they promise.

A fault is *lost* if a release happened that the ledger does not hold, if a run cannot go on after what was harmed is
mended, or if a file that was harmed is taken for a sound one. It is *under-reported* if epsilon of the noise that was
really drawn, counted without the ledger, is above what the certificate says.

    python -m tools.faults --faults 200 --table docs/faults.md
"""
