"""Table 3 and Figures 2 and 3 of the FedSel paper."""

PANELS = ("2a", "2b", "2c", "2d", "2e", "2f", "2g", "2h", "2i", "3a", "3b", "3c")
PARTS = ("table3", "rates", *PANELS)
