"""Sites on Flower: an app that carries questions to a vault's socket and replies back, and the coordinator's app.

Importing anything below needs the extra ``tacit-dp[federated]``.
"""
