"""``python -m tacit`` and ``torchrun -m tacit``: the command line."""

from tacit.cli.main import main

main()
