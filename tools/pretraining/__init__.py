"""Pretrains the network of the features ``network`` on synthetic images. No data set goes in."""
