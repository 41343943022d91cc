"""Published results, reproduced with Tacit: the command ``tacit reproduce``. Not part of the wheel."""
