"""The tables and figures of the TP-TopK paper, made anew with Tacit's own engine."""
