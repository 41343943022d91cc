"""Tables and figures of the TP-TopK paper."""
