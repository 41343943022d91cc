"""Federated training on records that stay where they are: every site adds its own noise, nobody else is trusted."""
