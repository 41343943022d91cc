"""The version of Tacit. It is written here and nowhere else; the distribution takes it from this line."""

__version__ = "0.2.0"
