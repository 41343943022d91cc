"""Federated SGD under local differential privacy (FedSel): every client perturbs before it sends."""
