"""FedSel on Flower: the apps that run inside Flower's processes, and a way to start these on one machine.

Importing anything below needs the extra ``tacit-dp[federated]``.
"""
