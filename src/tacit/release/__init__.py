"""The door between the raw side and everything else: noise, the Gaussian release, and the ledger it is charged to."""
