"""The parts of a page, one file each."""
